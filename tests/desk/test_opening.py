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


def test_a_warning_names_no_file_of_the_kernel(monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    begin()
    text = warnings.formatwarning("Cores are busy.", UserWarning, "ipykernel_71/1.py", 4)
    assert text == "UserWarning: Cores are busy.\n"
