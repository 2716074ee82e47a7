"""Plots of plain data, for any chapter: each gives a figure and the words that say what can be seen in it."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from course_utils.errors import CourseError
from course_utils.viz.parts import subplots
from course_utils.viz.style import COLORS, LINES, MARKS, SERIES


def lines(
    series: Mapping[str, Mapping[float, float] | Sequence[float]],
    xlabel: str,
    ylabel: str,
    *,
    title: str = "",
    marks: bool = False,
    levels: Mapping[str, float] | None = None,
    **axis,
) -> tuple[Figure, str]:
    """A line per name, from `{x: y}` or from values that are counted from 1; `marks` shows its points.

    `levels` are dotted lines across, by name; `axis` goes to `axes.set`, such as `xscale="log"` or `ylim=(0, None)`.
    """
    require_few(series)
    figure, axes = subplots(layout="constrained")
    said = []
    for number, (name, values) in enumerate(series.items()):
        points = dict(values) if isinstance(values, Mapping) else dict(enumerate(values, 1))
        look = {"marker": MARKS[number]} if marks else {"linestyle": LINES[number % len(LINES)]}
        axes.plot(list(points), list(points.values()), color=COLORS[SERIES[number]], label=name, **look)
        (first, begin), (last, end) = list(points.items())[0], list(points.items())[-1]
        said.append(f"{name} from {begin:.3g} at {first:g} to {end:.3g} at {last:g}")
    for name, level in (levels or {}).items():
        axes.axhline(level, color=COLORS["ink"], linestyle=":", linewidth=1.2, label=name)
        said.append(f"{name} is at {level:.3g}")
    axes.set(xlabel=xlabel, ylabel=ylabel, title=title, **axis)
    if len(series) + len(levels or {}) > 1:
        axes.legend()
    return figure, f"{ylabel} against {xlabel}: {'; '.join(said)}."


def bars(values: Mapping[str, float], xlabel: str, *, title: str = "", words="{:.3g}".format, **axis):
    """A horizontal bar per name with its value beside it as `words` puts it; `axis` goes to `axes.set`."""
    figure, axes = subplots(figsize=(7.6, 1 + 0.36 * len(values)), layout="constrained")
    drawn = axes.barh(list(values), list(values.values()), 0.62, color=COLORS["first"])
    axes.bar_label(drawn, [words(value) for value in values.values()], padding=4)
    axes.set(xlabel=xlabel, title=title, **axis)
    axes.margins(x=0.18)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    return figure, f"{xlabel}: {'; '.join(f'{name} {words(value)}' for name, value in values.items())}."


def require_few(series: Mapping) -> None:
    """Raise `CourseError` unless there are as many as there are colors to tell them apart, and at least one."""
    if not 0 < len(series) <= len(SERIES):
        raise CourseError(f"One figure compares 1 to {len(SERIES)} runs, not {len(series)}; draw several figures.")
