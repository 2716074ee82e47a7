"""Of the repository: each command that stands in docs/plan.md prints the answer below it."""

import pytest

from benchmarks.questions import answer, questions

QUESTIONS = questions()


def test_every_question_has_an_answer():
    assert len(QUESTIONS) >= 9
    assert all(question["answer"].strip() for question in QUESTIONS)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question["command"])
def test_the_answer_is_what_is_printed(question):
    assert answer(question["command"]) == question["answer"]
