"""Of the room: accumulation, checkpointing and autocast, each alone and all together: predicted bytes, the same gradients."""

from dataclasses import replace

import pytest
import torch

from benchmarks.techniques import Way, groups
from course_utils import memory, models
from course_utils.memory.step.examples import random_batch
from course_utils.memory.step.optimizers import factory_of

CONFIG = models.configuration(
    "distilbert", labels=3, dim=128, hidden_dim=512, n_layers=3, n_heads=4, vocab_size=1000, dropout=0.0,
    attention_dropout=0.0, seq_classif_dropout=0.0,
)  # fmt: skip
COMBINATIONS = {name: replace(way, batch=8, sequence=96) for name, way in groups()["Alone and combined"].items()}

EXACT = {name: way for name, way in COMBINATIONS.items() if not way.autocast}


@pytest.mark.parametrize(
    "way",
    [
        pytest.param(way, id=name, marks=pytest.mark.slow if name not in ("none", "all three") else ())
        for name, way in COMBINATIONS.items()
    ],
)
def test_the_peak_is_predicted_within_five_percent(way):
    model = models.from_configuration(CONFIG).train()
    optimizer = factory_of("adamw")(model.parameters())
    batch = random_batch(model, Way(batch=8, sequence=96).recipe)
    measured = memory.measure((model, optimizer, batch), way.step, timed=0)
    assert memory.estimate(model.config, way.recipe).peak == pytest.approx(measured.peak, rel=0.05)


@pytest.mark.parametrize("way", EXACT.values(), ids=EXACT)
def test_the_update_is_that_of_the_plain_step(way):
    def moved(way):
        model = models.from_configuration(CONFIG, seed=0).double().train()
        torch.manual_seed(0)
        batch = random_batch(model, Way(batch=8, sequence=96).recipe)
        way.step(model, torch.optim.SGD(model.parameters(), lr=0.1), batch)
        return model.state_dict()

    for (name, expected), got in zip(moved(COMBINATIONS["none"]).items(), moved(way).values(), strict=True):
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}")
