"""A chapter begins alike every time."""

import random
import subprocess
import sys
import warnings
from types import ModuleType

import numpy
import pytest
import torch

from course_utils import settings as settings_room
from course_utils.chapters import begin
from course_utils.errors import CourseError
from course_utils.files import chapters_in, find_place, matching_names, require_one_name

QUIET = """
import logging, sys
from course_utils.chapters import begin
begin()
imported = {"datasets", "transformers"} <= set(sys.modules)
import datasets, huggingface_hub.utils
from transformers.utils import logging as transformers_logging
bars = transformers_logging.is_progress_bar_enabled() or not huggingface_hub.utils.are_progress_bars_disabled()
remarks = logging.getLogger("bitsandbytes").isEnabledFor(logging.WARNING)
print(imported, transformers_logging.get_verbosity(), datasets.are_progress_bars_disabled(), bars, remarks)
assert datasets.logging.get_verbosity() == logging.ERROR
"""


def draw():
    return random.random(), numpy.random.rand(), torch.rand(1).item()


def test_it_says_one_line_and_seeds_everything_each_time(capsys):
    begin()
    first = draw()
    begin()
    assert draw() == first
    assert capsys.readouterr().out == "smoke scale on cpu, seed 0\n" * 2


def test_in_colab_it_says_how_to_keep_progress_until_that_is_done(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "google.colab", ModuleType("google.colab"))
    monkeypatch.delenv("COURSE_HOME")
    begin()
    assert "%env COURSE_HOME=/content/drive/MyDrive/" in capsys.readouterr().out
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "drive"))  # in the kernel that runs
    begin()
    assert capsys.readouterr().out == "smoke scale on cpu, seed 0\n"
    assert settings_room.settings().home == tmp_path / "drive"


def test_another_seed_draws_other_numbers(monkeypatch, capsys):
    begin()
    first = draw()
    monkeypatch.setenv("COURSE_SEED", "7")
    settings_room.settings.cache_clear()
    begin()
    assert not set(draw()) & set(first)
    assert capsys.readouterr().out.endswith("seed 7\n")


@pytest.mark.parametrize(
    "before",
    ["", pytest.param("import datasets, transformers\n", marks=pytest.mark.slow)],
    ids=["first", "imported before"],
)
def test_the_libraries_keep_quiet_but_for_errors(before):
    """Whether they are imported before or after; the chapter's beginning waits for none of them."""
    output = subprocess.run(
        [sys.executable, "-c", before + QUIET], capture_output=True, text=True, timeout=100, check=True
    ).stdout
    assert output.splitlines()[-1] == f"{bool(before)} 40 True False False"


def test_a_bad_setting_is_one_sentence(monkeypatch):
    monkeypatch.setenv("COURSE_SCALE", "huge")
    settings_room.settings.cache_clear()
    with pytest.raises(CourseError, match="COURSE_SCALE='huge'"):
        begin()


def test_the_checkout_is_found_from_below_and_from_elsewhere(tmp_path):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "course_utils").mkdir()
    assert find_place(tmp_path / "notebooks").root == tmp_path
    assert find_place(tmp_path / "notebooks").start == tmp_path / "notebooks" / "00_start_here.ipynb"


def test_chapters_by_the_beginning_of_their_names(tmp_path):
    for name in ("01_b", "00_a", "02_c"):
        (tmp_path / f"{name}.ipynb").touch()
    assert [path.stem for path in chapters_in(tmp_path)] == ["00_a", "01_b", "02_c"]
    assert [path.stem for path in chapters_in(tmp_path, ["02", "00_a"])] == ["02_c", "00_a"]
    with pytest.raises(CourseError, match="No chapter is called '7'; the chapters are: 00_a, 01_b, 02_c"):
        chapters_in(tmp_path, ["7"])


SEVERAL = ["00_start_here", "03_adamw", "05_8bit_adam", "05b_choosing", "10_fsdp"]


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("3", ["03_adamw"]),
        ("03", ["03_adamw"]),
        ("03_adamw", ["03_adamw"]),
        ("3_adamw", ["03_adamw"]),
        ("03_ad", ["03_adamw"]),
        ("0", ["00_start_here"]),
        ("1", []),
        ("10", ["10_fsdp"]),
        ("5", ["05_8bit_adam"]),
        ("5b", ["05b_choosing"]),
        ("05_", ["05_8bit_adam"]),
        ("adamw", []),
    ],
)
def test_a_chapter_is_called_by_its_number_or_its_name(name, path):
    assert matching_names(name, SEVERAL) == path


def test_the_one_that_is_meant_must_be_one():
    assert require_one_name("3", SEVERAL, "set") == "03_adamw"
    with pytest.raises(CourseError, match="No set is called '7'; the sets are: 00_start_here, 03_adamw, "):
        require_one_name("7", SEVERAL, "set")
    with pytest.raises(CourseError, match="'05' is the beginning of 05b_x and 05c_y; write more of the name"):
        require_one_name("05", ["05b_x", "05c_y"], "set")


def test_a_warning_names_no_file_of_the_kernel(monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    begin()
    text = warnings.formatwarning("Cores are busy.", UserWarning, "ipykernel_71/1.py", 4)
    assert text == "UserWarning: Cores are busy.\n"
