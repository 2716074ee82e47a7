"""One small question, asked by several tests."""

from course_utils.grading.kinds import function
from course_utils.grading.question import Case

HINTS = ("a nudge", "an outline", "near-code")


def ask(oracle=lambda x: 2 * x, inputs=(1.0, 2.0), **options):
    """To double a number, with a case for each of `inputs`."""
    cases = [Case(f"x = {x}", {"x": x}) for x in inputs]
    asked = {"id": "q1", "title": "Doubling", "points": 4, "difficulty": 1, "minutes": 5, "hints": HINTS}
    return function(oracle, **{**asked, "answer": "double", "public": lambda _: cases, **options})
