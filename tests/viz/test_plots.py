"""The shared plots draw their data, name it beside it and say all of it: the oracle is the data."""

from math import inf

import numpy as np
import pytest
from figures import title
from matplotlib.colors import to_rgb

from course_utils.units import GiB, MiB
from course_utils.viz.plots import Span, add_title, bars, dots, layers, lines, panels, panels_of_lines, timeline
from course_utils.viz.style import COLORS


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_a_line_is_its_points_in_the_unit_of_its_largest():
    figure, alt = lines({"measured": {1: 2 * MiB, 8: 6 * MiB}}, "It rises", "batch", "peak", unit="bytes")
    (axes,) = figure.axes
    assert axes.lines[0].get_xydata().tolist() == [[1, 2], [8, 6]]
    assert (axes.get_xlabel(), axes.get_ylabel(), title(axes)) == ("batch", "peak, MiB", "It rises")
    assert axes.lines[0].get_color() == COLORS["measured"]
    assert texts(axes) == ["measured"]
    assert alt == "It rises. Peak against batch. measured: 2.00 MiB at 1, 6.00 MiB at 8."


def test_over_seeds_a_line_is_the_mean_and_its_band_the_range():
    figure, alt = lines({"a": {1: [1.0, 3.0], 2: [2.0, 6.0]}}, number=".1f")
    (axes,) = figure.axes
    assert axes.lines[0].get_ydata().tolist() == [2, 4]
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (1, 6)
    assert "a: 2.0 (1.0 to 3.0) at 1, 4.0 (2.0 to 6.0) at 2" in alt


def test_of_a_long_line_the_text_has_ends_and_extremes():
    values = [5.0, *range(1, 20), 7.0]
    _, alt = lines({"a": enumerate(values)})
    assert "a: from 5 at 0 to 7 at 20, lowest 1 at 1, highest 19 at 19" in alt


def test_what_diverged_is_said_and_not_drawn():
    figure, alt = lines({"a": {0.1: [1.0, 2.0], 1.0: [1.0, inf]}}, x="rate", log="x")
    assert figure.axes[0].lines[0].get_xdata().tolist() == [0.1]
    assert "diverged" in alt


def test_a_level_is_drawn_across_and_said():
    figure, alt = lines({"a": {0: 1.0, 1: 2.0}}, levels={"chance": 0.5})
    assert figure.axes[0].lines[1].get_ydata() == [0.5, 0.5]
    assert "chance" in texts(figure.axes[0])
    assert "chance is at 0.5" in alt


def test_names_at_the_ends_of_near_lines_do_not_meet():
    figure, _ = lines({name: {0: 0.0, 1: 1 + i / 100} for i, name in enumerate("abcd")}, axes=panels(height=3)[1])
    figure.draw_without_rendering()
    heights = sorted(text.get_window_extent().y0 for text in figure.axes[0].texts)
    assert min(np.diff(heights)) > 0.9 * figure.axes[0].texts[0].get_window_extent().height


def test_bars_stack_their_parts_and_say_sum_and_parts():
    rows = {"one": {"parameters": GiB, "gradients": 2 * GiB}, "two": {"parameters": GiB}}
    figure, alt = bars(rows, "Two rows", "kept", limit=("the card", 4 * GiB), marks=("dry run", {"two": 2 * GiB}))
    (axes,) = figure.axes
    assert [(bar.get_x(), bar.get_width()) for bar in axes.patches] == [(0, 1), (1, 2), (0, 1)]
    assert axes.get_xlabel() == "kept, GiB"
    assert [text.strip() for text in texts(axes)] == ["the card", "3.00 GiB", "1.00 GiB"]
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["P: parameters", "G: gradients", "dry run"]
    assert "one: 3.00 GiB, of it parameters 1.00 GiB, gradients 2.00 GiB" in alt
    assert "two: parameters 1.00 GiB, dry run 2.00 GiB" in alt
    assert alt.endswith("the card: 4.00 GiB.")


def test_dots_are_seeds_and_the_stroke_their_mean():
    figure, alt = dots({"a": [1.0, 2.0, 6.0], "b": [-1.0, inf]}, x="loss")
    marks, mean, zero = figure.axes[0].lines[:3]
    assert marks.get_xydata().tolist() == [[1, 0], [2, 0], [6, 0], [-1, 1]]
    assert mean.get_xdata().tolist() == [3, 3]
    assert zero.get_xdata() == [0, 0]
    assert "1 of 2 diverged" in texts(figure.axes[0])
    assert dots({"not run": []})[0].axes[0].lines[0].get_xydata().size == 0
    assert "a: 1.00 to 6.00, mean 3.00; b: -1.00, 1 diverged" in alt


def test_single_values_stand_at_their_dots():
    figure, alt = dots({"a": {"now": [0.5], "then": [0.25]}}, unit="%")
    assert texts(figure.axes[0]) == ["50.0%", "25.0%"]
    assert "a: now 50.0%, then 25.0%" in alt


def test_a_timeline_has_a_rectangle_for_each_span():
    spans = [Span(0, 0.0, 0.002, "forward", "F"), Span(1, 0.001, 0.004, "backward"), Span(1, 0.004, 0.005, "backward")]
    styles = {"forward": ("activations", ""), "backward": ("gradients", "//")}
    figure, alt = timeline(spans, ["one", "two"], unit="seconds", styles=styles)
    (axes,) = figure.axes
    rectangles = [(bar.get_x(), bar.get_width(), bar.get_hatch() or "") for bar in axes.patches]
    assert rectangles == [(0, 2, ""), (1, pytest.approx(3), "//"), (4, pytest.approx(1), "//")]
    assert texts(axes) == ["F"]
    assert "one: forward × 1 (2.00 ms); two: backward × 2 (4.00 ms)" in alt


def test_layers_lie_on_each_other_and_name_the_fullest_time():
    figure, alt = layers([0, 1, 2], {"parameters": [1, 1, 1], "activations": [0, 4, 2]}, y="kept")
    top = figure.axes[0].collections[1].get_paths()[0].vertices[:, 1]
    assert top.max() == 5
    assert alt == "Kept against time: at most 5, at 1: parameters 1, activations 4."


def test_panels_stand_together_under_one_conclusion_and_say_the_axes_once():
    figure, (left, right) = panels(1, 2, sharey=True)
    for name, axes in (("A", left), ("B", right)):
        lines({"a": {0: 1.0, 1: 2.0}}, name, y="loss", axes=axes)
    figure, alt = add_title(figure, "Both rise", "Drawn here.")
    assert figure.get_suptitle() == "Both rise"
    assert (left.get_ylabel(), right.get_ylabel()) == ("loss", "")
    assert alt == "Both rise. Drawn here. A. Loss against step. a: 1 at 0, 2 at 1. B. a: 1 at 0, 2 at 1."


def test_panels_of_lines_have_one_legend_of_their_lines():
    curves = {"a": {0: 1.0, 1: 2.0}, "b": {0: 1.0, 1: 3.0}}
    figure, alt = panels_of_lines({"A": curves, "B": curves}, "Both rise", y="loss", levels={"chance": 0.5})
    assert [title(axes) for axes in figure.axes] == ["A", "B"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "chance"]
    assert alt.startswith("Both rise. A. Loss against step. a: 1 at 0, 2 at 1; b: 1 at 0, 3 at 1; chance is at 0.5.")


def test_a_prediction_is_a_line_in_the_color_of_its_points():
    figure, alt = lines({"a": {1: 1.0, 2: 2.1}}, predicted={"a": {1: 1.0, 2: 2.0}})
    points, predicted = figure.axes[0].lines
    assert (points.get_linestyle(), predicted.get_linestyle()) == ("None", "-")
    assert points.get_color() == predicted.get_color()
    assert "a, predicted: 1 at 1, 2 at 2" in alt


def test_the_range_of_a_level_has_the_color_of_the_line_of_its_name():
    figure, alt = lines({"a": {0: 1.0, 1: 2.0}}, levels={"a": [0.5, 0.7]}, number=".1f")
    (strip,) = figure.axes[0].patches
    assert (strip.get_y(), strip.get_height()) == (0.5, pytest.approx(0.2))
    assert strip.get_facecolor()[:3] == pytest.approx(to_rgb(COLORS["first"]))
    assert "a is at 0.5 to 0.7, mean 0.6" in alt


def test_a_level_of_one_value_is_dotted_in_the_color_of_the_line_of_its_name():
    figure, _ = lines({"a": {0: 1.0, 1: 2.0}}, levels={"a": 0.5})
    line, level = figure.axes[0].lines
    assert (level.get_linestyle(), level.get_color()) == (":", line.get_color())


def test_a_vertical_and_ticks_stand_at_their_places():
    figure, alt = lines({"a": {1: 1.0, 9: 2.0}}, log="x", verticals={"root": 3}, ticks=[1, 3])
    (axes,) = figure.axes
    assert axes.lines[1].get_xdata() == [3, 3]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "3"]
    assert "root is at 3" in alt


def test_a_shared_axis_reaches_as_far_as_the_later_panel():
    _, (left, right) = panels(1, 2, sharey=True)
    lines({"a": {1: 2.0, 2: 0.4}}, axes=left)
    lines({"a": {1: 2.0, 2: 3.0}}, axes=right)
    low, high = right.get_ylim()
    assert (low, left.get_ylim()) == (0, (low, high))
    assert high > 3.0
