"""What is said of disk, memory and display, on facts made up for it."""

import sys
from pathlib import Path

import pytest

from course_utils.doctor import machine
from course_utils.units import GiB


def test_a_home_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    finding = machine.probe_home(tmp_path / "file" / "home")
    assert finding.mark == "fix"
    assert "COURSE_HOME" in finding.remedy
    assert machine.probe_home(tmp_path / "new").mark == "ok"


@pytest.mark.parametrize(("free", "mark"), [(machine.NEEDED_DISK, "ok"), (machine.NEEDED_DISK - 1, "note")])
def test_disk(free, mark):
    assert machine.judge_disk(Path("home"), free).mark == mark


@pytest.mark.parametrize(
    ("scale", "device", "available", "mark"),
    [
        ("laptop", "cpu", 2 * GiB, "ok"),
        ("laptop", "cpu", 2 * GiB - 1, "fix"),
        ("gpu", "cpu", 4 * GiB, "fix"),
        ("gpu", "cuda", 4 * GiB, "ok"),
    ],
)
def test_memory_against_what_the_scale_needs(scale, device, available, mark):
    finding = machine.probe_memory(scale, device, 2, available, 16 * GiB)
    assert finding.mark == mark
    assert mark == "ok" or f"the {scale} scale takes up to" in finding.text


def test_without_psutil_memory_is_a_note(monkeypatch):
    assert machine.find_memory("smoke", "cpu").mark in ("ok", "fix")
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert machine.find_memory("smoke", "cpu").mark == "note"


@pytest.mark.parametrize(
    ("environment", "platform", "expected"),
    [
        ({}, "linux", False),
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "w"}, "linux", True),
        ({"DISPLAY": ":0", "CI": "true"}, "linux", False),
        ({"DISPLAY": ":0", "SSH_CONNECTION": "x"}, "linux", False),
        ({}, "darwin", True),
        ({"SSH_CONNECTION": "x"}, "darwin", False),
        ({}, "win32", True),
    ],
)
def test_where_a_browser_is_opened(environment, platform, expected):
    assert machine.has_display(environment, platform) is expected


def test_by_default_this_process_is_looked_at(monkeypatch):
    for name in ("CI", "SSH_CONNECTION", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DISPLAY", ":0")
    assert machine.has_display(platform="linux")
    monkeypatch.delenv("DISPLAY")
    assert not machine.has_display(platform="linux")


def test_display():
    assert [machine.probe_display(present).mark for present in (True, False)] == ["ok", "note"]
