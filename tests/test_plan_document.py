"""docs/plan.md: each command that stands there prints the answer below it."""

import pytest

from benchmarks.questions import answer, questions

QUESTIONS = questions()


def test_every_question_has_an_answer():
    assert len(QUESTIONS) >= 9
    assert all(asked["answer"].strip() for asked in QUESTIONS)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("asked", QUESTIONS, ids=lambda asked: asked["command"])
def test_the_answer_is_what_is_printed(asked):
    assert answer(asked["command"]) == asked["answer"]
