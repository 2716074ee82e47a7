"""Plain values: what may be judged, in which form, and when two are the same."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from sample_question import doubling

from course_utils.grading.compare import compare
from course_utils.grading.question import Case, Tolerance
from course_utils.grading.run import run_case
from course_utils.grading.values import UnfitError, conform, plain, same

TIGHT = Tolerance(1e-9, 1e-12)


class Equal:
    def __eq__(self, other):
        return True

    __hash__ = None


class Liar(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return True


class Number(float):
    def __sub__(self, other):
        return 0.0


@pytest.mark.parametrize(
    "value",
    [
        Equal(),
        [Equal()],
        {"a": Equal()},
        {1: 2},
        Number(3),
        torch.ones(2).as_subclass(Liar),
        {1, 2},
        np.ones(2),
        b"bytes",
        1j,
        torch.ones(2).to_sparse(),
        torch.ones(2, device="meta"),
        Fraction(10**400),
        Decimal("sNaN"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_only_exact_types_are_judged(value):
    with pytest.raises(UnfitError) as error:
        plain({"y": value})
    assert str(error.value).startswith("`y")
    assert run_case(doubling(), lambda x: value, Case("c", {"x": 1})).kind == "unsafe"


def test_too_deep_a_nesting_is_refused():
    value = []
    value.append(value)
    with pytest.raises(UnfitError, match="nested more than"):
        plain(value)


def test_plain_values_are_copies_in_exact_types():
    tensor = torch.ones(2, requires_grad=True)
    values = plain(
        {"a": (1, np.float64(2.5), np.int64(3), np.bool_(True)), "t": tensor, "p": torch.nn.Parameter(tensor)}
    )
    assert values["a"] == [1, 2.5, 3, True]
    assert [type(v) for v in values["a"]] == [int, float, int, bool]
    assert not values["t"].requires_grad
    assert type(values["p"]) is torch.Tensor
    with torch.no_grad():
        tensor.zero_()
    assert torch.equal(values["t"], torch.ones(2))


def test_fractions_decimals_and_arrays_without_dimensions_are_numbers():
    values = plain([Fraction(1, 2), Decimal("0.25"), np.array(3.0), np.array(True)])
    assert values == [0.5, 0.25, 3.0, True]
    assert [type(v) for v in values] == [float, float, float, bool]


def test_same_sees_bits_and_types():
    one_nan, another = ({"a": [float("nan"), torch.tensor([float("nan")])]} for _ in range(2))
    assert same(one_nan, another)
    assert not same(1, 1.0)
    assert not same(torch.zeros(2), torch.zeros(2).double())
    assert not same([1], [1, 2])
    assert not same({"a": 1}, {"b": 1})


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (3, "3"),
        (1, torch.tensor(True)),
        (True, torch.tensor(1)),
        (1.0, torch.ones(2)),
        (torch.tensor(1.0), 1.0),
        ([1], torch.tensor(1)),
        (3, torch.tensor(4)),
        ("b", "c"),
        ([1, 2], torch.tensor([1, 2, 3])),
        ({"p": 1, "P": 2}, {"p": 2, "P": 1}),
        ({"a": 1}, {"a": 2, "A": 1}),
    ],
)
def test_another_value_stays_wrong_in_every_form(expected, actual):
    assert compare({"y": expected}, conform({"y": expected}, {"y": actual}), TIGHT)
