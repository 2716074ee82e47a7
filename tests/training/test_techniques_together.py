"""Of the room: accumulation, checkpointing and autocast, each alone and all together: predicted bytes, the same gradients."""

from dataclasses import replace

import pytest
import torch

from benchmarks.techniques import Variant, groups
from course_utils import memory, models
from course_utils.memory.step.examples import random_batch
from course_utils.memory.step.optimizers import factory_of

CONFIG = models.configuration(
    "distilbert", labels=3, dim=128, hidden_dim=512, n_layers=3, n_heads=4, vocab_size=1000, dropout=0.0,
    attention_dropout=0.0, seq_classif_dropout=0.0,
)  # fmt: skip
COMBINATIONS = {name: replace(case, batch=8, sequence=96) for name, case in groups()["Alone and combined"].items()}

EXACT = {name: case for name, case in COMBINATIONS.items() if not case.autocast}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=name, marks=pytest.mark.slow if name not in ("none", "all three") else ())
        for name, case in COMBINATIONS.items()
    ],
)
def test_the_peak_is_predicted_within_five_percent(case):
    model = models.from_configuration(CONFIG).train()
    optimizer = factory_of("adamw")(model.parameters())
    batch = random_batch(model, Variant(batch=8, sequence=96).recipe)
    measured = memory.measure((model, optimizer, batch), case.step, timed=0)
    assert memory.estimate(model.config, case.recipe).peak == pytest.approx(measured.peak, rel=0.05)


@pytest.mark.parametrize("case", EXACT.values(), ids=EXACT)
def test_the_update_is_that_of_the_plain_step(case):
    def parameters_after(case):
        model = models.from_configuration(CONFIG, seed=0).double().train()
        torch.manual_seed(0)
        batch = random_batch(model, Variant(batch=8, sequence=96).recipe)
        case.step(model, torch.optim.SGD(model.parameters(), lr=0.1), batch)
        return model.state_dict()

    torch.testing.assert_close(parameters_after(case), parameters_after(COMBINATIONS["none"]), rtol=0, atol=1e-12)
