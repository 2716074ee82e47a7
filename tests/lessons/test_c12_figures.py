"""Chapter 12's figures say what they draw."""

import pytest
from figures import title

from course_utils import hardware
from course_utils.distributed.pipeline_schedules import gpipe
from course_utils.errors import CourseError
from course_utils.lessons import c12_figures as figures
from course_utils.lessons import c12_on_paper as paper

H100 = hardware.machine("H100")
CLUSTER = paper.Cluster(H100, paper.LINKS["NVLink 4"], paper.LINKS["400 Gb/s"])


def test_a_color_is_a_rank():
    figure, alt = figures.axes_figure()
    assert "tensor: the model is cut by columns, the batch by nothing" in alt
    panels = {title(axes): axes for axes in figure.axes}
    assert len({cell.get_facecolor() for cell in panels["tensor"].patches}) == 5
    assert len({cell.get_facecolor() for cell in panels["data"].patches if cell.get_x() < 4}) == 1


def test_a_schedule_draws_itself_and_says_what_is_drawn():
    figure, alt = figures.DrawnSchedule(gpipe(4, 8)).figure()
    assert alt.startswith("33 slots, of which 3/11 are empty (27%); most micro-batches held: 8.")
    assert "stage 3 holds 8: forward × 8, backward × 8" in alt
    boxes = figure.axes[0].patches
    assert len(boxes) == 4 * 8 * 2
    assert sum(box.get_width() for box in boxes) == 4 * 8 * 3


def test_an_illegal_schedule_is_not_drawn():
    message = "stage 0 waits at B0 for B0 of stage 1, stage 1 waits at F1 for F1 of stage 0"
    with pytest.raises(CourseError, match=message):
        figures.DrawnSchedule([[("F", 0), ("B", 0), ("F", 1), ("B", 1)], [("F", 0), ("F", 1), ("B", 0), ("B", 1)]])


def test_all_cuts_are_drawn_by_one_criterion():
    has = {"data": 65_536, "ZeRO-3": 4096, "tensor": 8192, "pipeline": 81_920}
    figure, alt = figures.cuts_figure(H100.flop_rates["bfloat16"] / 2, ["NVLink 4", "400 Gb/s"], has)
    assert "Tokens a micro-batch, at least. NVLink 4: 3,800; 400 Gb/s: 35,000." in alt
    assert alt.startswith("At 400 Gb/s, only the cuts by data and pipeline pay.")
    titles = [f"{name}: this run has {size:,} (dashed)" for name, size in has.items()]
    assert [title(axes) for axes in figure.axes] == titles


def test_the_figure_of_meshes_counts_those_that_fit_and_cuts_bars_not_numbers():
    steps = paper.steps_on_meshes(paper.MODELS["Llama 2 70B"], 1024 * 4096, CLUSTER, 64)
    figure, alt = figures.meshes_figure({"70B": steps})
    best = " × ".join(map(str, steps[0].mesh))
    assert alt.startswith(f"Predicted best, data × tensor × pipeline: {best} (70B).")
    (axes,) = figure.axes
    assert title(axes) == f"70B: {sum(step.fits for step in steps)} of 28 meshes fit"
    selected = paper.select_steps(steps)
    assert [text.get_text() for text in axes.texts] == [f"{step.total:.3g}" for step in selected]
    assert selected[-1].total > axes.get_xlim()[1] > max(text.get_position()[0] for text in axes.texts)


def test_published_runs_stand_beside_their_predictions():
    _, alt = figures.published_figure()
    assert alt.startswith("Half of the peak is off by 10% (root mean square), our prediction by 14%.")
    assert "163 at 1,008; predicted:" in alt
    assert "122 at 1,008; half of the peak is at 156." in alt


def test_the_figure_of_failures_says_how_much_is_lost():
    figure, alt = figures.failures_figure([1024, 131_072], 50.0, 600.0, runs=50)
    lowest = min(figure.axes[0].lines[1].get_ydata())
    assert alt.startswith(f"At the best interval, 131,072 cards lose {lowest:.0f}% of the time.")
    assert [line.get_label() for line in figure.axes[0].lines] == ["1,024 cards", "131,072 cards", "simulated"]
    assert len(figure.axes[0].lines[2].get_xdata()) == 2 * 9
