"""Figures that compare optimizers over several runs each: as bands against steps or seconds, as points against bytes."""

from collections.abc import Mapping, Sequence
from statistics import median

import pandas as pd
from matplotlib.figure import Figure

from course_utils.errors import CourseError
from course_utils.training import History
from course_utils.units import format_bytes
from course_utils.viz.parts import byte_unit, subplots
from course_utils.viz.style import COLORS

_COLORS = ("first", "second", "third", "fourth", "recomputed", "gradients", "activations")
_STYLES = ("-", "--", "-.", ":")
_MARKS = "osD^vP*"

Runs = Mapping[str, Sequence[History]]
"""Names to runs that differ in their seed alone: all of them have the same number of steps."""


def bands_figure(runs: Runs, window: int = 1) -> tuple[Figure, str]:
    """Training loss against steps and against seconds: the median over the runs of each name, in a band from least to most.

    A loss is the mean of its last `window` steps. Raises `CourseError` for more than seven names, and for runs of a name
    that are not equally long.
    """
    _check(runs)
    figure, axes = subplots(1, 2, figsize=(7.6, 3.8), layout="constrained", sharey=True)
    said = []
    for number, (name, histories) in enumerate(runs.items()):
        losses, seconds = _smooth(histories, window), _seconds(histories)
        look = {"color": COLORS[_COLORS[number]], "linestyle": _STYLES[number % len(_STYLES)]}
        for panel, x in zip(axes, (losses.index, seconds), strict=True):
            panel.fill_between(x, losses.min(axis=1), losses.max(axis=1), color=look["color"], alpha=0.2, linewidth=0)
            panel.plot(x, losses.median(axis=1), **look, label=name if panel is axes[0] else None)
        said.append(f"{name} {losses.iloc[-1].median():.2f} after {seconds.iloc[-1]:.1f} s")
    axes[0].set(xlabel="step", ylabel="training loss")
    axes[1].set(xlabel="seconds of training")
    figure.legend(loc="outside upper center", ncols=3)
    return figure, f"Training loss against steps and against seconds; the medians end at: {'; '.join(said)}."


def losses_against_bytes(runs: Runs, bytes_of: Mapping[str, int], what: str, last: int = 20) -> tuple[Figure, str]:
    """Loss over the last `last` steps (median of the runs, least to most) against `bytes_of` each name, called `what`."""
    _check(runs)
    name_of_unit, unit = byte_unit(max(bytes_of.values()))
    figure, axes = subplots(layout="constrained")
    said = []
    for number, (name, histories) in enumerate(runs.items()):
        ends = [sum(history.losses[-last:]) / last for history in histories]
        x, y = bytes_of[name] / unit, median(ends)
        color = COLORS[_COLORS[number]]
        axes.errorbar(
            x, y, [[y - min(ends)], [max(ends) - y]], color=color, marker=_MARKS[number], capsize=4, label=name
        )
        said.append(f"{name} {format_bytes(bytes_of[name])}, {y:.2f}")
    axes.set(xlabel=f"{what} in {name_of_unit}", ylabel=f"training loss, mean of the last {last} steps")
    axes.set_xlim(left=min(0, axes.get_xlim()[0]))
    figure.legend(loc="outside upper center", ncols=3)
    return figure, f"Final training loss against {what}: {'; '.join(said)}."


def _check(runs: Runs) -> None:
    if not 0 < len(runs) <= len(_COLORS):
        raise CourseError(f"One figure compares 1 to {len(_COLORS)} optimizers, not {len(runs)}; draw several figures.")
    for name, histories in runs.items():
        if len({len(history.steps) for history in histories}) != 1:
            raise CourseError(f"The runs of {name} are not equally long; train each for the same number of steps.")


def _smooth(histories: Sequence[History], window: int) -> pd.DataFrame:
    """A column per run, a row per step."""
    columns = {number: history.frame()["loss"] for number, history in enumerate(histories)}
    return pd.DataFrame(columns).rolling(window, min_periods=1).mean()


def _seconds(histories: Sequence[History]) -> pd.Series:
    """Per step, the median over the runs of the seconds since their start."""
    columns = {number: history.frame()["seconds"] for number, history in enumerate(histories)}
    return pd.DataFrame(columns).median(axis=1)
