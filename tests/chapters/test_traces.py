"""What betrays a machine and what only looks like it."""

import getpass
import socket

import pytest

from course_utils.chapters.traces import machine_trace, stray_warning


@pytest.mark.parametrize(
    "text",
    [
        "/home/ada",
        "('/root/.cache/x')",
        "/tmp/x",
        "/Users/ada",
        "D:\\Users\\ada",
        "<a href='/work/x'>",
        "ipykernel_71/1.py",
    ],
)
def test_paths_of_one_machine_are_found(text):
    assert machine_trace(text)


@pytest.mark.parametrize(
    "text",
    [
        "tokens/work",
        "https://example.org/home/x",
        "root mean square",
        "Adam",
        "bytes/tmp",
        "../home",
        "12 /workers",
        "and/or",
    ],
)
def test_other_text_is_left_alone(text, monkeypatch):
    monkeypatch.setattr(getpass, "getuser", lambda: "adam")
    assert machine_trace(text) is None


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
