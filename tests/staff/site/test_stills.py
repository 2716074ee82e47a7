"""Stills of the figures to play with: for each chapter three settings, which its controls can have, and their pictures."""

import base64
import re
import tomllib
from io import BytesIO

import matplotlib.pyplot as plt
import pytest
from PIL import Image, ImageChops

from course_staff.demos.controls import press
from course_staff.notebooks.files import read_notebook
from course_staff.notebooks.plays import catch, play_cells
from course_staff.site import stills
from course_staff.site.stills import SETTINGS, draw, load_stills, settings_of
from course_utils.errors import CourseError
from course_utils.files import chapters_in, find_place

CHAPTERS = chapters_in(find_place().notebooks)
NAMES = [path.stem for path in CHAPTERS]
(LOCAL_SGD,) = (path for path in CHAPTERS if path.stem == "09_local_sgd")
WITH_UNIT = re.compile(r"\d[\d,.]*(?: MiB| GiB|%)")


@pytest.fixture
def write(monkeypatch, tmp_path):
    """Writes settings of chapter 09 that stand in for the course's: each a label and what is set."""
    monkeypatch.setattr(stills, "SETTINGS", tmp_path / "stills.toml")

    def write(*settings):
        text = "".join(f'[[09_local_sgd]]\nlabel = "{label}"\nset = {{ {values} }}\n' for label, values in settings)
        stills.SETTINGS.write_text(text, encoding="utf-8")

    return write


def differ(first, second) -> bool:
    image, other_image = (Image.open(path) for path in (first, second))
    return image.size != other_image.size or ImageChops.difference(image, other_image).getbbox() is not None


def test_each_chapter_has_the_starting_values_and_two_other_settings():
    assert list(tomllib.loads(SETTINGS.read_text(encoding="utf-8"))) == NAMES
    for chapter in NAMES:
        start, first, second = settings_of(chapter)
        assert start.values == {}
        assert {} != first.values != second.values != {}


@pytest.mark.parametrize("chapter", CHAPTERS, ids=NAMES)
def test_every_value_is_one_that_the_control_can_have_and_not_where_it_starts(chapter):
    with plt.rc_context():
        controls = catch(chapter).controls
    start = {name: control.value for name, control in controls.items()}
    for setting in settings_of(chapter.stem)[1:]:
        press(setting.values, controls)
        for name in setting.values:
            argument = name.partition(".")[0]
            assert controls[argument].value != start[argument], name


def test_a_chapter_is_drawn_into_files_that_are_found_again(tmp_path, write):
    write(("H is 10", ""), ("H is 1", "interval = 1"), ("H is 10 again", "interval = 10"))
    pictures = draw(LOCAL_SGD, tmp_path, "smoke")
    assert [still.label for still in pictures] == ["H is 10", "H is 1", "H is 10 again"]
    assert [still.file for still in pictures] == ["09-1.webp", "09-2.webp", "09-3.webp"]
    start, other, like_the_start = (tmp_path / still.file for still in pictures)
    assert differ(start, other)
    assert not differ(start, like_the_start)
    assert "H = 10," in pictures[0].alt
    assert "H = 1," in pictures[1].alt
    for still in pictures:
        picture = Image.open(tmp_path / still.file)
        assert picture.format == "WEBP"
        assert picture.width / picture.height == pytest.approx(still.width / still.height, rel=0.005)
    assert load_stills("09_local_sgd", tmp_path) == pictures


def test_stills_have_todays_labels_and_are_refused_where_there_are_more_settings(tmp_path, write):
    write(("H is 10", ""))
    draw(LOCAL_SGD, tmp_path, "smoke")
    write(("other words", ""))
    assert load_stills("09_local_sgd", tmp_path)[0].label == "other words"
    write(("one", ""), ("another", "interval = 1"))
    with pytest.raises(CourseError, match="draw them with `course site --stills 09_local_sgd`"):
        load_stills("09_local_sgd", tmp_path)
    assert draw(LOCAL_SGD, tmp_path, "smoke") == load_stills("09_local_sgd", tmp_path), "the advice helps"


@pytest.mark.parametrize("chapter", CHAPTERS, ids=NAMES)
def test_the_still_of_the_start_says_what_the_stored_picture_says(chapter):
    start = load_stills(chapter.stem)[0]
    *_, (_, metadata) = stored_pictures(chapter)
    assert without_times(start.alt) == without_times(metadata["alt"])
    assert start.width == pytest.approx(metadata["width"], abs=2)


@pytest.mark.parametrize(
    ("values", "control"),
    [
        ("interval = 61", "interval"),  # past the end
        ("heterogeneity = 0.55", "heterogeneity"),  # between two steps
        ('ranks = "three"', "ranks"),
        ("speed = 3", "speed"),
        ('"interval.least" = 1', "interval.least"),
    ],
)
def test_a_value_that_the_control_cannot_have_is_refused_in_a_sentence(tmp_path, write, values, control):
    write(("too far", values))
    with pytest.raises(CourseError, match=rf"^stills.toml, 09_local_sgd, 'too far': .*control '{control}'.*; .*\.$"):
        draw(LOCAL_SGD, tmp_path, "smoke")
    assert not (tmp_path / "09-1.webp").exists()


def test_a_chapter_without_settings_is_named(tmp_path, write):
    write()
    with pytest.raises(CourseError, match="no settings for 09_local_sgd; add three"):
        draw(LOCAL_SGD, tmp_path, "smoke")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("chapter", CHAPTERS, ids=NAMES)
def test_the_first_still_is_the_stored_picture_and_labels_say_what_the_others_show(tmp_path, chapter):
    """At the scale of the stored notebooks."""
    pictures = draw(chapter, tmp_path)
    first, *others = [tmp_path / still.file for still in pictures]
    assert all(differ(first, other) for other in others)
    assert differ(*others)
    *_, (bundle, metadata) = stored_pictures(chapter)
    stored_stills = load_stills(chapter.stem)
    assert [without_times(still.alt) for still in pictures] == [without_times(still.alt) for still in stored_stills]
    assert pictures[0].width == pytest.approx(metadata["width"], abs=2)
    assert Image.open(first).height == pytest.approx(Image.open(BytesIO(bundle)).height, abs=4)
    seen = ""  # what an earlier picture showed may be compared with
    for still in pictures:
        seen += still.alt + " ".join(f"{100 * float(share):.0f}%" for share in re.findall(r"\b[01]\.\d\d\b", still.alt))
        figures = WITH_UNIT.findall(still.label.replace(" %", "%"))
        assert [number for number in figures if number not in seen] == [], still.label


def without_times(text: str) -> str:
    """Seconds are those of the machine."""
    return re.sub(r"\S+ ms", "", text)


def stored_pictures(chapter):
    outputs = [output for cell in play_cells(read_notebook(chapter).cells) for output in cell.outputs]
    return [
        (base64.b64decode(output.data["image/png"]), output.metadata["image/png"])
        for output in outputs
        if "image/png" in output.get("data", {})
    ]
