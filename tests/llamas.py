"""The model that plans are made for in these tests, of any width and depth, and the recipe that they begin with."""

from course_utils import models
from course_utils.memory import Recipe, Workload, dry_run
from course_utils.memory.planning.verdict import Need, needs
from course_utils.memory.trace.log import Log


def llama(width, blocks, vocabulary=8000):
    """Of any width, since nothing is computed: what a dry run costs is its operators, and they grow with the blocks."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": width // 4}
    sizes = {"hidden_size": width, "intermediate_size": 11 * width // 4, "vocab_size": vocabulary, **heads}
    return models.configuration("llama-7b", **sizes, num_hidden_layers=blocks, max_position_embeddings=4096)


LLAMA = llama(4096, 2)
RECIPE = Recipe("adamw-foreach", batch=4, sequence=2048, device="cuda")


def dry(config, recipe):
    work = Workload(config, recipe)
    return dry_run(work.build, work.step, recipe.device, ranks=recipe.ranks)


def needed(recipe: Recipe = RECIPE, config: object = LLAMA) -> Need:
    return needs(Log.from_usage(dry(config, recipe)), recipe.device)
