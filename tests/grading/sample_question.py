"""A question to double a number, and how an answer is defined and graded in a test."""

import torch

from course_utils.grading.judge import judge_answer
from course_utils.grading.kinds import function
from course_utils.grading.question import Case
from course_utils.grading.run import run_cases

HINTS = ("a nudge", "an outline", "near-code")
FIELDS = {"id": "q1", "title": "T", "points": 3, "difficulty": 1, "minutes": 5, "hints": HINTS, "answer": "answer"}


def doubling(oracle=lambda x: 2 * x, inputs=(1.0, 2.0), **options):
    """The question to double a number, with a case for each of `inputs`."""
    cases = [Case(f"x = {x}", {"x": x}) for x in inputs]
    return function(oracle, **{**FIELDS, "points": 4, "answer": "double", "public": lambda _: cases, **options})


def define(source: str):
    """The object that a cell defines as `answer`."""
    names = {"__name__": "__main__", "torch": torch}
    exec(compile(source, "<cell>", "exec"), names)
    return names["answer"]


def patch(source: str, *pairs: str) -> str:
    """The source with each `old` text, which occurs once, replaced by its `new` one: `old, new, old, new, …`."""
    for old, new in zip(pairs[::2], pairs[1::2], strict=True):
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return source


def grade_answer(question, answer, seed=None):
    """The result on the public cases, or on the hidden ones of a seed."""
    cases = question.cases(seed)
    return judge_answer(question, cases, run_cases(question, answer, cases))


def sentences(question, answer, seed=None) -> list[str]:
    return [verdict.sentence for verdict in grade_answer(question, answer, seed).verdicts if not verdict.passed]
