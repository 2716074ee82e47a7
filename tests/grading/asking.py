"""What several tests ask, and how they have it judged."""

import torch

from course_utils.grading.judge import grade
from course_utils.grading.kinds import function
from course_utils.grading.question import Case
from course_utils.grading.run import run_case

HINTS = ("a nudge", "an outline", "near-code")
ASKED = {"id": "q1", "title": "T", "points": 3, "difficulty": 2, "minutes": 5, "hints": HINTS, "answer": "answer"}


def ask(oracle=lambda x: 2 * x, inputs=(1.0, 2.0), **options):
    """To double a number, with a case for each of `inputs`."""
    cases = [Case(f"x = {x}", {"x": x}) for x in inputs]
    asked = {"id": "q1", "title": "Doubling", "points": 4, "difficulty": 1, "minutes": 5, "hints": HINTS}
    return function(oracle, **{**asked, "answer": "double", "public": lambda _: cases, **options})


def defined(source: str):
    names = {"__name__": "__main__", "torch": torch}
    exec(compile(source, "<cell>", "exec"), names)
    return names["answer"]


def result(question, answer, seed=None):
    cases = question.cases() if seed is None else question.cases(seed)
    return grade(question, cases, [run_case(question, answer, case) for case in cases])
