"""A trial of a few blocks and micro-batches is the dry run of all of them."""

from dataclasses import replace

import pytest
from llamas import RECIPE, dry, llama

from course_utils import hardware, memory
from course_utils.memory.formulas.trial import run_step, try_recipe
from course_utils.memory.step.model import source_of


@pytest.mark.parametrize(
    "recipe",
    [
        RECIPE,
        pytest.param(replace(RECIPE, precision="bf16-masters"), marks=pytest.mark.slow),
        pytest.param(replace(RECIPE, checkpointing=True, batch=1), marks=pytest.mark.slow),
        pytest.param(replace(RECIPE, zero_stage=3, ranks=4), marks=pytest.mark.slow),
    ],
    ids=["as usual", "an optimizer for each parameter", "checkpointing", "ZeRO-3"],
)
def test_a_trial_of_a_few_blocks_is_the_dry_run_of_all(recipe):
    deep, machine = llama(256, 5), hardware.machine("H100")
    tried = try_recipe(source_of(deep), recipe, machine)
    assert tried.peak == dry(deep, recipe).peak
    assert "3 of its 5 blocks" in tried.basis
    if recipe.ranks == 1:
        workload = memory.Workload(deep, recipe)
        seconds = memory.predict_seconds(workload.build, workload.step, machine, device="cuda").seconds
        assert tried.seconds == pytest.approx(seconds, rel=0.01)


@pytest.mark.slow
def test_how_long_a_segment_is_depends_on_all_blocks_so_all_are_run():
    recipe = replace(RECIPE, checkpointing=True, segments=3, batch=1)
    tried = try_recipe(source_of(llama(256, 5)), recipe)
    assert tried.basis == "a dry run of just this step"
    assert tried.peak == dry(llama(256, 5), recipe).peak


@pytest.mark.parametrize(
    ("blocks", "change"),
    [
        (5, {}),
        *(
            pytest.param(1, change, marks=pytest.mark.slow)
            for change in (
                {"precision": "autocast", "ranks": 2, "zero_stage": 3},
                {"precision": "bf16", "checkpointing": True, "optimizer": "adamw8bit"},
                {"chunked_loss": 512, "precision": "bf16", "offload": True},
                {"device": "cpu", "optimizer": "adamw", "lora": 4},
            )
        ),
    ],
)
def test_many_micro_batches_follow_from_two(blocks, change):
    recipe = replace(RECIPE, batch=1, sequence=512, accumulation=4, **change)
    source, machine = source_of(llama(256, blocks)), hardware.machine("H100")
    full = run_step(source, recipe, machine)
    of_two = try_recipe(source, recipe, machine)
    assert (of_two.peak, of_two.host.peak, of_two.traffic) == (full.peak, full.host.peak, full.traffic)
    assert of_two.log.reserved == pytest.approx(full.log.reserved, rel=0.01)
    assert of_two.clock == pytest.approx(full.clock)
    assert of_two.basis.endswith("of 2 of its 4 micro-batches")
    assert try_recipe(source, recipe).log.totals.tolist() == of_two.log.totals.tolist()
