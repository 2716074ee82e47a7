"""Which mistake an answer made, which hint it has earned, and what it is worth."""

import json

import pytest
import torch
from sample_question import HINTS, doubling

from course_utils.grading.fingerprints import diagnose, outcome_fingerprint
from course_utils.grading.judge import OUTCOME_KINDS, Outcome, explain, judge_answer, judge_case
from course_utils.grading.question import Case


def test_every_ending_has_its_own_sentence():
    kinds = [*OUTCOME_KINDS][1:]
    outcomes = [Outcome(kind, text=f"{kind} it is", line="line 3: y = x") for kind in kinds]
    assert len({explain(doubling(), outcome) for outcome in outcomes}) == len(kinds)
    for kind in kinds:
        verdict = judge_case(doubling(), Case("c", {"x": 1.0}), Outcome(kind, text="the text")).verdict
        assert not verdict.passed
        assert verdict.kind == kind
        assert verdict.sentence.endswith((".", "the text"))
        assert "\n" not in verdict.sentence


def test_changed_inputs_fail_with_right_values():
    verdict = judge_case(doubling(), Case("c", {"x": 1.0}), Outcome("values", {"result": 2.0}, mutated=("x",))).verdict
    assert not verdict.passed
    assert verdict.sentence == "`double` changed its input `x`: work on a copy, or out of place."


def outcome_with(result):
    return Outcome("values", {"result": result})


def outcomes_of(answer, inputs=(1.0, 2.0)):
    return [outcome_with(answer(x)) for x in inputs]


def entry_for(question, **mistakes):
    """A set's entry with mistakes given as functions, as `course release` writes it."""
    cases = question.cases()
    prints = {
        name: {case.name: outcome_fingerprint(outcome_with(answer(**case.inputs))) for case in cases}
        for name, answer in mistakes.items()
    }
    entries = {name: {"sentence": f"this is {name}", "hint": 1, "prints": prints[name]} for name in mistakes}
    return json.loads(json.dumps({"mistakes": entries}))


def test_a_mistake_is_named_and_its_hint_follows():
    question = doubling()
    entry = entry_for(question, squaring=lambda x: x * x + 1e-9, tripling=lambda x: 3 * x)
    result = judge_answer(question, question.cases(), outcomes_of(lambda x: 3.0000001 * x), entry)
    assert (result.mistake, result.diagnosis, result.hint) == ("tripling", "this is tripling", "an outline")
    assert (result.points, result.max_points) == (0, 4)
    assert not result.passed
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
    assert diagnose(entry, {"x = 1e-07": outcome_with(5e-7)}) == "b"


def test_a_mistake_that_fails_on_other_cases_is_not_meant():
    """Both triple the first case; tripling gets the second wrong too, and this answer does not."""
    question = doubling()
    entry = entry_for(question, tripling=lambda x: 3 * x)
    del entry["mistakes"]["tripling"]["prints"]["x = 2.0"]
    entry["cases"] = entry["mistakes"]["tripling"]["fails"] = ["x = 1.0", "x = 2.0"]
    assert judge_answer(question, question.cases(), outcomes_of(lambda x: 3 * x), entry).mistake == "tripling"
    half = [outcome_with(value) for value in (3.0, 4.0)]
    assert judge_answer(question, question.cases(), half, entry).mistake == ""
    assert judge_answer(question, question.cases()[:1], half[:1], entry).mistake == "tripling", "as far as it ran"


def test_of_several_mistakes_in_parts_the_one_that_explains_the_most_is_named():
    question = doubling(parts=True)
    entry = entry_for(question, both=lambda x: 3 * x, first=lambda x: 3 * x)
    del entry["mistakes"]["first"]["prints"]["x = 2.0"]
    for values, mistake in (((3.0, 6.0), "both"), ((3.0, 4.0), "first"), ((3.0, 77.0), "first"), ((2.0, 6.0), "")):
        assert judge_answer(question, question.cases(), [*map(outcome_with, values)], entry).mistake == mistake


def test_hints_are_earned_by_tries():
    question = doubling()
    wrong = outcomes_of(lambda x: 5 * x)
    hints = [judge_answer(question, question.cases(), wrong, tries=tries).hint for tries in (1, 2, 4, 6, 60)]
    assert hints == ["", *HINTS, HINTS[2]]
    stub = [Outcome("untouched")] * 2
    assert judge_answer(question, question.cases(), stub, tries=9).hint == ""


def test_no_hint_goes_with_an_answer_that_never_ended():
    for kind, has_hint in (("timeout", False), ("died", False), ("stuck", False), ("exception", True)):
        result = judge_answer(doubling(), doubling().cases(), [Outcome(kind, text="20 s")] * 2, tries=2)
        assert bool(result.hint) == has_hint, kind


def test_parts_earn_their_share():
    outcomes = [*outcomes_of(lambda x: 2 * x, (1.0,)), *outcomes_of(lambda x: 5 * x, (2.0,))]
    assert judge_answer(doubling(), doubling().cases(), outcomes).points == 0
    assert judge_answer(doubling(parts=True), doubling().cases(), outcomes).points == 2


def test_values_of_another_form_than_the_authors_are_recognized_as_nothing():
    """`recognize` expects values in the question's own form, and an answer may return any other."""
    question = doubling(recognize=lambda expected, actual: f"{expected['result']} is not {actual['result']['deep']}")
    cases = question.cases()
    result = judge_answer(question, cases, [outcome_with({"shallow": 1}), Outcome("values", {})])
    assert (result.points, result.diagnosis) == (0, "")


@pytest.mark.parametrize(
    ("expected", "actual"),
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
def test_another_form_of_what_is_right_is_right(expected, actual):
    question = doubling(lambda x: expected, inputs=(1.0,))
    assert judge_answer(question, question.cases(), [outcome_with(actual)]).passed


def test_a_known_mistake_is_named_in_another_form_too():
    question = doubling(inputs=(1.0,))
    entry = entry_for(question, thrice=lambda x: 3 * x)
    result = judge_answer(question, question.cases(), [outcome_with(torch.tensor(3.0))], entry)
    assert result.mistake == "thrice"
