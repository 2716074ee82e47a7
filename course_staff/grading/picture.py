"""A class in one picture: how many students have how many points, and who passed which question."""

import statistics
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from matplotlib.figure import Figure

from course_staff.grading.class_summary import QuestionSummary
from course_utils.viz.parts import subplots
from course_utils.viz.plots import bars

_BINS = 10
_MOST_NAMED = 3


def class_figure(points: Sequence[float], maximum: float, questions: Sequence[QuestionSummary]) -> tuple[Figure, str]:
    """Students by their points of `maximum`, and beside it how many passed each question; with the alternative text."""
    height = 1.3 + 0.3 * max(_BINS, len(questions))
    figure, (left, right) = subplots(1, 2, figsize=(10.5, height), layout="constrained", width_ratios=(1, 1.25))
    # Points by hand may exceed the maximum.
    counts, edges = np.histogram(np.minimum(points, maximum), _BINS, (0, maximum))
    students = {f"{low:g} to {high:g}": count for count, (low, high) in zip(counts, pairwise(edges), strict=True)}
    title = f"The median is {statistics.median(points):g} of {maximum:g} points"
    bars(students, title, "students with so many points", unit="", number=".0f", axes=left)
    passed = {" · ".join(filter(None, [q.id, q.level])): q.passed / q.answers for q in questions}
    bars(passed, _fewest(questions), "students who passed", unit="%", number=".0%", axes=right)
    return figure, " ".join(figure.panel_texts)


def _fewest(questions: Sequence[QuestionSummary]) -> str:
    """Which questions were passed most rarely, all of them by name where they are few."""
    lowest_share = min(question.passed / question.answers for question in questions)
    lowest = [question for question in questions if question.passed / question.answers == lowest_share]
    if len(lowest) == 1:
        return f"Fewest students passed {lowest[0].id}{f', rated {lowest[0].level}' if lowest[0].level else ''}"
    if len(lowest) == len(questions):
        return "All questions were passed equally often"
    names = [question.id for question in lowest]
    if len(names) > _MOST_NAMED:
        names[_MOST_NAMED:] = [f"{len(names) - _MOST_NAMED} more"]
    return f"Fewest students passed {', '.join(names[:-1])} and {names[-1]}"
