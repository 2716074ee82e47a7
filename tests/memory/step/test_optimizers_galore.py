"""GaLore in a recipe: a step's bytes compared with the allocator, and its state with a closed form."""

from dataclasses import replace
from math import inf

import pytest
from llamas import TIED, assert_measured, dry, small_llama

from course_utils.memory import Recipe, Workload, estimate, optimizer_state_size
from course_utils.optim import GaLore, hidden_matrices

LLAMA, DEEP = small_llama(2), small_llama(6)
RECIPE = Recipe(batch=2, sequence=16, galore=8)


@pytest.mark.parametrize(
    ("config", "changes"),
    [
        (LLAMA, {"precision": "bf16"}),
        pytest.param(LLAMA, {"precision": "autocast", "checkpointing": True}, marks=pytest.mark.slow),
        (LLAMA, {"in_backward": True}),
        pytest.param(LLAMA, {"clipping": True, "accumulation": 2}, marks=pytest.mark.slow),
        (TIED, {}),
        (DEEP, {}),
    ],
)
def test_an_estimate_is_what_the_allocator_counts(config, changes):
    predicted = estimate(config, replace(RECIPE, **changes))
    assert_measured(predicted, 0.0005)
    assert (predicted.basis == "a dry run of 3 of its 6 blocks") == (config is DEEP)


@pytest.mark.parametrize("config", [LLAMA, TIED])
def test_hidden_matrices_keep_few_directions_and_the_rest_both_averages(config):
    workload = Workload(config, RECIPE)
    model, optimizer, batches = workload.build()
    workload.step(model, optimizer, batches)
    hidden, others = hidden_matrices(model)
    ranks = {**dict.fromkeys(hidden, RECIPE.galore), **dict.fromkeys(others, inf)}
    expected = sum(GaLore.state_bytes(parameter.shape, rank=rank) for parameter, rank in ranks.items())
    assert optimizer_state_size(optimizer).bytes == expected
    predicted = estimate(config, RECIPE)
    assert predicted.by_instant()["forward"]["optimizer state"] == expected
    assert expected < estimate(config, replace(RECIPE, galore=0)).by_instant()["forward"]["optimizer state"] / 1.5


def test_its_state_waits_on_the_host_too():
    recipe = replace(RECIPE, device="cuda", offload=True)
    assert dry(LLAMA, recipe).host.peak < dry(LLAMA, replace(recipe, galore=0)).host.peak
