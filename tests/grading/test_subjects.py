"""Tests that learners write, put to right and wrong answers."""

import pytest
from sample_question import FIELDS

from course_utils.errors import CourseError
from course_utils.grading.fingerprints import outcome_fingerprint
from course_utils.grading.judge import judge_answer
from course_utils.grading.kinds import kills
from course_utils.grading.run import run_cases
from course_utils.grading.subjects import Zoo, with_subjects

RIGHT = {"a product": "def double(x):\n    '''Right.'''\n    return 2 * x", "a sum": "def double(x): return x + x"}
WRONG = {"a square": "def double(x): return x * x", "two more": "def double(x): return x + 2", "none": "double = abs"}


QUESTION = kills("double", right=RIGHT, wrong=WRONG, **{**FIELDS, "points": 6})


def grade(test, question=QUESTION, cases=None, entry=None, seconds=5.0):
    cases = cases or question.cases()
    return judge_answer(question, cases, run_cases(question, test, cases, seconds), entry)


def thorough(double):
    assert double(3) == 6
    return double(-1) == -2


def test_every_wrong_answer_that_is_refused_earns_its_share():
    assert grade(thorough).points == 6
    assert grade(lambda double: double(2) == 4).points == 2, "x², x + 2 and 2x are 4 at 2; |x| is not"
    assert grade(lambda double: True).points == 0


def test_a_test_that_refuses_a_right_answer_earns_nothing_and_is_told():
    result = grade(lambda double: double.__doc__ is not None)
    assert result.points == 0
    result = grade(lambda double: False)
    assert result.points == 0
    assert "A right answer is refused" in result.diagnosis


def test_who_loses_all_by_a_right_answer_is_not_told_of_a_wrong_one():
    """A known mistake accepts a wrong answer of the check; this test accepts it too, and refuses a right one of the grading."""
    hidden_right = {"the wrong type": "def double(x): return 2.0 * x"}
    question = with_subjects(QUESTION, hidden_right, WRONG)
    public = question.cases()
    cases = public + question.cases(seed=7)

    def at_two_alone(double):
        return double(2) == 4

    outcomes = run_cases(question, at_two_alone, public, 5.0)
    passes = {case.name for case in public if case.name.endswith(("a square", "two more"))}
    by_case = {case.name: outcome for case, outcome in zip(public, outcomes, strict=True)}
    prints = {name: outcome_fingerprint(by_case[name]) for name in passes}
    entry = {"mistakes": {"two": {"sentence": "At 2 alone.", "hint": 0, "prints": prints}}}

    only_wrong = grade(at_two_alone, question, cases, entry)
    assert (only_wrong.points, only_wrong.mistake, only_wrong.diagnosis) == (2, "two", "At 2 alone.")
    right_too = grade(lambda double: double(2) == 4 and type(double(2)) is int, question, cases, entry)
    assert (right_too.points, right_too.mistake) == (0, "")
    assert "A right answer is refused" in right_too.diagnosis


def test_who_refuses_every_right_answer_is_not_told_of_what_refuses_one():
    class Factor:
        def __rmul__(self, number):
            return number

    def multiplies(double):
        try:
            double(Factor())
        except TypeError:
            return False
        return thorough(double)

    cases = QUESTION.cases()
    outcomes = zip(cases, run_cases(QUESTION, multiplies, cases, 5.0), strict=True)
    prints = {case.name: outcome_fingerprint(outcome) for case, outcome in outcomes if case.name.endswith("a sum")}
    asks = {"sentence": "Asks for a product.", "hint": 0, "prints": prints}
    entry = {"cases": [case.name for case in cases], "mistakes": {"asks": asks}}

    assert grade(multiplies, entry=entry).diagnosis == "Asks for a product."
    assert grade(lambda double: False, entry=entry).mistake == ""


@pytest.mark.parametrize(
    ("test", "kind"),
    [
        (lambda double: __import__("inspect").getsource(double), "exception"),
        (lambda double: 1 / 0, "exception"),
        (lambda double: "yes", "unsafe"),
        (lambda double: exec("while True: pass"), "timeout"),
    ],
    ids=["reads the source", "stops", "says what is no truth value", "loops"],
)
def test_a_test_that_says_nothing_earns_nothing(test, kind):
    result = grade(test, seconds=0.2)
    assert {verdict.kind for verdict in result.verdicts} == {kind}
    assert result.points == 0


def test_the_hidden_zoo_is_another_and_each_case_holds_a_source_alone():
    question = kills("double", right={"a sum": RIGHT["a sum"]}, wrong={}, **FIELDS)
    question = with_subjects(question, RIGHT, WRONG)
    hidden = question.cases(seed=7)
    assert len(hidden) == 5
    assert {tuple(case.inputs) for case in hidden} == {("source",)}
    assert not any("Right." in case.inputs["source"] for case in hidden)
    assert [question.expected(case.inputs)["verdict"] for case in hidden if case.name.startswith("wrong")] == [
        "refused"
    ] * 3
    with pytest.raises(CourseError, match="right and to be wrong"):
        with_subjects(question, RIGHT, {"twice": RIGHT["a sum"]})
    assert Zoo().of == ""
