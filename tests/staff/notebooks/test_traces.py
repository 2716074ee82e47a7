"""What betrays a machine and what only looks like it."""

import getpass
import socket
import sys
import tempfile
from pathlib import Path, PurePosixPath, PureWindowsPath

import pytest

from course_staff.notebooks import traces
from course_staff.notebooks.traces import machine_trace, stray_warning


@pytest.mark.parametrize(
    "text",
    [
        "/home/ada",
        "('/root/.cache/x')",
        "/tmp/x",
        "/Users/ada",
        "D:\\Users\\ada",
        "<a href='/srv/x'>",
        "C:/Users/ada",
        "file:///d/x",
        "lib/site-packages/x.py",
        "ipykernel_71/1.py",
    ],
)
def test_paths_of_one_machine_are_found(text):
    assert machine_trace(text)


@pytest.mark.parametrize(
    "text",
    [
        "tokens/home",
        "https://example.org/home/x",
        "root mean square",
        "Adam",
        "bytes/tmp",
        "../home",
        "12 /homes",
        "and/or",
    ],
)
def test_other_text_is_left_alone(text, monkeypatch):
    monkeypatch.setattr(getpass, "getuser", lambda: "adam")
    assert machine_trace(text) is None


@pytest.mark.parametrize("kind", ["checkout", "prefix", "home", "temporary"])
@pytest.mark.parametrize("folder", ["/elsewhere/ada", r"Q:\\data\\ada+1"])
def test_this_machines_own_folders_are_found_wherever_they_lie(kind, folder, monkeypatch):
    """With slashes of either kind, doubled as in a repr or not; names that only begin like them are left alone."""
    path = PureWindowsPath(folder) if folder.startswith("Q") else PurePosixPath(folder)
    assert machine_trace(f"saved in {path}/x") is None
    if kind == "checkout":
        monkeypatch.setattr(traces, "__file__", str(path / "course_utils" / "chapters" / "traces.py"))
        monkeypatch.setattr(traces, "Path", type(path))
        monkeypatch.setattr(type(path), "home", lambda: path.parent / "other", raising=False)
    if kind == "prefix":
        monkeypatch.setattr(sys, "prefix", str(path))
    if kind == "home":
        monkeypatch.setattr(Path, "home", lambda: path)
    if kind == "temporary":
        monkeypatch.setattr(tempfile, "gettempdir", lambda: str(path))
    for text in (f"saved in {path}/x", f"{str(path)!r}", f"at {path.as_posix()}."):
        assert machine_trace(text), text
    assert machine_trace(f"{path}la and {path}-2") is None


def test_a_home_at_the_root_is_no_reason_to_refuse_every_path(monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: Path("/"))
    assert machine_trace("a / b and /elsewhere") is None


def test_names_of_host_and_user(monkeypatch):
    monkeypatch.setattr(getpass, "getuser", lambda: "adam")
    monkeypatch.setattr(socket, "gethostname", lambda: "lab-3.local")
    assert machine_trace("saved on lab-3.local today")
    assert machine_trace("adam@elsewhere")
    assert machine_trace("adam with AdamW on another-lab-3.locality") is None
    monkeypatch.setattr(socket, "gethostname", lambda: "model")
    assert machine_trace("the model trains") is None
    assert machine_trace("ada@model")


@pytest.mark.parametrize("text", ["UserWarning: x", "WARNING|root", "Warning!", "Traceback (most recent call last):"])
def test_warnings_are_found(text):
    assert stray_warning(text)


def test_warm_words_are_no_warnings():
    assert stray_warning("linear warm-up and forewarning") is None
