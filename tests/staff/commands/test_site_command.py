"""`course site`: what is asked for reaches the builder, and what cannot be meant is told in a sentence."""

import pytest

from course_staff.commands import site
from course_staff.site import build as builder
from course_staff.site import stills
from course_utils.cli import main


@pytest.fixture
def builder_calls(monkeypatch):
    """What the builder was given, each time; `warnings` is what it will answer."""
    calls, warnings = [], []

    def build(place, output, repository, address):
        calls.append((output, repository, address))
        return warnings

    monkeypatch.setattr(builder, "build", build)
    return calls, warnings


def test_folder_and_address_reach_the_builder(builder_calls, tmp_path, capsys):
    calls, _ = builder_calls
    assert main(["site", "--output", str(tmp_path / "pages"), "--address", "https://host.org/course"]) == 0
    assert calls == [(tmp_path / "pages", "", "https://host.org/course/")]
    assert str(tmp_path / "pages" / "index.html") in capsys.readouterr().out


def test_a_warning_is_shown_and_is_a_fault(builder_calls, tmp_path, capsys):
    _, warnings = builder_calls
    warnings.append("docs/plan.md: a heading is missing")
    assert main(["site", "--output", str(tmp_path)]) == 1
    assert "docs/plan.md: a heading is missing" in capsys.readouterr().out


def test_an_address_without_its_beginning_is_refused(builder_calls, capsys):
    assert main(["site", "--address", "host.org/course"]) == 2
    assert "host.org/course is not a site address; write it in full" in capsys.readouterr().err
    assert builder_calls[0] == []


def test_without_the_tools_it_says_how_to_get_them(builder_calls, monkeypatch, capsys):
    monkeypatch.setattr(site, "find_spec", lambda name: None if name == "sphinx" else True)
    assert main(["site"]) == 2
    assert "not installed (sphinx): run `make site`" in capsys.readouterr().err


def test_stills_are_drawn_and_nothing_is_built(builder_calls, monkeypatch, capsys):
    monkeypatch.setattr(stills, "draw", lambda path: [path.stem] * 3)
    assert main(["site", "--stills", "3", "05b"]) == 0
    assert capsys.readouterr().out == "03_adamw: 3 stills\n05b_choosing: 3 stills\n"
    assert builder_calls[0] == []
