"""Which parameters decay, beside Trainer's choice."""

import pytest
import torch
from torch import nn
from transformers import Trainer

from course_utils import models
from course_utils.optim import decay_groups


@pytest.mark.parametrize("family", models.FAMILIES)
def test_the_same_parameters_decay_as_in_trainer(family):
    model = models.build(family, labels=3)
    names = {p: name for name, p in model.named_parameters()}
    decayed, exempt = decay_groups(model, 0.1)
    assert {names[p] for p in decayed["params"]} == set(Trainer.get_decay_parameter_names(None, model))
    assert (decayed["weight_decay"], exempt["weight_decay"]) == (0.1, 0.0)
    assert len(decayed["params"]) + len(exempt["params"]) == len(names)


def test_all_kinds_of_normalization_and_loose_biases_are_kept():
    class Loose(nn.Module):
        def __init__(self):
            super().__init__()
            self.out_bias, self.matrix = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2, 2))

    model = nn.Sequential(
        nn.Linear(2, 2), nn.BatchNorm1d(2), nn.GroupNorm(1, 2), nn.RMSNorm(2), Loose(), nn.Embedding(3, 2)
    )
    decayed, _ = decay_groups(model, 0.1)
    expected = [model[0].weight, model[4].matrix, model[5].weight]
    assert len(decayed["params"]) == 3
    assert all(a is b for a, b in zip(decayed["params"], expected, strict=True))


def test_tied_and_frozen_parameters():
    model = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False), "b": nn.Linear(2, 2, bias=False), "c": nn.Linear(2, 2)})
    model["b"].weight = model["a"].weight
    model["c"].requires_grad_(False)
    decayed, exempt = decay_groups(model, 0.1)
    assert (len(decayed["params"]), len(exempt["params"])) == (1, 0)
    with pytest.raises(ValueError, match="unfreeze"):
        decay_groups(model.requires_grad_(False), 0.1)
