"""Figures that compare kinds of run, each over several seeds: as bands against steps or seconds, as points against bytes."""

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


def losses_over_seeds(runs: Runs, window: int = 5, seconds: bool = False) -> tuple[Figure, str]:
    """Training loss against steps, with `seconds` against seconds too: the mean over the runs of each name, and their range.

    A loss is the mean of its last `window` steps. Raises `CourseError` for more than seven names, and for runs of a name
    that are not equally long.
    """
    _check(runs)
    figure, panels = subplots(1, 2 if seconds else 1, layout="constrained", sharey=True, squeeze=False)
    said = []
    for number, (name, histories) in enumerate(runs.items()):
        losses = _smooth(histories, window)
        look = {"color": COLORS[_COLORS[number]], "linestyle": _STYLES[number % len(_STYLES)]}
        for panel, x in zip(panels[0], (losses.index, _seconds(histories)), strict=False):
            panel.fill_between(x, losses.min(axis=1), losses.max(axis=1), color=look["color"], alpha=0.2, linewidth=0)
            panel.plot(x, losses.mean(axis=1), **look, label=name if panel is panels[0, 0] else None)
        end, took = losses.iloc[-1], f" after {_seconds(histories).iloc[-1]:.1f} s" if seconds else ""
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
    _check(runs)
    figure, axes = subplots(layout="constrained")
    zero, said = _smooth(runs[reference], window), []
    for number, (name, histories) in enumerate(runs.items()):
        if name == reference:
            continue
        apart = _smooth(histories, window) - zero
        look = {"color": COLORS[_COLORS[number]], "linestyle": _STYLES[number % len(_STYLES)]}
        axes.fill_between(
            apart.index, apart.min(axis=1), apart.max(axis=1), color=look["color"], alpha=0.2, linewidth=0
        )
        axes.plot(apart.index, apart.mean(axis=1), **look, label=name)
        end = apart.iloc[-1]
        said.append(f"{name} ends {end.mean():+.3f} from it ({end.min():+.3f} to {end.max():+.3f})")
    axes.axhline(0, color=COLORS["ink"], linewidth=0.8)
    axes.set(xlabel="step", ylabel=f"training loss less that of {reference}")
    axes.legend()
    return (
        figure,
        f"Training loss less that of {reference}, mean and range over {zero.shape[1]} seeds: {'; '.join(said)}.",
    )


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
