"""Whether formulas or a dry run answer; their results are compared with the allocator, or with a dry run of that step."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from llamas import dry
from torch import nn
from torch.nn import functional as F
from transformers import BertConfig

from course_utils.memory import Recipe, estimate, measure
from course_utils.memory.formulas.finder import finder_of, fit, powers
from course_utils.memory.formulas.trial import try_recipe
from course_utils.memory.step.model import source_of
from course_utils.memory.trace.log import Label, Log

POSITIONS = 40
SIZES = [(2, 8), (3, 8), (2, 16), (4, 16), (2, 32), (3, 32), (5, 24)]


@given(st.lists(st.lists(st.integers(0, 1000), min_size=6, max_size=6).filter(any), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_polynomials_are_found_to_the_byte(rows):
    labels = tuple(Label("forward", "activations", f"layer{i}", "op") for i in range(len(rows)))
    logs = {(b, s): Log((np.array(rows) @ powers(b, s)[:6]).astype(int), labels) for b, s in SIZES}
    assert np.array_equal(fit(logs)[:, :6], rows)


def test_what_is_no_polynomial_is_not_found():
    labels = (Label("forward", "activations", "", "op"),)
    assert fit({(b, s): Log(np.array([b * 2**s % 1000]), labels) for b, s in SIZES}) is None


class Positioned(nn.Module):
    """A model with positions that refuses more tokens than it has, as Transformers' models do."""

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(50, 16), nn.Embedding(POSITIONS, 16)
        self.head = nn.Linear(16, 50)

    def forward(self, ids):
        if ids.shape[1] > POSITIONS:
            raise ValueError(f"{ids.shape[1]} tokens are too many")
        hidden = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        return F.cross_entropy(self.head(hidden).flatten(0, 1), ids.flatten())


class Plain(Positioned):
    """The same model without positions, for any length."""

    def forward(self, ids):
        return F.cross_entropy(self.head(self.tokens(ids)).flatten(0, 1), ids.flatten())


class Pictures(nn.Module):
    """Convolutions of many channels on small pictures, so that oneDNN's copies are large."""

    def __init__(self):
        super().__init__()
        widths = (3, 64, 64, 3)
        self.layers = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in zip(widths, widths[1:], strict=False))

    def forward(self, pictures):
        for layer in self.layers:
            pictures = F.silu(layer(pictures))
        return pictures.square().mean()


def ids(b, s):
    return torch.randint(50, (b, s))


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="only oneDNN has such scratch space")
def test_where_scratch_space_is_the_peak_no_formula_answers():
    first = estimate(Pictures, Recipe("sgd", batch=2), batch=lambda b, s: torch.randn(b, 3, 8, 8))
    first.working()
    predicted = first.with_fields(batch=4)
    workload = predicted.workload
    truth = measure(workload.build, workload.step, timed=0).peak
    assert predicted.finder.guess(4, predicted.recipe.sequence).peak < 0.9 * truth, "formulas alone would be wrong here"
    assert predicted.basis == "a dry run of just this step"
    assert predicted.peak == pytest.approx(truth, rel=0.001)


def test_a_length_that_kernels_round_up_has_formulas_of_its_own():
    """Formulas for all lengths do not equal the first dry run; those in the batch alone equal dry runs to the byte."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    config = BertConfig(**sizes, vocab_size=100, architectures=["BertForSequenceClassification"])
    finder = finder_of(source_of(config), Recipe("sgd", device="cuda"))
    finder.run(4, 16)
    assert finder.formulas_for(9, 16).holds(9, 16)
    assert not finder.by_regime[False, None].are_exact
    assert finder.formulas_for(9, 17) is None
    log, basis = finder.log(7, 16)
    assert basis.startswith("formulas")
    dry = try_recipe(finder.source, replace(finder.recipe, batch=7, sequence=16))
    assert np.array_equal(log.totals, dry.log.totals)


def test_formulas_are_found_when_they_take_fewer_runs_than_the_sizes_asked_for():
    first = estimate(Plain, Recipe("sgd", batch=2, sequence=64), batch=ids)
    known_from = [first.with_fields(batch=batch).basis for batch in (3, 4, 5)]
    assert ["formulas" in basis for basis in known_from] == [False, False, True]


def test_of_a_function_that_makes_a_model_formulas_are_found_too():
    first = estimate(Plain, Recipe("sgd", batch=4, sequence=64), batch=ids)
    first.working()
    predicted = first.with_fields(batch=3, sequence=100)
    assert predicted.basis.startswith("formulas found from")
    assert predicted.peak == dry(predicted.finder.source, predicted.recipe).peak


def test_a_model_is_not_refused_for_lengths_that_nobody_asked_for():
    predicted = estimate(Positioned, Recipe("sgd", batch=4, sequence=16), batch=ids).with_fields(sequence=POSITIONS)
    assert predicted.basis == "a dry run of just this step"
    assert predicted.peak == dry(predicted.finder.source, predicted.recipe).peak
