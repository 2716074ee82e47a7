"""The first difference between values: in which place, by how much, in one sentence."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course_utils.grading.compare import Rule, at_most, compare, distance_in_tolerances
from course_utils.grading.question import Tolerance

TIGHT = Tolerance(1e-9, 1e-12)


def sentence_of(expected, actual, tolerance=TIGHT) -> str | None:
    difference = compare({"y": expected}, {"y": actual}, tolerance)
    return difference and difference.sentence()


@pytest.mark.parametrize(
    ("expected", "actual", "sentence"),
    [
        (1.0, 1.5, "`y` is 1.5 but should be 1."),
        (1.0, 1.0 + 2e-9, "`y` is 1.000000002 but should be 1, 2 times as far off as is allowed."),
        (1.0, 1.0 + 1.02e-9, "`y` is 1.000000001 but should be 1, a little further off than is allowed."),
        (1, 2, "`y` is 2 but should be 1."),
        (1.0, math.nan, "`y` is NaN but should be 1."),
        (1.0, math.inf, "`y` is inf but should be 1."),
        (True, 1, "`y` is a number where a truth value is expected."),
        (1, True, "`y` is a truth value where a number is expected."),
        (1.0, "1.0", "`y` is a string where a number is expected."),
        (1.0, None, "`y` is None where a number is expected."),
        (None, 0, "`y` is a number where None is expected."),
        ("a", "b", "`y` is `b` but should be `a`."),
        (1.0, torch.tensor(1.0), "`y` is a tensor where a number is expected."),
        (torch.zeros(2), [0.0, 0.0], "`y` is a list or tuple where a tensor is expected."),
        (torch.zeros(2), torch.zeros(2).double(), "`y` has the dtype torch.float64 where torch.float32 is expected."),
        (torch.zeros(2), torch.zeros(3), "`y` has the shape (3,) where (2,) is expected."),
        (torch.zeros(2), torch.zeros(2, device="meta"), "`y` is on the device meta where cpu is expected."),
        (torch.zeros(3), torch.tensor([0, math.nan, 1]), "`y[1]` is NaN but should be 0; 2 of 3 elements differ."),
        (torch.tensor([1j]), torch.tensor([0.5 + 1j]), "`y[0]` is 0.5+1j but should be 0+1j."),
        ([1, 2], [1], "`y` has the length 1 where 2 is expected."),
        ([1, 2], [1, 3], "`y[1]` is 3 but should be 2."),
        ({"a": 1}, {}, "`y · a` is missing."),
        ({"a": 1}, {"b": 2, "A": 1}, "`y · a` is missing; not asked for: `b`, `A`."),
        ({"a": 1}, dict.fromkeys("bcde"), "`y · a` is missing; not asked for: `b`, `c`, `d` and more."),
        ({}, {"a": 1}, "`y · a` is there, but was not asked for."),
    ],
)
def test_each_difference_has_its_own_sentence(expected, actual, sentence):
    assert sentence_of(expected, actual) == sentence


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (1.0, 1.0 + 5e-10),
        (1, 1.0),
        (math.nan, math.nan),
        (math.inf, math.inf),
        (10**400, 10**400),
        (torch.tensor([math.nan, math.inf]), torch.tensor([math.nan, math.inf])),
        (torch.tensor(3), torch.tensor(3)),
        (torch.zeros(0), torch.zeros(0)),
    ],
)
def test_what_is_the_same_within_the_tolerance_is_right(expected, actual):
    assert sentence_of(expected, actual) is None


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (math.inf, -math.inf),
        (math.inf, 1e308),
        (1.0, 10**400),
        (1.0, 10**5000),
        (math.nan, 1.0),
        (torch.tensor([math.inf]), torch.tensor([1.0])),
        (torch.tensor([1.0]), torch.tensor([math.inf])),
        (torch.tensor([2**53]), torch.tensor([2**53 + 1])),
        (torch.tensor([1 + 1j]), torch.tensor([1 - 1j])),
    ],
    ids=lambda value: type(value).__name__,
)
def test_infinities_and_large_whole_numbers_are_told_apart(expected, actual):
    assert len(sentence_of(expected, actual)) < 200


def test_the_first_step_tensor_and_index_are_named():
    right = {"steps": [{"weight": torch.ones(2, 2), "bias": torch.ones(2)} for _ in range(3)]}
    wrong = {"steps": [{name: t.clone() for name, t in step.items()} for step in right["steps"]]}
    wrong["steps"][1]["bias"][1] = 1.5
    wrong["steps"][2]["weight"][0, 0] = 7
    assert compare(right, wrong, Tolerance(0.1, 0.0)).sentence() == (
        "After step 2, `bias[1]` is 1.5 but should be 1, 5 times as far off as is allowed; 1 of 2 elements differ."
    )


def test_a_complex_number_is_as_many_tolerances_off_as_its_distance_is():
    sentence = sentence_of(torch.tensor([3 + 4j]), torch.tensor([3 + 5j]), Tolerance(0.1, 0.0))
    assert sentence == "`y[0]` is 3+5j but should be 3+4j, 2 times as far off as is allowed."


def test_a_guarded_sentence_keeps_the_right_value_to_itself():
    for expected, actual in [(3.25, 1.0), ("b", "a"), (torch.tensor([3.25]), torch.tensor([1.0]))]:
        sentence = compare({"y": expected}, {"y": actual}, TIGHT).sentence(reveal=False)
        assert "3.25" not in sentence
        assert "`b`" not in sentence


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(1e-12, 1.0))
def test_distance_is_in_units_of_the_tolerance(value, relative):
    tolerance = Tolerance(relative, 1e-9)
    allowed = 1e-9 + relative * abs(value)
    actual = value + 3 * allowed
    distance = distance_in_tolerances(value, actual, tolerance)
    if math.isfinite(actual):
        assert distance == pytest.approx(3, rel=1e-2) or abs(value) * 1e-16 > allowed * 1e-2
    else:
        assert distance == math.inf


def test_rules_and_limits_stand_in_for_values():
    assert sentence_of(at_most(10), 10) is None
    assert sentence_of(at_most(10), 11) == "`y` is 11 where at most 10 is allowed."
    assert sentence_of(at_most(10), "few") == "`y` is a string where a number is expected."
    assert sentence_of(at_most(10), math.nan) == "`y` is nan where at most 10 is allowed."
    broken = Rule(lambda value: None if value["bytes"] < 5 else "is too large")
    assert sentence_of(broken, {"bytes": 9}) == "`y` is too large."
    assert "cannot be judged by the rule (KeyError: 'bytes')" in sentence_of(broken, {})
