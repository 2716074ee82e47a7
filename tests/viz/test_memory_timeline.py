"""The memory timeline draws what the meter logged: the oracle is the log, piece by piece."""

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.patches import StepPatch

from course_utils import models, viz
from course_utils.errors import CourseError
from course_utils.memory import Meter, Recipe, Usage, Workload
from course_utils.memory.trace.log import Event, Piece
from course_utils.units import MiB
from course_utils.viz.style import COLORS


def piece(size, kind, was_there=False):
    return Piece(size, kind, "", "", (size,), torch.uint8, was_there)


def usage():
    """10 MiB of parameters; 30 of activations come and go in forward and backward, and meet 5 of temporaries."""
    pieces = (
        piece(10 * MiB, "parameters", True),
        piece(30 * MiB, "activations"),
        piece(5 * MiB, "backward temporaries"),
    )
    events = [
        Event(0, -1, "forward"),
        Event(30 * MiB, 1, "forward"),
        Event(0, -1, "backward"),
        Event(5 * MiB, 2, "backward"),
        Event(-30 * MiB, 1, "backward"),
        Event(-5 * MiB, 2, "backward"),
        Event(0, -1, "update"),
    ]
    return Usage(pieces, tuple(events))


def areas(figure) -> dict[str, float]:
    """Area of each layer by its color: MiB times events."""
    spans = {}
    for layer in figure.axes[0].patches:
        if isinstance(layer, StepPatch):
            color = to_hex(layer.get_facecolor()).upper()
            spans[color] = sum(polygon_area(corners) for corners in layer.get_path().to_polygons())
    return spans


def polygon_area(corners) -> float:
    x, y = np.asarray(corners).T
    return abs(np.dot(x, np.roll(y, 1)) - np.dot(y, np.roll(x, 1))) / 2


def names_of_phases(figure):
    return figure.axes[0].child_axes[0].get_xticklabels()


def test_every_kind_is_drawn_for_as_long_as_it_lives():
    areas_by_color = areas(viz.timeline_figure(usage())[0])
    areas_by_kind = {"parameters": 10 * 7, "activations": 30 * 3, "backward temporaries": 5 * 2}
    expected = {COLORS[kind].upper(): area for kind, area in areas_by_kind.items()}
    assert {color: area for color, area in areas_by_color.items() if area} == pytest.approx(expected)


def test_the_peak_is_marked_where_it_is_and_what_it_is():
    figure, alt = viz.timeline_figure(usage(), "a step")
    axes = figure.axes[0]
    (marker,) = axes.lines
    assert (marker.get_xdata()[0], marker.get_ydata()[0]) == (3.5, 45)
    assert [text.get_text() for text in axes.texts] == ["peak: 45.0 MiB"]
    assert axes.get_ylabel().endswith("MiB")
    assert axes.get_ylim()[1] > 45
    assert "The peak is 45.0 MiB: parameters 10.0 MiB, activations 30.0 MiB, backward temporaries 5.00 MiB." in alt


def test_phases_stand_along_the_top_and_only_kinds_in_use_in_the_legend():
    figure, alt = viz.timeline_figure(usage())
    names = names_of_phases(figure)
    positions = [(name.get_text(), name.get_position()[0]) for name in names]
    assert positions == [("forward", 1), ("backward", 4), ("update", 6.5)]
    assert {name.get_rotation() for name in names} == {0}
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["backward temporaries", "A: activations", "P: parameters"]
    assert alt.endswith("By phase: forward 40.0 MiB, backward 45.0 MiB, update 10.0 MiB.")


def test_names_of_narrow_phases_stand_upright_and_the_narrowest_are_left_out():
    events = [Event(0, -1, f"phase {n}") for n in range(10) for _ in range(100)] + [Event(0, -1, "blink")]
    names = names_of_phases(viz.timeline_figure(Usage((piece(MiB, "parameters", True),), tuple(events)))[0])
    assert {name.get_rotation() for name in names} == {90}
    assert [name.get_text() for name in names] == [f"phase {n}" for n in range(10)]


def test_a_real_step_with_accumulation_names_each_of_its_phases():
    workload = Workload(models.configuration("distilbert", labels=2), Recipe(batch=2, sequence=8, accumulation=2))
    model, optimizer, batches = workload.build()
    with Meter(model, optimizer) as meter:
        workload.step(model, optimizer, batches)
    figure, _ = viz.timeline_figure(meter.usage())
    phases = [name.get_text() for name in names_of_phases(figure)]
    assert phases == ["forward", "backward", "forward", "backward", "update"]
    figure.draw_without_rendering()
    legend, axes = figure.legends[0].get_window_extent(), figure.axes[0].get_window_extent()
    assert not legend.overlaps(axes)


def test_a_log_of_nothing_is_refused_with_a_sentence():
    with pytest.raises(CourseError, match="run a training step"):
        viz.timeline_figure(Usage((), ()))
