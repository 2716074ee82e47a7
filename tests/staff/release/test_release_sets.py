"""Sets released by several processes are what one gives, and a set is run again only when its sources changed."""

import re
from pathlib import Path

import pytest
from tiny_set import Q1, Q1_ANSWER, Q2, Q2_ANSWER, SETUP, notebook

from course_staff.commands import release as command
from course_staff.release import cache, stamps
from course_staff.release import release_sets as releasing
from course_staff.release.cache import ReleaseCache, parts_of
from course_staff.release.release_sets import release_parts, release_sets
from course_utils.cli import main
from course_utils.errors import CourseError

ROOT = Path(__file__).parents[3]
SOLUTIONS = [ROOT / "solutions" / name for name in ("00_start_here.ipynb", "01_autodiff.ipynb")]


def all_of(folder, tmp_path, paths, jobs=1):
    """What is released, and the parts that were run for it."""
    run = []
    places = tmp_path / "exercises", tmp_path / "sets"
    sets = release_sets(paths, *places, ReleaseCache(folder), jobs, run.append)
    return list(sets), run


@pytest.mark.slow
def test_many_processes_give_what_one_gives_and_say_when_each_part_is_through(tmp_path):
    sets, run = all_of(tmp_path / "kept", tmp_path, SOLUTIONS, jobs=2)
    parts = [part for path in SOLUTIONS for part in parts_of(path)]
    assert sorted(map(str, parts)) == sorted(map(str, run))
    sequential, _ = all_of(tmp_path / "alone", tmp_path, SOLUTIONS)
    assert sets == sequential
    second_time, run = all_of(tmp_path / "kept", tmp_path, SOLUTIONS, jobs=2)
    assert second_time == sets
    assert run == []


@pytest.fixture
def solutions(tmp_path, monkeypatch):
    """A set whose parts are only counted, since what they give is not looked at here."""
    path = tmp_path / "99_tiny.ipynb"
    path.write_text(notebook(SETUP, Q1, Q1_ANSWER, Q2, Q2_ANSWER))

    def release(parts, jobs):
        for part in parts:
            yield part, f"text {part[1]}" if part[1] else "notebook"

    monkeypatch.setattr(releasing, "release_parts", release)
    monkeypatch.setattr(releasing, "load_solutions", lambda path: [])
    return path


def test_only_what_changed_is_run_again(solutions, tmp_path, monkeypatch):
    def run():
        return [part[1] for part in all_of(tmp_path / "kept", tmp_path, [solutions])[1]]

    all_parts = [None, "q1", "q2"]
    assert run() == all_parts
    assert run() == []
    solutions.write_text(notebook(SETUP, Q1, Q1_ANSWER, Q2, f"{Q2_ANSWER}\n"))
    assert run() == all_parts
    monkeypatch.setattr(cache, "digest_of_code", lambda: "another")
    assert run() == all_parts
    assert run() == []
    (tmp_path / "kept" / "99_tiny.q2.json").write_text('{"digest": 1}')
    assert run() == ["q2"], "what is damaged is none"
    assert ReleaseCache(tmp_path / "kept").find((solutions, "q2")) == "text q2"


def test_an_interrupted_run_goes_on_where_it_was(solutions, tmp_path):
    def interrupt(part):
        if part[1] == "q1":
            raise KeyboardInterrupt

    places = tmp_path / "exercises", tmp_path / "sets"
    with pytest.raises(KeyboardInterrupt):
        list(release_sets([solutions], *places, ReleaseCache(tmp_path / "kept"), 1, interrupt))
    assert [part[1] for part in all_of(tmp_path / "kept", tmp_path, [solutions])[1]] == ["q2"]


def test_a_question_that_is_not_fit_stops_it_all_and_nothing_is_kept(tmp_path):
    path = tmp_path / "99_tiny.ipynb"
    path.write_text(notebook(SETUP, Q1.replace('"x + factor"', '"factor * x"'), Q1_ANSWER))
    with pytest.raises(CourseError, match="q1 cannot be released: the mistake 'sum' passes"):
        list(release_parts([(path, "q1")], 1))
    with pytest.raises(CourseError):
        all_of(tmp_path / "kept", tmp_path, [path])
    assert not (tmp_path / "kept").exists()


def test_facts_that_disagree_are_said_before_anything_is_run(tmp_path, monkeypatch):
    text = (ROOT / "solutions" / "00_start_here.ipynb").read_text("utf-8")
    line = re.search(r"\*q2 · (\w+) · (\d+) minutes · (\d+) points?\*", text)
    path = tmp_path / "00_start_here.ipynb"
    path.write_text(text.replace(line[0], line[0].replace(f"{line[2]} minutes", "77 minutes")), encoding="utf-8")
    monkeypatch.setattr(releasing, "release_parts", lambda *_: pytest.fail("something is run"))
    message = f"The statement of q2 says .* 77 minutes .*, and its question's cell says .*minutes={line[2]}, points={line[3]};"
    with pytest.raises(CourseError, match=message):
        all_of(tmp_path / "kept", tmp_path, [path])
    path = tmp_path / "again" / path.name
    path.parent.mkdir()
    path.write_text(text.replace(line[0], ""), encoding="utf-8")
    with pytest.raises(CourseError, match=f"The statement of q2 lacks its facts line; .*: {re.escape(line[0])}"):
        all_of(tmp_path / "kept", tmp_path, [path])


def test_a_release_says_beforehand_what_it_runs_and_why(solutions, checkout, monkeypatch, capsys):
    path = solutions.replace(checkout / "solutions" / solutions.name)
    monkeypatch.setattr(command, "cores", lambda: 1)

    def announced(*arguments):
        main(["release", *arguments])
        return capsys.readouterr().err.split(" to run, about 1 minute on 1 core. Reasons: ")

    assert announced() == ["2 questions", "never released before (1 set).\n"]
    assert announced("--check") == [""], "nothing changed, nothing is run, and nothing is said of it"
    path.write_text(path.read_text().replace("number", "figure") + "\n")
    assert announced() == [
        "2 questions",
        "the solutions or their released files changed since the last release (1 set).\n",
    ]
    for module in (cache, stamps):
        monkeypatch.setattr(module, "digest_of_code", lambda: "another")
    assert announced("--check") == [
        "2 questions",
        "the course's code or a library changed since the last release (1 set).\n",
    ]
