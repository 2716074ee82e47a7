"""The plots of every chapter: they take data, a unit and a conclusion, and write axes, labels and the alternative text.

Each returns its figure and the text. With `axes` it draws into a panel of `panels`; `add_title` then writes the title, and puts
the panels' texts together. `panels_of_lines` does all of it where panels differ in their data alone.
"""

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_utils.viz.labels import TEXT_GROUND, LineEnd, name_lines, note, select_ticks, tick, tick_by_powers
from course_utils.viz.parts import VISIBLE, Page, patches, subplots
from course_utils.viz.style import COLORS, LINES, MARKS, SERIES, text_color
from course_utils.viz.words import (
    FEW_POINTS,
    Unit,
    as_sentence,
    capitalize,
    compose_alt,
    say_line,
    say_parts,
    say_seeds,
)

Line = Mapping[float, float | Sequence[float]] | Iterable[tuple[float, float]]
"""Places and their values; a sequence of values is one from each seed, drawn as mean and range."""

_KIND_LETTERS = {"parameters": "P", "optimizer state": "O", "gradients": "G", "activations": "A"}
_GROUND_COLORS = ("ink", "paper", "grid")  # colors that are never a line's because of its name
_AXIS_LENGTH = 1.32  # in longest bars, with room for what is written at their ends


def panels(rows: int = 1, columns: int = 1, *, height: float = 3.4, **shape) -> tuple[Page, object]:
    """A figure as wide as a page, and its axes: one, or an array of them."""
    return subplots(rows, columns, figsize=(7.6, height), layout="constrained", **shape)


def add_title(figure: Page, title: str, *texts: str) -> tuple[Figure, str]:
    """A figure with its conclusion above all panels, legends below; labels of shared axes stay at the edges only.

    Its text is the title, `texts` for what is drawn by hand, and what each panel's plot says.
    """
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    for legend_box in figure.legends:
        legend_box.set_loc("outside lower center")
    for axes in figure.axes:
        panel = axes.get_subplotspec()
        for side in ("left", "center"):
            if axes.get_title(side):
                axes.set_title(axes.get_title(side), loc=side, fontsize=9 if panel.get_gridspec().ncols > 2 else 10)
        if panel and not panel.is_first_col() and len(axes.get_shared_y_axes().get_siblings(axes)) > 1:
            axes.set_ylabel("")
        if panel and not panel.is_last_row() and len(axes.get_shared_x_axes().get_siblings(axes)) > 1:
            axes.set_xlabel("")
    return figure, " ".join([as_sentence(title), *texts, *figure.panel_texts])


def lines(
    data: Mapping[str, Line],
    title: str = "",
    x: str = "step",
    y: str = "",
    *,
    unit: str = "",
    log: str = "",
    styles: Mapping[str, tuple[str, str]] | None = None,
    predicted: Mapping[str, Line] | None = None,
    levels: Mapping[str, float | Sequence[float]] | None = None,
    verticals: Mapping[str, float] | None = None,
    ticks: Sequence[float] = (),
    labels: str = "ends",
    number: str = ".3g",
    axes: Axes | None = None,
) -> tuple[Figure, str]:
    """Values against places: a line for each name, marks where its points are few, a band or strokes over seeds.

    `unit` is "bytes", "seconds", "%" (of shares) or none; `log` has the letters of the logarithmic axes ("xy"); `styles` has
    color and style ("o" is points alone); `number` formats values in the text. Names stand at the lines' ends, in a "legend",
    or nowhere ("none"). Values that are not finite are named in the text alone.

    A name of `predicted` is a line in its color, and its data are points alone. `levels` are drawn across: a value, or the
    range of several, in the color of the data of that name. `verticals` are places; `ticks` are those of the x-axis.
    """
    styles = dict(styles or {})
    levels = {name: _values(level) for name, level in (levels or {}).items()}
    for (name, line), color, mark in zip((predicted or {}).items(), SERIES, MARKS, strict=False):
        styles |= {name: (color, mark), f"{name}, predicted": (color, "-")}
        data = {**data, f"{name}, predicted": line}
    points = {name: _points(line) for name, line in data.items()}
    all_values = [value for line in points.values() for _, values in line for value in values]
    all_values += [value for level in levels.values() for value in level]
    finite = [value for value in all_values if isfinite(value)]
    scale = Unit.for_largest(unit, max(finite))
    axes = _begin(axes, title, xlabel=x, ylabel=scale.label(y))
    for axis in log:
        axes.set(**{f"{axis}scale": "log"})
    ends, sentences = [], []
    for row, (name, line) in enumerate(points.items()):
        color, style = styles.setdefault(name, _default_style(name, row, line))
        finite_line = [(place, np.array(values) / scale.size) for place, values in line if all(map(isfinite, values))]
        if finite_line:
            ends.append(LineEnd(name, color, *_draw_line(axes, finite_line, color, style, name)))
        sentences.append(f"{name}: {say_line(line, scale, number)}")
    level_ends, level_sentences = _draw_levels(axes, levels, data, styles, scale, number)
    sentences += level_sentences + _draw_verticals(axes, verticals or {})
    _limit_heights(axes, min(finite) / scale.size, max(finite) / scale.size, "y" in log, bool(unit))
    if "y" in log:
        tick_by_powers(axes, finite, scale.size)
    marked_places = {place for line in points.values() if len(line) <= FEW_POINTS for place, _ in line}
    if ticks:
        tick(axes, ticks)
    elif "x" in log and marked_places:
        tick(axes, select_ticks(axes, marked_places))
    if labels == "ends":
        name_lines(axes, ends + level_ends)
    elif labels == "legend":
        legend(axes)
    return axes.figure, _write_text(axes, title, f"{y} against {x}", sentences)


def panels_of_lines(
    data: Mapping[str, Mapping[str, Line]],
    title: str,
    x: str = "step",
    y: str = "",
    *,
    rows: int = 1,
    height: float = 3.4,
    texts: Sequence[str] = (),
    **options,
) -> tuple[Figure, str]:
    """`lines` in a panel for each title of `data`, on the same axes, with one legend below where a panel has several lines.

    `texts` stand before the panels' own; `options` are those of `lines`.
    """
    shape = {"sharex": rows > 1, "sharey": True, "squeeze": False}
    figure, grid = panels(rows, -(-len(data) // rows), height=height, **shape)
    for axes, (name, curves) in zip(grid.flat, data.items(), strict=True):
        lines(curves, name, x, y, labels="none", axes=axes, **options)
    if len(axes.get_legend_handles_labels()[1]) > 1:
        legend(axes)
    return add_title(figure, title, *texts)


def bars(
    data: Mapping[str, float | Mapping[str, float]],
    title: str = "",
    x: str = "",
    *,
    unit: str = "bytes",
    colors: Mapping[str, str] | None = None,
    notes: Mapping[str, str] | None = None,
    marks: tuple[str, Mapping[str, float]] | None = None,
    limit: tuple[str, float] | None = None,
    show_legend: bool = True,
    number: str = ".3g",
    axes: Axes | None = None,
) -> tuple[Figure, str]:
    """A bar for each name, of parts by kind or whole, with its size at its end or what `notes` say instead.

    `marks` are values of another origin and what they are; `limit` is a budget and its name.
    """
    rows = {name: parts if isinstance(parts, Mapping) else {"": parts} for name, parts in data.items()}
    totals = {name: sum(parts.values()) for name, parts in rows.items()}
    mark_name, marked_values = marks or ("", {})
    largest = max(*totals.values(), *marked_values.values(), limit[1] if limit else 0, 0) or 1
    scale = Unit.for_largest(unit, largest)
    width = largest / scale.size
    axes = _begin(axes, title, height=1.2 + 0.44 * len(rows), xlabel=scale.label(x), xlim=(0, _AXIS_LENGTH * width))
    if limit:
        line = limit[1] / scale.size
        axes.axvline(line, color=COLORS["warning"], linestyle="--", zorder=0)
        corner = (line, len(rows) - 0.45)
        note(axes, f" {limit[0]}", corner, (0, 0), ha="left", va="bottom", color=text_color("warning"))
    for row, (name, parts) in enumerate(rows.items()):
        _stack(axes, row, parts, scale.size, colors)
        end = max(totals[name], marked_values.get(name, 0)) / scale.size
        if limit and end <= line < end + 0.1 * width:
            end = line  # a number across the line would hide it
        text = (notes or {}).get(name) or scale.say(totals[name], number)
        end += (0.03 if name in marked_values else 0.012) * width
        axes.text(end, row, text, va="center", fontsize=9, bbox=TEXT_GROUND)
    if marked_values:
        sizes = [value / scale.size for value in marked_values.values()]
        marked_rows = [list(rows).index(name) for name in marked_values]
        axes.plot(sizes, marked_rows, "D", color=COLORS["ink"], markerfacecolor=COLORS["paper"], label=mark_name)
    _label_rows(axes, list(rows))
    if show_legend:
        _draw_legend_of_kinds(axes, rows, colors)
    sentences = []
    for name, parts in rows.items():
        mark_text = f", {mark_name} {scale.say(marked_values[name], number)}" if name in marked_values else ""
        sentences.append(f"{name}: {say_parts(parts, scale, number, show_legend)}{mark_text}")
    if limit:
        sentences.append(f"{limit[0]}: {scale.say(limit[1], number)}")
    return axes.figure, _write_text(axes, title, x, sentences)


def dots(
    data: Mapping[str, Sequence[float] | Mapping[str, Sequence[float]]],
    title: str = "",
    x: str = "",
    *,
    unit: str = "",
    log: bool = False,
    spread: float = 0.0,
    number: str = ".2f",
    axes: Axes | None = None,
) -> tuple[Figure, str]:
    """A row for each name with a dot for each seed, or for each seed of each kind; of one kind the mean is a stroke.

    Where there is one value of each, it stands at its dot. 0 is marked where it lies between the dots. What is not finite
    is counted at the right edge. `spread` is the part of a row over which its seeds are moved apart, so that equal ones show.
    """
    rows = {name: kinds if isinstance(kinds, Mapping) else {"": kinds} for name, kinds in data.items()}
    all_kinds = list(dict.fromkeys(kind for kinds in rows.values() for kind in kinds))
    finite = [v for kinds in rows.values() for values in kinds.values() for v in values if isfinite(v)]
    scale = Unit.for_largest(unit, max(finite, default=1.0))
    row_height = 0.34 if len(all_kinds) == 1 else 0.45  # a second kind's numbers stand below its dots
    axes = _begin(axes, title, height=1.1 + row_height * len(rows), xlabel=scale.label(x))
    if log:
        axes.set_xscale("log")
    are_alone = all(len(values) == 1 for kinds in rows.values() for values in kinds.values())
    for index, kind in enumerate(all_kinds):
        points = _draw_seeds(axes, [kinds.get(kind, ()) for kinds in rows.values()], kind, index, scale.size, spread)
        offset = (0, -14 if index else 5)
        color = text_color(SERIES[index])
        for point in points if are_alone else ():
            text = scale.say(point[0] * scale.size, number)
            note(axes, text, point, offset, va="baseline", fontsize=8.5, bbox=TEXT_GROUND, color=color)
    sentences = []
    for row, (name, kinds) in enumerate(rows.items()):
        if len(all_kinds) == 1:
            _draw_mean(axes, row, kinds.get(all_kinds[0], ()), scale.size)
        diverged = max((sum(not isfinite(value) for value in values) for values in kinds.values()), default=0)
        if diverged:
            text = f"{diverged} of {max(map(len, kinds.values()))} diverged"
            note(axes, text, (1, row), (0, 0), xycoords=axes.get_yaxis_transform(), ha="right")
        ends = (f"{kind} {say_seeds(values, scale, number)}".strip() for kind, values in kinds.items())
        if any(kinds.values()):
            sentences.append(f"{name}: {', '.join(ends)}".replace("\n", ", "))
    left, right = axes.get_xlim()
    if left < 0 < right:
        axes.axvline(0, color=COLORS["ink"], linewidth=1, zorder=0)
    _label_rows(axes, list(rows))
    if len(all_kinds) > 1:
        legend(axes)
    return axes.figure, _write_text(axes, title, x, sentences)


class Span(NamedTuple):
    """What is under way in a lane from `start` to `end`, and what is written into it."""

    lane: int
    start: float
    end: float
    kind: str
    text: str = ""


def timeline(
    spans: Sequence[Span],
    lanes: Sequence[str],
    title: str = "",
    x: str = "time",
    *,
    unit: str = "",
    styles: Mapping[str, tuple[str, str]] | None = None,
    axes: Axes | None = None,
) -> tuple[Figure, str]:
    """What is under way in each lane, from left to right; `styles` has a kind's color and hatching. No legend is drawn."""
    styles = styles or {}
    begin, end = min(span.start for span in spans), max(span.end for span in spans)
    scale = Unit.for_largest(unit, end)
    axes = _begin(axes, title, height=1.3 + 0.4 * len(lanes), xlabel=scale.label(x))
    lengths: list[dict[str, list[float]]] = [{} for _ in lanes]
    for span in spans:
        color, hatch = styles.get(span.kind, (span.kind, ""))
        start, length = span.start / scale.size, (span.end - span.start) / scale.size
        box = Rectangle((start, span.lane - 0.37), length, 0.74, facecolor=COLORS[color], hatch=hatch)
        box.set(edgecolor=COLORS["paper"], linewidth=0.6)
        axes.add_patch(box)
        if span.text:
            axes.text(start + length / 2, span.lane, span.text, ha="center", va="center", fontsize=8)
        lengths[span.lane].setdefault(span.kind, []).append(span.end - span.start)
    axes.set_xlim(begin / scale.size, end / scale.size)
    _label_rows(axes, list(lanes))
    sentences = []
    for name, by_kind in zip(lanes, lengths, strict=True):
        sums = {kind: f" ({scale.say(sum(seconds))})" if unit else "" for kind, seconds in by_kind.items()}
        kinds = [f"{kind} × {len(by_kind[kind])}{text}" for kind, text in sums.items()]
        sentences.append(f"{name}: {', '.join(kinds) or 'nothing'}")
    return axes.figure, _write_text(axes, title, f"{x} from left to right", sentences)


def layers(
    times: Sequence[float],
    heights: Mapping[str, Sequence[float]],
    title: str = "",
    x: str = "time",
    y: str = "",
    *,
    unit: str = "",
    colors: Mapping[str, str] | None = None,
    axes: Axes | None = None,
) -> tuple[Figure, str]:
    """Kinds on top of each other, each as high from one time to the next as it is at the first."""
    tops = np.cumsum([list(values) for values in heights.values()], axis=0)
    scale = Unit.for_largest(unit, tops[-1].max())
    axes = _begin(axes, title, xlabel=x, ylabel=scale.label(y))
    below = np.zeros(len(times))
    for (kind, values), top in zip(heights.items(), tops / scale.size, strict=True):
        color = (colors or {}).get(kind, kind)
        if max(values) > 0:
            axes.fill_between(times, below, top, step="post", color=COLORS[color], linewidth=0, label=kind)
        below = top
    axes.set(xlim=(times[0], times[-1]), ylim=(0, 1.15 * tops[-1].max() / scale.size))
    peak = int(tops[-1].argmax())
    parts = ", ".join(f"{kind} {scale.say(values[peak])}" for kind, values in heights.items() if values[peak])
    peak_text = f"at most {scale.say(tops[-1][peak])}, at {times[peak]:.3g}: {parts}"
    return axes.figure, _write_text(axes, title, f"{y} against {x}: {peak_text}")


def _stack(axes: Axes, row: int, parts: Mapping[str, float], size: float, colors: Mapping | None = None) -> None:
    """A horizontal bar of kinds at `row`, in units of `size`."""
    left = 0.0
    for kind, count in parts.items():
        color = (colors or {}).get(kind) or (kind if kind in COLORS else "first")
        axes.barh(row, count / size, 0.62, left=left, color=COLORS[color], edgecolor=COLORS["paper"])
        left += count / size


def _draw_legend_of_kinds(axes: Axes, rows: Mapping[str, Mapping[str, float]], colors: Mapping | None = None) -> None:
    """A legend above the figure of all kinds that can be seen, in the order of the bars, and of what is marked."""
    enough = VISIBLE * max(sum(parts.values()) for parts in rows.values())
    kinds = dict.fromkeys(kind for parts in rows.values() for kind, size in parts.items() if kind and size >= enough)
    marks, names = axes.get_legend_handles_labels()
    entries = [(add_letter(kind), (colors or {}).get(kind, kind)) for kind in kinds]
    handles, labels = patches(*entries)
    if handles or marks:
        # No more than five names, and a hundred letters with what stands between them, have room beside each other.
        lines_of_names = max(-(-len(handles + marks) // 5), -(-sum(len(name) + 6 for name in [*labels, *names]) // 100))
        columns = -(-len(handles + marks) // lines_of_names)
        axes.figure.legend([*handles, *marks], [*labels, *names], loc="outside upper center", ncols=columns)


def add_letter(kind: str) -> str:
    """A kind's name behind the letter that formulas call it by: `'P: parameters'`."""
    return f"{_KIND_LETTERS[kind]}: {kind}" if kind in _KIND_LETTERS else kind


def legend(axes: Axes, *entries: tuple[str, str]) -> None:
    """A legend below the figure: of pairs of name and color, else of what `axes` show."""
    handles, names = patches(*entries) if entries else axes.get_legend_handles_labels()
    by_name = dict(zip(names, handles, strict=True))
    columns = min(len(by_name), max(2, 90 // max(map(len, by_name))))
    axes.figure.legend(list(by_name.values()), list(by_name), loc="outside lower center", ncols=columns)


def _write_text(axes: Axes, title: str, subject: str, sentences: Sequence[str] = ()) -> str:
    """The text of a plot, which its figure remembers; what one panel has said of the axes, the next does not say again."""
    texts = axes.figure.panel_texts
    is_said = any(f"{capitalize(subject)}." in text for text in texts)
    texts.append(compose_alt(title, "" if is_said else subject, sentences))
    return texts[-1]


def _values(value: float | Sequence[float]) -> tuple[float, ...]:
    """One value of each seed."""
    return tuple(map(float, value)) if hasattr(value, "__iter__") else (float(value),)


def _points(line: Line) -> list[tuple[float, tuple[float, ...]]]:
    """Places with a value of each seed."""
    pairs = line.items() if hasattr(line, "items") else line
    return [(float(place), _values(value.tolist() if hasattr(value, "tolist") else value)) for place, value in pairs]


def _default_style(name: str, row: int, line: Sequence) -> tuple[str, str]:
    color = name if name in COLORS and name not in _GROUND_COLORS else SERIES[row % len(SERIES)]
    return color, LINES[row % len(LINES)] + (MARKS[row % len(MARKS)] if len(line) <= FEW_POINTS else "")


def _draw_line(axes: Axes, points: Sequence, color: str, style: str, name: str) -> tuple[float, float]:
    """A line through the means; with several seeds a band behind it, or strokes where it has points alone. Returns its end."""
    places = [place for place, _ in points]
    means = [values.mean() for _, values in points]
    low, high = ([extreme(values) for _, values in points] for extreme in (np.min, np.max))
    is_line = any(line in style for line in LINES)
    if low != high and not is_line:
        reach = np.subtract(means, low), np.subtract(high, means)
        axes.errorbar(places, means, reach, fmt=style, color=COLORS[color], label=name, markersize=5)
    else:
        if low != high:
            axes.fill_between(places, low, high, color=COLORS[color], alpha=0.2, linewidth=0)
        axes.plot(places, means, style, color=COLORS[color], label=name, markersize=5)
    return places[-1], means[-1]


def _draw_levels(
    axes: Axes, levels: Mapping[str, tuple], data: Mapping, styles: Mapping, scale: Unit, number: str
) -> tuple[list[LineEnd], list[str]]:
    """A line across at each level, or a band over several values; returns the ends of those that no data name, and the text."""
    ends, sentences = [], []
    for name, level in levels.items():
        color, style = styles.get(name, ("warning", "--"))
        low, high = min(level) / scale.size, max(level) / scale.size
        if low < high:
            axes.axhspan(low, high, color=COLORS[color], alpha=0.25, linewidth=0)
        else:
            axes.axhline(low, color=COLORS[color], linestyle=":" if name in data else style, linewidth=1.4, label=name)
        if name not in data:
            ends.append(LineEnd(name, color, None, low))
        sentences.append(f"{name} is at {say_seeds(level, scale, number)}")
    return ends, sentences


def _draw_verticals(axes: Axes, verticals: Mapping[str, float]) -> list[str]:
    """A dotted line up at each place, with its name at the top; returns the text."""
    for name, place in verticals.items():
        axes.axvline(place, color=COLORS["ink"], linestyle=":", linewidth=1.4)
        point, system = (place, 0.98), axes.get_xaxis_transform()
        note(axes, name, point, (3, 0), xycoords=system, va="top", fontsize=8, bbox=TEXT_GROUND)
    return [f"{name} is at {place:,.4g}" for name, place in verticals.items()]


def _draw_seeds(
    axes: Axes, by_row: Sequence[Sequence[float]], kind: str, index: int, size: float, spread: float
) -> list[tuple[float, float]]:
    """A dot for each finite value of the kind with this index, in units of `size`; returns where they are."""
    points = []
    for row, values in enumerate(by_row):
        shifts = np.linspace(-spread / 2, spread / 2, len(values)) if len(values) > 1 else [0.0]
        points += [(value / size, row + shift) for value, shift in zip(values, shifts, strict=False) if isfinite(value)]
    x, y = np.reshape(points, (-1, 2)).T
    color = COLORS[SERIES[index]]
    axes.plot(x, y, MARKS[index], color=color, mfc="none" if index else color, markersize=5, alpha=0.85, label=kind)
    return points


def _draw_mean(axes: Axes, row: int, values: Sequence[float], size: float) -> None:
    """A stroke at the mean of several finite values, below their dots."""
    finite = [value / size for value in values if isfinite(value)]
    if len(finite) > 1:
        mean = sum(finite) / len(finite)
        axes.plot([mean, mean], [row - 0.35, row + 0.35], color=COLORS["second"], linewidth=2.5, zorder=1.5)


def _label_rows(axes: Axes, names: Sequence[str]) -> None:
    names = [name if "\n" in name else textwrap.fill(name, 26) for name in names]
    axes.set(yticks=range(len(names)), yticklabels=names, ylim=(len(names) - 0.4, -0.6))
    axes.grid(axis="y", visible=False)


def _begin(axes: Axes | None, title: str, height: float = 3.4, **settings) -> Axes:
    """The axes to draw into, by default those of a new figure, with their title and labels."""
    axes = axes if axes is not None else panels(height=height)[1]
    axes.set(title=title, **settings)
    return axes


def _limit_heights(axes: Axes, lowest: float, highest: float, log: bool, has_unit: bool) -> None:
    """An axis from 0 where values are counted from there, and up to all of them where another panel shares it."""
    top = max(axes.get_ylim()[1], 1.08 * highest)
    if not log and lowest >= 0 and (has_unit or lowest <= highest / 2):
        axes.set_ylim(0, top)
    elif not axes.get_autoscaley_on():  # an earlier panel has limited the axis that they share
        axes.set_ylim(top=top)
