"""What a notebook shows: a figure has a text, a control draws anew, source is the file's own."""

import base64

import matplotlib.pyplot as plt
import pytest

from course_utils import viz
from course_utils.viz import display as display_module


def figure():
    new_figure, axes = plt.subplots()
    axes.plot([1, 2])
    return new_figure


def test_a_figure_carries_its_text_and_is_closed(outputs):
    before = plt.get_fignums()
    viz.show(figure(), "a rising line")
    bundle, metadata = outputs[0]
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    assert bundle["text/plain"] == metadata["image/png"]["alt"] == "a rising line"
    assert 0 < metadata["image/png"]["width"] <= 800
    assert plt.get_fignums() == before


def test_a_page_is_told_the_text_and_nothing_of_that_is_stored(outputs):
    viz.show(figure(), "a < b & c")
    assert [bundle for bundle, _ in outputs if "text/html" in bundle] == []
    ((data, metadata),) = outputs.live
    assert metadata == {"course": "live"}
    assert data["text/html"].endswith('<p class="course-alt" style="display: none">a &lt; b &amp; c</p>')


@pytest.mark.parametrize("alt", ["", "  "])
def test_a_figure_without_text_is_refused(outputs, alt):
    with pytest.raises(ValueError, match="alt text"):
        viz.show(figure(), alt)
    plt.close("all")


def test_the_same_figure_gives_the_same_bytes(outputs):
    viz.show(figure(), "a line")
    viz.show(figure(), "a line")
    assert outputs[0] == outputs[1]


def test_moving_a_slider_draws_the_picture_of_the_new_value(outputs):
    import ipywidgets as widgets

    heights = []

    def draw(height):
        heights.append(height)
        new_figure, axes = plt.subplots()
        axes.bar(["bar"], [height])
        return new_figure, f"a bar of height {height}"

    slider = widgets.IntSlider(3, 1, 9, description="tall")
    viz.play(draw, height=slider)
    panel, picture = outputs
    text = panel[0]["text/plain"]
    assert panel[0]["text/html"] == f"<p>{text}</p>", "plain text is broken within words"
    assert all(bundle["text/html"].startswith("<style data-course>") for bundle, _ in outputs.live)
    assert panel[0]["text/plain"].endswith("the figure below: tall 3.")
    assert "application/vnd.jupyter.widget-view+json" in panel[0]
    assert picture[0]["text/plain"] == "a bar of height 3"
    slider.value = 7
    assert heights == [3, 7]
    assert outputs[-1][1]["image/png"]["alt"] == "a bar of height 7"
    assert outputs[-1][0]["image/png"] != picture[0]["image/png"]


def test_what_stands_below_the_picture_follows_the_controls_too(outputs):
    import ipywidgets as widgets

    slider = widgets.IntSlider(3, 1, 9)
    viz.play(lambda height: (figure(), f"picture of {height}"), lambda height: f"table of {height}", height=slider)
    assert outputs[-1][0] == "table of 3"
    slider.value = 7
    assert outputs[-2][0]["text/plain"] == "picture of 7"
    assert outputs[-1][0] == "table of 7"


def test_source_shows_where_it_lives_and_what_it_says():
    text = viz.source(viz.source).data
    assert text.startswith("`course_utils.viz.display.source`")
    assert "def source(code" in text
    method = viz.source(display_module.Figure.savefig).data
    assert "\ndef savefig" in method
