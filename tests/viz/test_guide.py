"""The decision guide says what the ladder's rules and their dry runs say, and can be read."""

import re
from dataclasses import replace
from itertools import combinations
from math import cos, radians, sin
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.path import Path as Outline

from course_utils import models
from course_utils.cli import main
from course_utils.hardware import MACHINES
from course_utils.memory import Recipe, estimate
from course_utils.memory.planning.changes import CHANGES
from course_utils.memory.planning.effects import effects
from course_utils.viz import guide

pytestmark = pytest.mark.slow  # some forty dry runs; chapter 13 shows the guide in every run of the notebooks
ROOT = Path(__file__).parents[2]
WIDE = {"hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 8, "num_key_value_heads": 8}


def texts(figure):
    return [text for text in figure.axes[0].texts if text.get_text().strip()]


@pytest.fixture(scope="module")
def page():
    figure, _ = guide.page_figure()
    FigureCanvasAgg(figure).draw()
    return figure


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The folder in which the page lies as `guide.svg` and `guide.pdf`."""
    folder = tmp_path_factory.mktemp("guide")
    for kind in ("svg", "pdf"):
        guide.save(folder / f"guide.{kind}")
    return folder


def test_every_rung_stands_on_the_page_at_its_level_in_the_ladders_order_with_its_cost_and_chapter(page):
    page_texts = texts(page)
    sentences, names, levels, level = [text.get_text() for text in page_texts], [], [], None
    for text in page_texts:
        sentence = text.get_text()
        if heading := re.match(r"Level (\d)\.", sentence):
            level = int(heading[1])
        elif level is not None and text.get_weight() == "bold" and len(sentence) > 1:
            names.append(sentence)
            levels.append(level)
    rungs = [(change.name, change.level) for change in CHANGES]
    assert list(zip(names, levels, strict=True))[: len(rungs)] == rungs
    assert len(names) == len(rungs) + 1  # the heading of what does not go together
    for change in CHANGES:
        place = sentences.index(change.name)
        assert sentences[place + 1] == change.costs + ("; several cards" if change.name in ("ZeRO-1", "ZeRO-3") else "")
        assert guide.CHAPTERS[change.name] in sentences[place : sentences.index(names[names.index(change.name) + 1])]


def test_each_rung_has_a_chapter_or_a_dash():
    assert list(guide.CHAPTERS) == [change.name for change in CHANGES]
    for chapter in set(guide.CHAPTERS.values()) - {"–"}:
        (_,) = (ROOT / "notebooks").glob(f"{chapter}_*.ipynb")


def test_rungs_lower_what_papers_say():
    lowers = {name: set(effect.lowers) for name, effect in guide.rung_effects().items()}
    assert all(lowers.values())
    # Rajbhandari et al. 2020, figure 1: stage 1 shares out the state, stage 3 gradients and parameters too.
    assert lowers["ZeRO-1"] & {"parameters", "gradients", "optimizer state"} == {"optimizer state"}
    assert lowers["ZeRO-3"] >= {"parameters", "gradients", "optimizer state"}
    # Hu et al. 2021 and Dettmers et al. 2023: weights without gradients or states, then in 4 bits.
    assert lowers["LoRA of rank 16"] >= {"gradients", "optimizer state"}
    assert lowers["QLoRA of rank 16"] - lowers["LoRA of rank 16"] == {"parameters"}
    # Chen et al. 2016: fewer activations, for a second forward pass.
    assert lowers["gradient checkpointing"] == {"activations"}
    assert guide.rung_effects()["gradient checkpointing"].seconds > 1.1
    assert guide.rung_effects()["all in bfloat16"].sent == pytest.approx(0.5)


def test_a_mark_is_what_an_estimate_of_the_same_step_says():
    config = models.configuration("llama", **WIDE, num_hidden_layers=1, vocab_size=1024, max_position_embeddings=64)
    recipe = Recipe("adamw-foreach", device="cuda", batch=2, sequence=64)
    updates = {}
    for name, variant in {"before": recipe, "after": replace(recipe, optimizer="sgd")}.items():
        updates[name] = estimate(config, variant).by_instant()
    before, after = (updates[when]["update"] for when in ("before", "after"))
    fell = {
        kind for kind, size in before.items() if size > 0.05 * sum(before.values()) and after.get(kind, 0) <= 0.8 * size
    }
    assert fell == set(guide.rung_effects()["SGD"].lowers)


def lowered_at(blocks, vocabulary):
    """The kinds that each rung lowers in a Llama of these sizes."""
    sizes = WIDE | {"num_hidden_layers": blocks, "vocab_size": vocabulary, "max_position_embeddings": 1024}
    at_sizes = effects(models.configuration("llama", **sizes), guide.RECIPES, MACHINES[guide.CARD])
    return {name: set(effect.lowers) for name, effect in at_sizes.items()}


@pytest.mark.parametrize("blocks", [2, 7])
def test_the_marks_are_the_same_at_other_sizes(blocks):
    expected = {name: set(effect.lowers) for name, effect in guide.rung_effects().items()}
    assert lowered_at(blocks, 8 * WIDE["hidden_size"]) == expected


@pytest.mark.parametrize(("blocks", "vocabulary"), [(2, 8192), (7, 16384)])
def test_where_logits_are_most_activations_adapters_on_two_layers_lower_too_few(blocks, vocabulary):
    expected = {name: set(effect.lowers) for name, effect in guide.rung_effects().items()}
    expected["LoRA of rank 16 on q_proj and v_proj"].remove("activations")
    assert lowered_at(blocks, vocabulary) == expected


def outline(text, renderer):
    """The corners of a text, or of the frame around it."""
    if text.get_bbox_patch() is not None:
        return Outline(text.get_bbox_patch().get_window_extent(renderer).corners()[[0, 1, 3, 2, 0]])
    angle = radians(text.get_rotation())
    if not angle:
        return Outline(text.get_window_extent(renderer).corners()[[0, 1, 3, 2, 0]])
    text.set_rotation(0)  # it turns about its lower left corner
    level = text.get_window_extent(renderer)
    text.set_rotation(np.degrees(angle))
    turn = np.array([[cos(angle), sin(angle)], [-sin(angle), cos(angle)]])
    corner = np.array([level.x0, level.y0])
    return Outline((level.corners()[[0, 1, 3, 2, 0]] - corner) @ turn + corner)


def test_no_text_overlaps_another_or_leaves_the_page(page):
    renderer = page.canvas.get_renderer()
    outlines = {text: outline(text, renderer) for text in texts(page)}
    paper = page.bbox
    for text, shape in outlines.items():
        assert paper.x0 <= shape.vertices[:, 0].min() <= shape.vertices[:, 0].max() <= paper.x1, text
        assert paper.y0 <= shape.vertices[:, 1].min() <= shape.vertices[:, 1].max() <= paper.y1, text
    overlaps = [
        (text.get_text(), other.get_text())
        for (text, first), (other, second) in combinations(outlines.items(), 2)
        if first.intersects_path(second, filled=True)
    ]
    assert not overlaps
    width, height = page.get_size_inches()
    assert width <= 7.6
    assert height <= 11.1  # A4 less what a printer leaves white


def words_of(svg):
    return [element.text for element in ElementTree.parse(svg).iter("{http://www.w3.org/2000/svg}text")]


def test_the_files_are_the_same_each_time_and_hold_letters(files, tmp_path):
    for kind in ("svg", "pdf"):
        assert main(["guide", str(tmp_path / f"again.{kind}")]) == 0
        assert (tmp_path / f"again.{kind}").read_bytes() == (files / f"guide.{kind}").read_bytes()
    assert {change.name for change in CHANGES} <= set(words_of(files / "guide.svg"))
    pdf = (files / "guide.pdf").read_bytes()
    assert b"/CIDFontType2" in pdf  # TrueType, whose letters can be searched and copied
    assert b"/Type3" not in pdf
    left, bottom, right, top = map(float, re.search(rb"/MediaBox \[ ?(.*?) ?\]", pdf)[1].split())
    assert (right - left, top - bottom) == pytest.approx((210 / 25.4 * 72, 297 / 25.4 * 72), abs=1)


def test_the_page_in_docs_is_what_the_rules_give_now(files):
    page_in_docs = ROOT / "docs" / "decision_guide.svg"
    advice = "write it anew: course guide docs/decision_guide.svg, and .pdf"
    assert words_of(page_in_docs) == words_of(files / "guide.svg"), advice
    assert sum(page_in_docs.with_suffix(kind).stat().st_size for kind in (".svg", ".pdf")) < 150_000


def test_the_command_refuses_other_kinds_of_file(tmp_path, capsys):
    assert main(["guide", str(tmp_path / "guide.png")]) == 2
    assert "as PDF or SVG, and 'guide.png' is neither" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main(["guide", str(tmp_path / "file" / "guide.svg")]) == 2
    assert "choose another place" in capsys.readouterr().err


def test_the_text_for_those_who_cannot_see_it_says_each_rung():
    _, alt = guide.page_figure()
    rung = "gradient checkpointing (level 0, chapter 07; time: a second forward pass)"
    assert f"{rung}: lowers activations, takes × 1.20." in alt
    assert all(change.name in alt for change in CHANGES)
