"""Losses of several runs beside each other: against steps or seconds, with bands over seeds."""

from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.figure import Figure

from course_utils.errors import CourseError
from course_utils.training import History
from course_utils.viz.parts import require_few, subplots
from course_utils.viz.style import COLORS, LINES, SERIES

Runs = Mapping[str, Sequence[History]]
"""Names to runs that differ in their seed alone: all of them have the same number of steps."""


def compare_losses(
    runs: Mapping[str, History], window: int = 1, level: tuple[str, float] | None = None
) -> tuple[Figure, str]:
    """The loss of runs against steps, each the mean of its last `window` steps; `level` names a loss to compare with.

    Later runs are drawn thinner, so that one that lies on another leaves it visible. Raises `CourseError` for more than seven.
    """
    require_few(runs)
    figure, axes = subplots()
    said = []
    for number, (name, history) in enumerate(runs.items()):
        smooth = _smooth([history], window)[0]
        width = 0.8 + 2.4 * (1 - number / len(runs))
        axes.plot(smooth.index, smooth, color=COLORS[SERIES[number]], linewidth=width, label=name)
        said.append(f"{name} from {smooth.iloc[0]:.2f} to {smooth.iloc[-1]:.2f}")
    if level is not None:
        axes.axhline(level[1], color=COLORS["ink"], linestyle=":", linewidth=1.2, label=level[0])
        said.append(f"{level[0]} is at {level[1]:.2f}")
    axes.set(xlabel="step", ylabel="training loss")
    axes.legend()
    return figure, f"Training loss against steps: {'; '.join(said)}."


def losses_over_seeds(runs: Runs, window: int = 5, seconds: bool = False) -> tuple[Figure, str]:
    """Training loss against steps, with `seconds` against seconds too: the mean over the runs of each name, and their range.

    A loss is the mean of its last `window` steps. Raises `CourseError` for more than seven names, and for runs of a name
    that are not equally long.
    """
    _require_equal_length(runs)
    figure, panels = subplots(1, 2 if seconds else 1, layout="constrained", sharey=True, squeeze=False)
    said = []
    for number, (name, histories) in enumerate(runs.items()):
        losses = _smooth(histories, window)
        # Per step, the median over the runs of the seconds since their start.
        clock = pd.concat([history.frame()["seconds"] for history in histories], axis=1).median(axis=1)
        for panel, x in zip(panels[0], (losses.index, clock), strict=False):
            _draw_band(panel, x, losses, number, name if panel is panels[0, 0] else None)
        end, took = losses.iloc[-1], f" after {clock.iloc[-1]:.1f} s" if seconds else ""
        said.append(f"{name} ends at {end.mean():.2f} ({end.min():.2f} to {end.max():.2f}){took}")
    for panel, label in zip(panels[0], ("step", "seconds of training"), strict=False):
        panel.set(xlabel=label, ylim=(0, None))
    panels[0, 0].set(ylabel="training loss")
    figure.legend(loc="outside upper center", ncols=min(len(runs), 3))
    return figure, f"Training loss, mean and range over {max(map(len, runs.values()))} seeds: {'; '.join(said)}."


def losses_apart(runs: Runs, reference: str, window: int = 5) -> tuple[Figure, str]:
    """How far each name's loss lies above that of `reference`, seed by seed: the mean over seeds, and their range.

    A loss is the mean of its last `window` steps. Raises `CourseError` as `losses_over_seeds` does.
    """
    _require_equal_length(runs)
    figure, axes = subplots(layout="constrained")
    zero, said = _smooth(runs[reference], window), []
    for number, (name, histories) in enumerate(runs.items()):
        if name == reference:
            continue
        apart = _smooth(histories, window) - zero
        _draw_band(axes, apart.index, apart, number, name)
        end = apart.iloc[-1]
        said.append(f"{name} ends {end.mean():+.3f} from it ({end.min():+.3f} to {end.max():+.3f})")
    axes.axhline(0, color=COLORS["ink"], linewidth=0.8)
    axes.set(xlabel="step", ylabel=f"training loss less that of {reference}")
    axes.legend()
    seeds = f"mean and range over {zero.shape[1]} seeds"
    return figure, f"Training loss less that of {reference}, {seeds}: {'; '.join(said)}."


def _require_equal_length(runs: Runs) -> None:
    require_few(runs)
    for name, histories in runs.items():
        if len({len(history.steps) for history in histories}) != 1:
            raise CourseError(f"The runs of {name} are not equally long; train each for the same number of steps.")


def _smooth(histories: Sequence[History], window: int) -> pd.DataFrame:
    """A column per run, a row per step: the mean loss of the last `window` steps."""
    losses = pd.concat([history.frame()["loss"] for history in histories], axis=1, ignore_index=True)
    return losses.rolling(window, min_periods=1).mean()


def _draw_band(axes, x, values: pd.DataFrame, number: int, label: str | None) -> None:
    color, style = COLORS[SERIES[number]], LINES[number % len(LINES)]
    axes.fill_between(x, values.min(axis=1), values.max(axis=1), color=color, alpha=0.2, linewidth=0)
    axes.plot(x, values.mean(axis=1), color=color, linestyle=style, label=label)
