"""What is said of values: the first difference, in which place, by how much; which mistake it is; what it is worth."""

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sample_question import HINTS, doubling

from course_utils.grading.compare import Rule, at_most, compare
from course_utils.grading.fingerprints import diagnose, fingerprint, outcome_print
from course_utils.grading.judge import KINDS, Outcome, explain, judge_answer, judge_case
from course_utils.grading.loading import load_set, question_from
from course_utils.grading.question import Case, Tolerance
from course_utils.grading.values import conform

TIGHT = Tolerance(1e-9, 1e-12)


def sentence_of(expected, got, tolerance=TIGHT) -> str | None:
    difference = compare({"y": expected}, {"y": got}, tolerance)
    return difference and difference.sentence()


@pytest.mark.parametrize(
    ("expected", "got", "sentence"),
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
        ([1, 2], [1], "`y` has the length 1 where 2 is expected."),
        ([1, 2], [1, 3], "`y[1]` is 3 but should be 2."),
        ({"a": 1}, {}, "`y · a` is missing."),
        ({"a": 1}, {"b": 2, "A": 1}, "`y · a` is missing; not asked for: `b`, `A`."),
        ({"a": 1}, dict.fromkeys("bcde"), "`y · a` is missing; not asked for: `b`, `c`, `d` and more."),
        ({}, {"a": 1}, "`y · a` is there, but was not asked for."),
    ],
)
def test_each_difference_has_its_own_sentence(expected, got, sentence):
    assert sentence_of(expected, got) == sentence


@pytest.mark.parametrize(
    ("expected", "got"),
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
def test_what_is_the_same_within_the_tolerance_is_right(expected, got):
    assert sentence_of(expected, got) is None


@pytest.mark.parametrize(
    ("expected", "got"),
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
def test_infinities_and_large_whole_numbers_are_told_apart(expected, got):
    assert len(sentence_of(expected, got)) < 200


def test_the_first_step_tensor_and_index_are_named():
    right = {"steps": [{"weight": torch.ones(2, 2), "bias": torch.ones(2)} for _ in range(3)]}
    wrong = {"steps": [{name: t.clone() for name, t in step.items()} for step in right["steps"]]}
    wrong["steps"][1]["bias"][1] = 1.5
    wrong["steps"][2]["weight"][0, 0] = 7
    difference = compare(right, wrong, Tolerance(0.1, 0.0))
    assert (difference.step, difference.name, difference.index) == (2, "bias", (1,))
    assert (difference.expected, difference.got, difference.distance) == (1.0, 1.5, pytest.approx(5.0))
    assert difference.sentence() == (
        "After step 2, `bias[1]` is 1.5 but should be 1, 5 times as far off as is allowed; 1 of 2 elements differ."
    )


def test_a_guarded_sentence_keeps_the_right_value_to_itself():
    for expected, got in [(3.25, 1.0), ("b", "a"), (torch.tensor([3.25]), torch.tensor([1.0]))]:
        sentence = compare({"y": expected}, {"y": got}, TIGHT).sentence(reveal=False)
        assert "3.25" not in sentence
        assert "`b`" not in sentence


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(1e-12, 1.0))
def test_distance_is_in_units_of_the_tolerance(value, relative):
    tolerance = Tolerance(relative, 1e-9)
    allowed = 1e-9 + relative * abs(value)
    got = value + 3 * allowed
    difference = compare({"y": value}, {"y": got}, tolerance)
    if math.isfinite(got):
        assert difference.distance == pytest.approx(3, rel=1e-2) or abs(value) * 1e-16 > allowed * 1e-2
    else:
        assert difference.distance == math.inf


def test_rules_and_limits_stand_in_for_values():
    assert sentence_of(at_most(10), 10) is None
    assert sentence_of(at_most(10), 11) == "`y` is 11 where at most 10 is allowed."
    assert sentence_of(at_most(10), "few") == "`y` is a string where a number is expected."
    assert sentence_of(at_most(10), math.nan) == "`y` is nan where at most 10 is allowed."
    broken = Rule(lambda got: None if got["bytes"] < 5 else "is too large")
    assert sentence_of(broken, {"bytes": 9}) == "`y` is too large."
    assert "cannot be judged by the rule (KeyError: 'bytes')" in sentence_of(broken, {})


def test_every_ending_has_its_own_sentence():
    sentences = [
        explain(doubling(), Outcome(kind, text=f"{kind} it is", line="line 3: y = x")) for kind in [*KINDS][1:]
    ]
    assert len(set(sentences)) == len(sentences)
    for kind in [*KINDS][1:]:
        verdict = judge_case(doubling(), Case("c", {"x": 1.0}), Outcome(kind, text="the text")).verdict
        assert (verdict.passed, verdict.kind) == (False, kind)
        assert verdict.sentence.endswith((".", "the text"))
        assert "\n" not in verdict.sentence


def test_changed_inputs_fail_with_right_values():
    verdict = judge_case(doubling(), Case("c", {"x": 1.0}), Outcome("values", {"result": 2.0}, mutated=("x",))).verdict
    assert not verdict.passed
    assert verdict.sentence == "`double` changed its input `x`: work on a copy, or out of place."


def outcomes_of(answer, inputs=(1.0, 2.0)):
    return [Outcome("values", {"result": answer(x)}) for x in inputs]


def entry_for(question, **mistakes):
    """A set's entry with mistakes given as functions, as `course release` writes it."""
    prints = {
        name: {
            case.name: outcome_print(Outcome("values", {"result": answer(**case.inputs)})) for case in question.cases()
        }
        for name, answer in mistakes.items()
    }
    made = {name: {"sentence": f"this is {name}", "hint": 1, "prints": expected} for name, expected in prints.items()}
    return json.loads(json.dumps({"mistakes": made}))


def test_a_mistake_is_named_and_its_hint_follows():
    question = doubling()
    entry = entry_for(question, squaring=lambda x: x * x + 1e-9, tripling=lambda x: 3 * x)
    result = judge_answer(question, question.cases(), outcomes_of(lambda x: 3.0000001 * x), entry)
    assert (result.mistake, result.diagnosis, result.hint) == ("tripling", "this is tripling", "an outline")
    assert (result.points, result.of, result.passed) == (0, 4, False)
    other = judge_answer(question, question.cases(), outcomes_of(lambda x: 5 * x), entry)
    assert (other.mistake, other.diagnosis) == ("", "")
    right = judge_answer(question, question.cases(), outcomes_of(lambda x: 2 * x), entry)
    assert (right.passed, right.points, right.diagnosis, right.hint) == (True, 4, "", "")


def test_hidden_cases_of_the_same_name_do_not_blur_the_diagnosis():
    question = doubling()
    entry = entry_for(question, tripling=lambda x: 3 * x)
    cases = question.cases() + [Case("x = 1.0", {"x": 50.0})]
    assert judge_answer(question, cases, outcomes_of(lambda x: 3 * x, (1.0, 2.0, 50.0)), entry).mistake == "tripling"


def test_the_nearest_of_several_mistakes_counts():
    question = doubling(inputs=(1e-7,))
    entry = entry_for(question, a=lambda x: 3 * x, b=lambda x: 5 * x)
    assert diagnose(entry, {"x = 1e-07": Outcome("values", {"result": 5e-7})}) == "b"


def test_a_mistake_that_fails_on_other_cases_is_not_meant():
    """Both triple the first case; tripling gets the second wrong too, and this answer does not."""
    question = doubling()
    entry = entry_for(question, tripling=lambda x: 3 * x)
    del entry["mistakes"]["tripling"]["prints"]["x = 2.0"]
    entry["cases"], entry["mistakes"]["tripling"]["fails"] = ["x = 1.0", "x = 2.0"], ["x = 1.0", "x = 2.0"]
    assert judge_answer(question, question.cases(), outcomes_of(lambda x: 3 * x), entry).mistake == "tripling"
    half = [Outcome("values", {"result": value}) for value in (3.0, 4.0)]
    assert judge_answer(question, question.cases(), half, entry).mistake == ""
    assert judge_answer(question, question.cases()[:1], half[:1], entry).mistake == "tripling", "as far as it ran"


def test_of_several_mistakes_in_parts_the_one_that_explains_the_most_is_named():
    question = doubling(parts=True)
    entry = entry_for(question, both=lambda x: 3 * x, first=lambda x: 3 * x)
    del entry["mistakes"]["first"]["prints"]["x = 2.0"]
    named = {
        values: judge_answer(
            question, question.cases(), [Outcome("values", {"result": v}) for v in values], entry
        ).mistake
        for values in ((3.0, 6.0), (3.0, 4.0), (3.0, 77.0), (2.0, 6.0))
    }
    assert list(named.values()) == ["both", "first", "first", ""]


def test_how_a_run_ends_is_part_of_a_fingerprint():
    entry = {
        "mistakes": {
            "fails": {"prints": {"c": outcome_print(Outcome("exception", text="KeyError: 'a'", line="line 1"))}}
        }
    }
    assert diagnose(entry, {"c": Outcome("exception", text="KeyError: 'b'")}) == "fails"
    assert diagnose(entry, {"c": Outcome("exception", text="TypeError: b")}) is None
    assert diagnose(entry, {}) is None


def test_hints_are_earned_by_tries():
    question = doubling()
    wrong = outcomes_of(lambda x: 5 * x)
    shown = [judge_answer(question, question.cases(), wrong, tries=tries).hint for tries in (1, 2, 4, 6, 60)]
    assert shown == ["", *HINTS, HINTS[2]]
    stub = [Outcome("untouched")] * 2
    assert judge_answer(question, question.cases(), stub, tries=9).hint == ""


def test_no_hint_goes_with_an_answer_that_never_ended():
    entry = load_set("03_adamw")["questions"][0]
    question = question_from(entry)
    for kind, hinted in (("timeout", False), ("died", False), ("stuck", False), ("exception", True)):
        result = judge_answer(question, question.cases(), [Outcome(kind, text="20 s")] * 5, entry, tries=2)
        assert bool(result.hint) == hinted, kind


def test_parts_earn_their_share():
    outcomes = [*outcomes_of(lambda x: 2 * x, (1.0,)), *outcomes_of(lambda x: 5 * x, (2.0,))]
    assert judge_answer(doubling(), doubling().cases(), outcomes).points == 0
    assert judge_answer(doubling(parts=True), doubling().cases(), outcomes).points == 2


def test_a_fingerprint_is_small_plain_and_stable():
    values = {
        "steps": [{"w": torch.arange(1000.0) / 3, "n": math.nan, "big": 10**5000} for _ in range(100)],
        "z": torch.ones(2, dtype=torch.complex64),
    }
    text = json.dumps(fingerprint(values), allow_nan=False)
    assert len(text) < 2000
    assert json.loads(text) == fingerprint(values)
    first = fingerprint(values)["steps"]["entries"][0]["w"]
    assert first["numbers"][:2] == [0.0, 47.3333]
    assert (first["numbers"][-1], first["shape"], first["dtype"]) == (333.0, [1000], "torch.float32")


def test_whole_numbers_of_a_fingerprint_are_exact():
    """An account that is off by less than the rounding of floats is not the known mistake beside it."""
    entry = {"mistakes": {"one too few": {"prints": {"c": outcome_print(Outcome("values", {"bytes": 497_759_528}))}}}}
    for number in (497_759_528, 497_759_528.0):
        assert diagnose(entry, {"c": Outcome("values", {"bytes": number})}) == "one too few"
    for number in (497_759_824, 497_759_824.0, 497_759_527):
        assert diagnose(entry, {"c": Outcome("values", {"bytes": number})}) is None


def test_values_of_another_form_than_the_authors_are_recognized_as_nothing():
    """An author's own function reads the values as its question gives them, and what strangers send has any form."""
    question = doubling(recognize=lambda right, got: f"{right['result']} is not {got['result']['deep']}")
    cases = question.cases()
    result = judge_answer(question, cases, [Outcome("values", {"result": {"shallow": 1}}), Outcome("values", {})])
    assert (result.points, result.diagnosis) == (0, "")


@pytest.mark.parametrize(
    ("expected", "got"),
    [
        (3, torch.tensor(3)),
        (3, torch.tensor([3.0])),
        (0.5, torch.tensor(0.5, dtype=torch.float64)),
        (True, torch.tensor(True)),
        ("bf16", " BF16 "),
        ([1, 2.5], torch.tensor([1.0, 2.5])),
        ([{"a": {"b": [1, "x"]}}], [{"A ": {"b": [torch.tensor(1), "X"]}}]),
    ],
)
def test_another_form_of_what_is_right_is_right(expected, got):
    question = doubling(lambda x: expected)
    case = question.cases()[0]
    assert judge_case(question, case, Outcome("values", {"result": got})).verdict.passed
    assert judge_answer(question, [case], [Outcome("values", {"result": got})]).passed


@pytest.mark.parametrize(
    ("expected", "got"),
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
def test_another_value_stays_wrong_in_every_form(expected, got):
    assert compare({"y": expected}, conform({"y": expected}, {"y": got}), TIGHT)


def test_a_known_mistake_is_named_in_another_form_too():
    entry = {"mistakes": {"thrice": {"sentence": "S", "hint": 0, "prints": {"x = 1.0": outcome_print(of(3.0))}}}}
    result = judge_answer(doubling(inputs=(1.0,)), doubling(inputs=(1.0,)).cases(), [of(torch.tensor(3.0))], entry)
    assert result.mistake == "thrice"


def of(result):
    return Outcome("values", {"result": result})
