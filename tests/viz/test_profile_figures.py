import pandas as pd
import pytest
from matplotlib.patches import Rectangle

from course_utils import viz
from course_utils.training.trace import LOADING, PHASES, Trace


def made(operators, marks=()):
    """Two steps of 10 ms; before the second the loader takes 40 ms."""
    steps = [("step", "ProfilerStep#1", 0.0, 0.01), ("step", "ProfilerStep#2", 0.01, 0.06)]
    loading = [(LOADING, LOADING, 0.0, 0.001), (LOADING, LOADING, 0.01, 0.051)]
    rows = [(*row, None, None) for row in [*steps, *loading, *marks, *operators]]
    return Trace(pd.DataFrame(rows, columns=["kind", "name", "start", "end", "thread", "launch"]))


TIMES = [(0.001, 0.004), (0.004, 0.009), (0.009, 0.01)]
PHASE_MARKS = [("phase", name, a + d, b + d) for d in (0.0, 0.05) for name, (a, b) in zip(PHASES, TIMES, strict=True)]


def trace():
    return made([("operator", f"aten::{name}", start, end) for _, name, start, end in PHASE_MARKS], PHASE_MARKS)


def hatched(axes):
    return [patch for patch in axes.patches if isinstance(patch, Rectangle) and patch.get_hatch()]


def test_a_gap_is_hatched_over_all_rows_and_its_length_written():
    figure, alt = viz.trace_figure(trace(), trace().gaps(0.002), "two steps")
    axes = figure.axes[0]
    (gap,) = hatched(axes)
    assert (gap.get_x(), gap.get_width(), gap.get_height()) == (pytest.approx(10), pytest.approx(41), 5)
    assert [text.get_text() for text in axes.texts] == ["41.0 ms"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == [
        LOADING,
        "forward",
        "backward",
        "update",
        "model computes",
    ]
    assert "time" in axes.get_xlabel()
    assert "ms" in axes.get_xlabel()
    assert "2 steps in 60.0 ms: data loader 42.0 ms, forward 6.00 ms, backward 10.0 ms, update 2.00 ms" in alt
    assert "41.0 ms (data loader)" in alt


def test_without_gaps_nothing_is_hatched():
    figure, alt = viz.trace_figure(trace())
    assert hatched(figure.axes[0]) == []
    assert not figure.legends
    assert alt.endswith("ran: none.")


def test_rows_are_drawn_as_long_as_what_they_show():
    bars = viz.trace_figure(trace())[0].axes[0].collections[:5]
    lengths = [sum(path.get_extents().width for path in row.get_paths()) for row in bars]
    assert lengths == pytest.approx([42, 6, 10, 2, 18])


def test_bars_of_operators_add_up_and_the_rest_is_one_bar():
    table = trace().operator_seconds()
    figure, alt = viz.operator_seconds_figure(table, top=1)
    axes = figure.axes[0]
    assert sum(patch.get_width() for patch in axes.patches) == pytest.approx(18)
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["aten::backward", "2 others"]
    assert [text.get_text().strip() for text in axes.texts] == ["56%", "44%"]
    assert alt.endswith("aten::backward 56%, 2 others 44%.")
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["forward", "backward", "update"]


def test_the_phases_of_one_bar_stand_one_after_the_other():
    both = [("operator", "aten::copy_", 0.001, 0.003), ("operator", "aten::copy_", 0.005, 0.008)]
    table = made(both, PHASE_MARKS).operator_seconds()
    axes = viz.operator_seconds_figure(table)[0].axes[0]
    assert [(patch.get_x(), patch.get_width()) for patch in axes.patches] == [
        (0, pytest.approx(2)),
        (pytest.approx(2), pytest.approx(3)),
    ]


def test_a_table_without_operators_is_refused():
    with pytest.raises(ValueError, match="record steps"):
        viz.operator_seconds_figure(made([]).operator_seconds())
