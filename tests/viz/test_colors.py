"""Of the room: colors that stand together are told apart by every reader, and writing can be read in light and in dark."""

import re
from itertools import combinations
from pathlib import Path

import pytest
from colors import READABLE, SEEN_BY, contrast, distance, lab, linear

from course_utils.grading import rendering, showing
from course_utils.lessons import c10_figures
from course_utils.memory.trace.log import KINDS
from course_utils.viz.style import BIT_COLORS, COLORS, text_color

MIN_DISTANCE = 15
GROUPS = {
    "kinds": KINDS,
    "lines": ("first", "second", "third", "fourth", "ink"),
    "a prediction and what was measured": ("predicted", "first", "second", "ink"),
    "bits": tuple(BIT_COLORS.values()),
}
GROUNDS = {"light": ("#FFFFFF", "#000000"), "dark": ("#111111", "#FFFFFF"), "black": ("#000000", "#FFFFFF")}
"""Of pages: the ground, and what is written on it."""


@pytest.mark.parametrize("reader", SEEN_BY)
@pytest.mark.parametrize("names", GROUPS.values(), ids=GROUPS)
def test_what_stands_together_is_told_apart(reader, names):
    for color, other in combinations(names, 2):
        assert distance(COLORS[color], COLORS[other], reader) > MIN_DISTANCE, (color, other)


@pytest.mark.parametrize("reader", SEEN_BY)
def test_the_work_of_a_step_differs_in_color_or_in_hatching(reader):
    for (color, hatch), (other, other_hatch) in combinations(c10_figures.STYLES.values(), 2):
        differ = distance(COLORS[color], COLORS[other], reader) > MIN_DISTANCE
        assert differ or hatch != other_hatch, (color, other)


def test_what_the_phases_add_is_told_from_its_neighbors_in_grey():
    lightness = {kind: lab(linear(COLORS[kind]))[0] for kind in KINDS}
    for kind, neighbor in (
        ("parameters", "buffers"),
        ("parameters", "optimizer state"),
        ("optimizer state", "gradients"),
        ("activations", "recomputed"),
        ("recomputed", "backward temporaries"),
        ("activations", "backward temporaries"),
        ("gradients", "optimizer temporaries"),
    ):
        assert abs(lightness[kind] - lightness[neighbor]) > 8, (kind, neighbor)


@pytest.mark.parametrize("name", [name for name in COLORS if name not in ("paper", "grid", "inputs", "activations")])
def test_every_color_can_be_written_with(name):
    assert contrast(text_color(name), COLORS["paper"]) >= READABLE


@pytest.mark.parametrize("page", GROUNDS)
def test_signs_of_a_check_are_read_and_its_edge_is_seen(page):
    ground, ink = GROUNDS[page]
    share = int(re.search(r"currentColor (\d+)%", showing.SIGN_COLOR).group(1)) / 100
    for color in showing.COLORS.values():
        assert contrast(mixed(ink, color, share), ground) >= READABLE
        assert contrast(color, ground) >= 3  # what is not read, but seen: WCAG 2.2, 1.4.11


def test_the_letters_of_a_report_are_read():
    style = (Path(rendering.__file__).parent / "templates" / "style.css.j2").read_text(encoding="utf-8")
    light, dark = style.split("@media(prefers-color-scheme:dark)")
    for style, page in ((light, "light"), (dark, "dark")):
        ground, ink = GROUNDS[page]
        plain = re.findall(r"\.(?:passed|failed)\{color:(#\w+)\}", style)
        assert len(plain) == 2
        assert all(contrast(six_digits(color), ground) >= READABLE for color in plain)
        for share, color in re.findall(r"currentColor (\d+)%,(#\w{6})\)", light):
            assert contrast(mixed(ink, color, int(share) / 100), ground) >= READABLE


def mixed(color, other, share):
    """CSS's color-mix in srgb: `share` of `color`, the rest of `other`."""
    parts = zip(bytes.fromhex(color[1:]), bytes.fromhex(other[1:]), strict=True)
    return "#" + "".join(f"{round(share * a + (1 - share) * b):02x}" for a, b in parts)


def six_digits(color):
    return "#" + "".join(2 * letter for letter in color[1:]) if len(color) == 4 else color
