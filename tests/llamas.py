"""The model that plans are made for in these tests, of any width and depth, and the recipe that they begin with."""

import re

import pytest

from course_utils import models
from course_utils.memory import Recipe, Workload, dry_run, measure
from course_utils.memory.planning.need import Need
from course_utils.memory.trace.log import Log


def llama(width, blocks, vocabulary=8000):
    """Of any width, since nothing is computed: what a dry run costs is its operators, and they grow with the blocks."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": width // 4}
    sizes = {"hidden_size": width, "intermediate_size": 11 * width // 4, "vocab_size": vocabulary, **heads}
    return models.configuration("llama-7b", **sizes, num_hidden_layers=blocks, max_position_embeddings=4096)


SMALL_SIZES = {
    "hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "vocab_size": 300, "max_position_embeddings": 128,
}  # fmt: skip


def small_llama(blocks, **changes):
    """Of sizes with which a step is run for real in a moment."""
    return models.configuration("llama-7b", **SMALL_SIZES | changes, num_hidden_layers=blocks)


TIED = models.configuration("gpt2-large", n_embd=64, n_head=4, n_layer=2, vocab_size=300, n_positions=128)
LLAMA = llama(4096, 2)
RECIPE = Recipe("adamw-foreach", batch=4, sequence=2048, device="cuda")


def dry(config, recipe):
    work = Workload(config, recipe)
    return dry_run(work.build, work.step, recipe.device, ranks=recipe.ranks)


def assert_measured(predicted, relative):
    """The estimate's peak and its phase are the allocator's."""
    measured = measure(predicted.workload.build, predicted.workload.step, timed=0)
    assert predicted.peak == pytest.approx(measured.peak, rel=relative)
    assert predicted.peak_instant.name == measured.peak_phase


def value_of(formula, sizes):
    """The number that a printed formula means."""
    return eval(
        re.sub(r"[²³]", lambda m: f"**{'²³'.index(m[0]) + 2}", formula).translate({183: "*", 215: "*"}), {}, sizes
    )


def need_of(recipe: Recipe = RECIPE, config: object = LLAMA) -> Need:
    return Need.from_log(Log.from_usage(dry(config, recipe)), recipe.device)
