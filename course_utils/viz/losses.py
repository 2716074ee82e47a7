"""Losses of several runs beside each other: against steps or seconds, with bands over seeds."""

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.figure import Figure

from course_utils.errors import CourseError
from course_utils.training import History
from course_utils.units import format_counted
from course_utils.viz.parts import subplots
from course_utils.viz.style import COLORS, LINES, SERIES

Runs = Mapping[str, Sequence[History]]
"""Names to runs that differ in their seed alone: all of them have the same number of steps."""


def losses_over_seeds(
    runs: Runs,
    window: int = 5,
    reference: str | None = None,
    level: tuple[str, float] | None = None,
    title: str | None = None,
) -> tuple[Figure, str]:
    """Training loss against steps: the mean over the runs of each name, and their range.

    A loss is the mean of its last `window` steps. With `reference` it is how far each other name's loss lies above that of
    the reference, seed by seed. `level` names a loss to compare with, `title` stands above. Raises `CourseError` for more than
    seven names, and for runs of a name that are not equally long.
    """
    if not 0 < len(runs) <= len(SERIES):
        raise CourseError(f"One figure compares 1 to {len(SERIES)} runs, not {len(runs)}; draw several figures.")
    for name, histories in runs.items():
        if len({len(history.steps) for history in histories}) != 1:
            raise CourseError(f"The runs of {name} are not equally long; train each for the same number of steps.")
    figure, axes = subplots(layout="constrained")
    what = f"training loss less that of {reference}" if reference else "training loss"
    ends = []
    for number, (name, histories) in enumerate(runs.items()):
        if name == reference:
            continue
        losses = _smooth(histories, window) - (_smooth(runs[reference], window) if reference else 0)
        steps, color = losses.index, COLORS[SERIES[number]]
        axes.fill_between(steps, losses.min(axis=1), losses.max(axis=1), color=color, alpha=0.2, linewidth=0)
        axes.plot(steps, losses.mean(axis=1), label=name, color=color, linestyle=LINES[number % len(LINES)])
        end = losses.iloc[-1]
        if reference:
            ends.append(f"{name} ends {end.mean():+.3f} from it ({end.min():+.3f} to {end.max():+.3f})")
        else:
            ends.append(f"{name} ends at {end.mean():.2f} ({end.min():.2f} to {end.max():.2f})")
    if reference:
        axes.axhline(0, color=COLORS["ink"], linewidth=0.8)
    else:
        axes.set(ylim=(0, None))
    if level:
        at, height = level
        axes.axhline(height, color=COLORS["ink"], linestyle=":", linewidth=1.2)
        place = {"xytext": (-4, 3), "textcoords": "offset points", "ha": "right", "fontsize": 9}
        axes.annotate(f"{at}: {height:.2f}", (1, height), xycoords=axes.get_yaxis_transform(), **place)
        ends.append(f"{at} is at {height:.2f}")
    axes.set(xlabel="step", ylabel=what + (f", mean of {window} steps" if window > 1 else ""))
    figure.legend(loc="outside upper center", ncols=min(len(runs), 3), title=title)
    seeds = format_counted(max(map(len, runs.values())), "seed")
    return figure, f"{what[0].upper() + what[1:]}, mean and range over {seeds}: {'; '.join(ends)}."


def _smooth(histories: Sequence[History], window: int) -> pd.DataFrame:
    """A column per run, a row per step: the mean loss of the last `window` steps."""
    losses = pd.concat([history.frame()["loss"] for history in histories], axis=1, ignore_index=True)
    return losses.rolling(window, min_periods=1).mean()
