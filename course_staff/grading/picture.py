"""A class in one picture: how many students have how many points, and who passed which question."""

import statistics
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from course_staff.grading.class_summary import QuestionSummary
from course_utils.viz.parts import subplots
from course_utils.viz.style import COLORS

_BINS = 10
_MOST_NAMED = 3


def class_figure(points: Sequence[float], maximum: float, questions: Sequence[QuestionSummary]) -> tuple[Figure, str]:
    """Students by their points of `maximum`, and beside it how many passed each question; with the alternative text."""
    height = max(3.2, 1.3 + 0.27 * len(questions))
    figure, (left, right) = subplots(1, 2, figsize=(10.5, height), layout="constrained", width_ratios=(1, 1.25))
    counts = _draw_points(left, points, maximum)
    _draw_questions(right, questions)
    median = statistics.median(points)
    by_bin = ", ".join(f"{count} with {low:g} to {high:g}" for low, high, count in counts if count)
    passed = ", ".join(
        f"{question.id}{f' ({question.level})' if question.level else ''} {question.passed} of {question.answers}"
        for question in questions
    )
    return figure, f"Students by points of {maximum:g}: {by_bin}; the median is {median:g}. Passed: {passed}."


def _draw_points(axes: Axes, points: Sequence[float], maximum: float) -> list[tuple[float, float, int]]:
    """The histogram; returns each bin's lower and upper edge and how many students it holds."""
    edges = [maximum * step / _BINS for step in range(_BINS + 1)]
    clipped = [min(value, maximum) for value in points]  # points by hand may exceed the maximum
    counts, _, _ = axes.hist(clipped, bins=edges, color=COLORS["first"], edgecolor=COLORS["paper"])
    median = statistics.median(points)
    axes.axvline(median, color=COLORS["ink"], linestyle="--", linewidth=1.4)
    axes.annotate(
        f"median {median:g}",
        (median, 1),
        (-4 if median > maximum / 2 else 4, -2),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        ha="right" if median > maximum / 2 else "left",
        va="top",
    )
    axes.set(xlim=(0, maximum), ylim=(0, max(counts) * 1.2), xlabel=f"points, of {maximum:g}", ylabel="students")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.grid(axis="x", visible=False)
    axes.set_title(f"The median is {median:g} of {maximum:g} points")
    return [(low, high, int(count)) for low, high, count in zip(edges, edges[1:], counts, strict=False)]


def _draw_questions(axes: Axes, questions: Sequence[QuestionSummary]) -> None:
    """A bar per question, in the set's order; its label names the level."""
    positions = range(len(questions))
    shares = [question.passed / question.answers for question in questions]
    axes.barh(positions, [100 * share for share in shares], color=COLORS["first"], height=0.72)
    for position, share in zip(positions, shares, strict=True):
        axes.text(100 * share + 1.5, position, f"{share:.0%}", va="center", fontsize=9)
    axes.set_yticks(positions, [" · ".join(filter(None, [question.id, question.level])) for question in questions])
    axes.invert_yaxis()
    axes.set(xlim=(0, 112), xlabel="students who passed, in %")
    axes.set_xticks(range(0, 101, 20))
    axes.grid(axis="y", visible=False)
    axes.set_title(_fewest(questions))


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
