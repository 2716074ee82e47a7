"""Of the room: every figure to play with, at every end of its controls; and what is left of it where widgets do not run."""

import base64
import re
from itertools import product
from random import Random

import matplotlib.pyplot as plt
import nbformat
import pytest
from ipywidgets import FloatLogSlider

from course_staff.notebooks import plays
from course_staff.notebooks.files import read_notebook
from course_utils import models
from course_utils.files import chapters_in, find_place
from course_utils.precision import FORMATS
from course_utils.viz import controls, display

CHAPTERS = chapters_in(find_place().notebooks)
NAMES = [path.stem for path in CHAPTERS]
MOST_CORNERS = {"00_start_here": 24}
"""Of the corners, where each may be a dry run of some seconds."""
LETTERS = 32  # as long as a description may be


CAUGHT = {}
"""What the chapters gave to `viz.play`, by name."""


@pytest.fixture(params=CHAPTERS, ids=NAMES)
def play(request, monkeypatch):
    """What a chapter gives to `viz.play`; its cells are run as they are, once."""
    if request.param not in CAUGHT:
        # A smaller model stands in where one is only asked for its bytes by parameter.
        build = models.build
        monkeypatch.setattr(models, "build", lambda name, **options: build(name.removesuffix("-base-cased"), **options))
        with plt.rc_context():  # the chapter brings its style
            CAUGHT[request.param] = plays.catch(request.param)
    return CAUGHT[request.param]


def ends(control) -> list:
    """The values where a control ends: first and last, or lowest and highest; of a number's control, odd numbers too."""
    if hasattr(control, "bits"):
        kinds = [(name, FORMATS[name]) for name in FORMATS]
        return [
            (name, kind.pattern(value), value)
            for name, kind in kinds
            for value in (0.0, -0.1, kind.largest, 3 * kind.largest, kind.smallest_subnormal / 3, float("nan"))
        ]
    if hasattr(control, "fields"):  # a model of the list, and sizes of one's own
        return [control.model.options[-2][1], control.sizes(layers=2)]
    if hasattr(control, "options"):
        return [control._options_values[0], control._options_values[-1]]
    if not hasattr(control, "min"):
        return [False, True]
    low, high = control.min, control.max
    return [control.base**low, control.base**high] if isinstance(control, FloatLogSlider) else [low, high]


def test_a_control_says_what_it_is_in_few_words(play):
    leaves = [leaf for control in play.controls.values() for leaf in controls.leaves(control) if hasattr(leaf, "value")]
    descriptions = [leaf.description for leaf in leaves]
    assert all(0 < len(text) <= LETTERS for text in descriptions), descriptions
    assert len(set(descriptions)) == len(descriptions)
    controls.dress(play.controls)
    assert not any(getattr(leaf, "continuous_update", False) for leaf in leaves)


def test_every_end_of_every_control_gives_a_picture(play):
    places = [ends(control) for control in play.controls.values()]
    corners = [[values[i % len(values)] for values in places] for i in range(max(map(len, places)))]
    for corner in corners:
        check(play, dict(zip(play.controls, corner, strict=True)))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_corner_gives_a_picture(play, request):
    corners = list(product(*map(ends, play.controls.values())))
    count = MOST_CORNERS.get(request.node.callspec.params["play"].stem, len(corners))
    for corner in Random(0).sample(corners, count):
        check(play, dict(zip(play.controls, corner, strict=True)), rendered=True)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_control_moved_alone_gives_a_picture(play):
    start = {name: control.value for name, control in play.controls.items()}
    for name, control in play.controls.items():
        for value in getattr(control, "_options_values", ends(control)):
            check(play, {**start, name: value}, rendered=True)


def check(play, values, rendered=False):
    figure, alt = play.draw(**values)
    assert len(alt) > 20, values
    assert "nan" not in alt.replace("nan", "", 2 * ("number" in values)), (values, alt)
    if play.draw_below:
        assert bool(play.draw_below(**values).data) != (figure.axes[0].axison is False), (
            "a picture that is a sentence stands alone"
        )
    if rendered:
        bundle, _ = display.picture(figure, alt)
        assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")


@pytest.mark.parametrize("chapter", CHAPTERS, ids=NAMES)
def test_where_widgets_do_not_run_the_picture_stays_and_a_sentence_says_how_to_move_it(chapter):
    nbconvert = pytest.importorskip("nbconvert")
    playing = plays.play_cells(read_notebook(chapter).cells)
    # The template that gives a picture its text; the newer one leaves it out.
    notebook = nbformat.v4.new_notebook(cells=playing)
    page, _ = nbconvert.HTMLExporter(template_name="classic").from_notebook_node(notebook)
    body = page[page.index("<body") :]
    assert re.search(r"Run this notebook to move the controls of the figure below: \S+ ", body)
    (picture,) = re.findall(r"<img[^>]*>", body)
    assert 'src="data:image/png;base64,' in picture
    assert len(re.search(r'alt="([^"]*)"', picture).group(1)) > 20
    assert "widget-view" not in body
    assert "courseNamesControls" not in page


@pytest.mark.parametrize("chapter", CHAPTERS, ids=NAMES)
def test_a_figure_to_play_with_needs_the_set_up_cell_alone_or_says_what_else(chapter):
    cells = read_notebook(chapter).cells
    needs_nothing_else = plays.select_needed(cells)[1:] == [cell["source"] for cell in plays.play_cells(cells)]
    text = next(cell["source"] for cell in cells if "## Play" in cell["source"])
    assert needs_nothing_else != ("run the cells up to here first" in text)
