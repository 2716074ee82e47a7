"""Losses of several runs beside each other: against steps or seconds, with bands over seeds."""

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.figure import Figure

from course_utils.errors import CourseError
from course_utils.training import History
from course_utils.viz.plots import lines
from course_utils.viz.style import SERIES
from course_utils.viz.words import seeds_of

Runs = Mapping[str, Sequence[History]]
"""Names to runs that differ in their seed alone: all of them have the same number of steps."""


def losses_over_seeds(
    runs: Runs, window: int = 5, reference: str | None = None, level: tuple[str, float] | None = None, title: str = ""
) -> tuple[Figure, str]:
    """Training loss against steps: the mean over the runs of each name, and their range.

    A loss is the mean of its last `window` steps. With `reference` it is how far each other name's loss lies above that of
    the reference, seed by seed. `level` names a loss to compare with. Raises `CourseError` for more than seven names, and for
    runs of a name that are not equally long.
    """
    if not 0 < len(runs) <= len(SERIES):
        raise CourseError(f"One figure compares 1 to {len(SERIES)} runs, not {len(runs)}; draw several figures.")
    for name, histories in runs.items():
        if len({len(history.steps) for history in histories}) != 1:
            raise CourseError(f"The runs of {name} are not equally long; train each for the same number of steps.")
    data = {name: _smooth(histories, window) for name, histories in runs.items()}
    levels, y = dict([level]) if level else {}, "training loss"
    if reference:
        data = {name: losses - data[reference] for name, losses in data.items() if name != reference}
        levels, y = {reference: 0.0}, f"loss minus {reference}'s"  # longer names do not fit beside the axis
    y += f", mean of {window} steps" if window > 1 else ""
    by_step = {name: zip(losses.index, losses.to_numpy(), strict=True) for name, losses in data.items()}
    styles = dict.fromkeys(levels, ("ink", ":"))
    number = "+.3f" if reference else ".2f"
    figure, alt = lines(by_step, title, y=y, styles=styles, levels=levels, number=number)
    return figure, f"{seeds_of(max(map(len, runs.values())))} {alt}"


def _smooth(histories: Sequence[History], window: int) -> pd.DataFrame:
    """A column per run, a row per step: the mean loss of the last `window` steps."""
    losses = pd.concat([history.frame()["loss"] for history in histories], axis=1, ignore_index=True)
    return losses.rolling(window, min_periods=1).mean()
