"""A learner gets a folder of the course, writes in it, and gets later versions without losing a word."""

import json
import shutil
from pathlib import Path

import nbformat
import pytest

from course_staff.notebooks.links import dead_links, prose
from course_utils.cli import main
from course_utils.cli.check import find_notebook
from course_utils.desk.workspace import HANDED_OUT, find_workspace, hand_out, merge
from course_utils.errors import CourseError
from course_utils.files import Place, exercises_of, find_place
from course_utils.settings import settings

STEM = "00_start_here"
CHAPTER = f"notebooks/{STEM}.ipynb"
EXERCISE = exercises_of(STEM)


def cell(name, source="", **fields):
    kind = "markdown" if name.endswith("-text") else "code"
    return {"id": name, "cell_type": kind, "metadata": {}, "source": source or name, **fields}


def ran(name, source=""):
    output = {"name": "stdout", "output_type": "stream", "text": ["it is 43.3"]}
    return cell(name, source, outputs=[output], execution_count=1)


def store(path, *cells):
    path.parent.mkdir(parents=True, exist_ok=True)
    notebook = {"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(notebook), encoding="utf-8")


def cells_of(path):
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def sources(path):
    return [cell["source"] for cell in cells_of(path)]


@pytest.fixture
def place(tmp_path):
    """A checkout of one chapter, executed, with its exercise and a page."""
    root = tmp_path / "checkout"
    (root / "course_utils").mkdir(parents=True)
    store(root / CHAPTER, cell("intro-text"), ran("bet"), ran("settle"))
    store(root / EXERCISE, cell("q1-text"), cell("q1", "..."))
    (root / "docs").mkdir()
    (root / "docs" / "glossary.md").write_text("first", encoding="utf-8")
    return Place(root)


@pytest.fixture
def folder(tmp_path, place):
    """The learner's folder, just handed out."""
    folder = tmp_path / "my-course"
    assert list(hand_out(place, folder)) == [f"Your copies of the chapters and exercises are in {folder}."]
    return folder


def test_what_is_handed_out_holds_no_output_and_the_checkout_stays_as_it_is(place, folder):
    before = (place.root / CHAPTER).read_bytes()
    assert sources(folder / CHAPTER) == ["intro-text", "bet", "settle"]
    assert [saved.get("outputs") for saved in cells_of(folder / CHAPTER)] == [None, [], []]
    assert b"43.3" not in b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert list(hand_out(place, folder)) == []
    assert (place.root / CHAPTER).read_bytes() == before


def test_a_later_version_brings_its_text_and_leaves_what_was_written_and_run(place, folder):
    store(folder / CHAPTER, cell("intro-text"), ran("bet", "bet 70"), cell("note", "my note"), ran("settle"))
    store(place.root / CHAPTER, cell("intro-text", "better words"), ran("bet"), cell("new-text"), ran("settle"))
    assert list(hand_out(place, folder)) == [f"Updated {CHAPTER} in {folder}; your changes stay."]
    assert sources(folder / CHAPTER) == ["better words", "bet 70", "my note", "new-text", "settle"]
    outputs = [bool(saved.get("outputs")) for saved in cells_of(folder / CHAPTER)]
    assert outputs == [False, True, False, False, True], "what was run stays run"
    assert list(folder.rglob("*(old)*")) == []


def update(place, folder, *cells):
    """Hand out a later version of the exercise; returns the lines for the learner, and the sources of their cells."""
    store(place.root / EXERCISE, *cells)
    return list(hand_out(place, folder)), sources(folder / EXERCISE)


def test_where_both_changed_a_cell_both_stand_and_only_the_learners_runs(place, folder):
    store(folder / EXERCISE, cell("q1-text"), ran("q1", "q1 = 42"), cell("note", "my note"))
    lines, cells_now = update(place, folder, cell("q1-text"), cell("q1", "q1 = ...  # new"), cell("q2"))
    assert lines[0] == (
        f"{EXERCISE}: you and the course both changed 1 cell: yours stays, and the course's version follows as text."
    )
    assert [cells_now[0], cells_now[1], *cells_now[3:]] == ["q1-text", "q1 = 42", "my note", "q2"]
    note = cells_of(folder / EXERCISE)[2]
    assert note["cell_type"] == "markdown"
    assert note["source"].startswith("**New from the course.**")
    assert note["source"].endswith("> ```python\n> q1 = ...  # new\n> ```")
    names = {}
    for saved in cells_of(folder / EXERCISE):
        if saved["cell_type"] == "code" and "=" in saved["source"]:
            exec(saved["source"], names)
    assert names["q1"] == 42
    nbformat.validate(note, ref="markdown_cell", version=4, version_minor=5)
    assert list(folder.rglob("*(old)*")) == [], "nothing is gone, so no copy is needed"


def test_a_third_version_leaves_one_cell_of_the_course_or_none_if_it_is_taken_over(place, folder):
    store(folder / EXERCISE, cell("q1-text"), cell("q1", "my answer"))
    _, second = update(place, folder, cell("q1-text"), cell("q1", "second"), cell("q2"))
    _, unrelated = update(place, folder, cell("q1-text"), cell("q1", "second"), cell("q2", "better q2"))
    assert [unrelated[:-1], unrelated[-1]] == [second[:-1], "better q2"], "no other version of q1, no other words"
    lines, third = update(place, folder, cell("q1-text"), cell("q1", "third"), cell("q2", "better q2"))
    assert "both changed 1 cell" in lines[0]
    assert [len(third), "second" in third[2], "third" in third[2]] == [4, False, True]
    saved = cells_of(folder / EXERCISE)
    saved[1]["source"] = ["third"]  # taken over; as JupyterLab stores it
    saved[2]["source"] = saved[2]["source"].splitlines(keepends=True)
    store(folder / EXERCISE, *saved)
    lines, fourth = update(place, folder, cell("q1-text"), cell("q1", "fourth"), cell("q2", "better q2"))
    assert fourth == ["q1-text", "fourth", "better q2"]
    assert lines == [f"Updated {EXERCISE} in {folder}; your changes stay."]


def test_words_written_into_the_courses_cell_are_the_learners(place, folder):
    store(folder / EXERCISE, cell("q1-text"), cell("q1", "my answer"))
    update(place, folder, cell("q1-text"), cell("q1", "second"))
    saved = cells_of(folder / EXERCISE)
    saved[2]["source"] += " and my thoughts"
    store(folder / EXERCISE, *saved)
    _, cells_now = update(place, folder, cell("q1-text"), cell("q1", "third"))
    assert len(cells_now) == 4
    assert sorted("my thoughts" in source for source in cells_now) == [False, False, False, True]


def test_a_cell_that_was_removed_comes_back_only_as_text(place, folder):
    store(folder / EXERCISE, cell("q1"))
    lines, cells_now = update(place, folder, cell("q1-text", "better ``` words"), cell("q1", "..."))
    assert "both changed 1 cell" in lines[0]
    assert [saved["cell_type"] for saved in cells_of(folder / EXERCISE)] == ["markdown", "code"]
    assert cells_now[0].endswith("> better ``` words")
    store(folder / EXERCISE, *cells_of(folder / EXERCISE)[1:])
    assert update(place, folder, cell("q1-text", "better ``` words"), cell("q1", "..."))[0] == []


@pytest.mark.parametrize(
    ("current", "new", "merged", "conflicts"),
    [
        ("a b", "a b", "a b", 0),
        ("b", "a b", "b", 0),
        ("b", "A:x b", "b", 1),
        ("x a b", "a b", "x a b", 0),
        ("a b x y", "a c b", "a c b x y", 0),
        ("a x b", "b", "x b", 0),
        ("a:mine b", "b", "a:mine b", 1),
        ("a:mine b", "a:mine b", "a:mine b", 0),
        ("a b x", "b a", "b x a", 0),
        ("a a:twin b", "a c b", "a a:twin c b", 0),
        ("", "a b", "", 0),
    ],
)
def test_cells_are_merged_three_ways(current, new, merged, conflicts):
    """Of a base of `a b`; `a:mine` is cell a with another text."""

    def cells(text):
        parts = (part.partition(":") for part in text.split())
        return [cell(name.lower(), source or name.lower()) for name, _, source in parts]

    joined, count = merge(cells(current), cells("a b"), cells(new))
    joined = [part for part in joined if "course-version" not in part["metadata"].get("tags", ())]
    assert [part["source"] for part in joined] == [part["source"] for part in cells(merged)]
    assert count == conflicts


def test_cells_without_ids_are_the_learners_own():
    bare = [{"cell_type": "code", "source": ["a"]}, {"cell_type": "code", "source": ["b"]}]
    merged, _ = merge(bare, [cell("a")], [cell("a"), cell("c")])
    assert [saved["source"] for saved in merged] == [["a"], ["b"], "c"]


def test_a_page_that_both_changed_is_new_and_the_old_one_kept(place, folder):
    page = folder / "docs" / "glossary.md"
    page.write_text("with a note")
    assert list(hand_out(place, folder)) == []
    assert page.read_text() == "with a note"
    (place.root / "docs" / "glossary.md").write_text("second")
    remark, _ = hand_out(place, folder)
    assert remark.endswith("you and the course both changed it; the old file is saved as glossary (old).md.")
    assert [page.read_text(), page.with_stem("glossary (old)").read_text()] == ["second", "with a note"]


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff", b"[]", b'{"nbformat": 3}', b'{"nbformat": 4, "cells": [1]}'])
def test_a_damaged_notebook_is_kept_and_a_fresh_one_handed_out(place, folder, damage):
    (folder / CHAPTER).write_bytes(damage)
    remark, _ = hand_out(place, folder)
    assert "it could not be read, so you have a new one; the old file is saved as" in remark
    assert (folder / "notebooks" / f"{STEM} (old).ipynb").read_bytes() == damage
    assert sources(folder / CHAPTER) == ["intro-text", "bet", "settle"]


def test_without_the_hidden_folder_nothing_that_was_written_is_lost(place, folder):
    shutil.rmtree(folder / HANDED_OUT)
    store(folder / CHAPTER, cell("intro-text"), ran("bet", "bet 70"), ran("settle"))
    remark, _ = hand_out(place, folder)
    assert "both changed 1 cell" in remark
    cells_now = sources(folder / CHAPTER)
    assert [*cells_now[:2], *cells_now[3:]] == ["intro-text", "bet 70", "settle"]
    (folder / HANDED_OUT / CHAPTER).unlink()
    list(hand_out(place, folder))
    assert sources(folder / CHAPTER) == cells_now


def test_a_notebook_that_was_removed_is_handed_out_again(place, folder):
    (folder / CHAPTER).unlink()
    assert len(list(hand_out(place, folder))) == 1
    assert sources(folder / CHAPTER) == ["intro-text", "bet", "settle"]


def test_what_cannot_be_written_or_read_is_said_in_one_sentence(place, tmp_path):
    (tmp_path / "file").write_text("in the way")
    message = "cannot be read or written .*; fix its permissions, or name another folder with"
    with pytest.raises(CourseError, match=message):
        list(hand_out(place, tmp_path / "file"))
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "notebooks").symlink_to(place.root / "notebooks")
    (tmp_path / "clone" / "course_utils").mkdir(parents=True)
    for root in (place.root, tmp_path / "link", tmp_path / "clone"):
        with pytest.raises(CourseError, match="contains the course's own notebooks; name another folder with --folder"):
            list(hand_out(place, root))
    for cells in ([cell("a"), cell("a")], [{"cell_type": "code", "source": ""}]):
        store(place.root / CHAPTER, *cells)
        with pytest.raises(CourseError, match="is damaged; restore it with `git checkout`"):
            list(hand_out(place, tmp_path / "other"))


def test_the_folder_is_found_by_flag_from_within_by_home_and_in_the_checkout(place, folder, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert find_workspace(place) == settings().home / "my-course"
    assert find_workspace(place, Path("there")) == tmp_path / "there"
    monkeypatch.chdir(folder / "exercises")
    assert find_workspace(place) == folder
    monkeypatch.chdir(place.root)
    monkeypatch.delenv("COURSE_HOME")
    settings.cache_clear()
    assert find_workspace(place) == place.root / "my-course"


def test_lab_opens_the_copy_and_check_reads_it(place, monkeypatch, capsys):
    argvs = []
    monkeypatch.setattr("jupyterlab.labapp.main", argvs.append)
    monkeypatch.chdir(place.root)
    folder = settings().home / "my-course"
    assert find_notebook("00") == place.root / EXERCISE, "before there is a copy"
    for name in ([], ["00"], [CHAPTER], [str(place.root / CHAPTER)]):
        assert main(["lab", "--no-browser", *name]) == 0
        assert {f"--ServerApp.root_dir={folder}", "--no-browser"} <= set(argvs[-1])
        assert f"--LabApp.default_url=/lab/tree/{CHAPTER if name else 'start.md'}" in argvs[-1]
    assert capsys.readouterr().out == f"Your copies of the chapters and exercises are in {folder}.\n"
    assert find_notebook("00") == folder / EXERCISE
    elsewhere = place.root / "solutions" / "00.ipynb"
    store(elsewhere, cell("a"))
    assert main(["lab", str(elsewhere)]) == 2
    assert "open it with `jupyter lab`" in capsys.readouterr().err
    assert main(["lab", "--folder", str(place.root / "mine"), "0"]) == 0
    assert f"--ServerApp.root_dir={place.root / 'mine'}" in argvs[-1]
    assert main(["lab", "--folder", "."]) == 2
    assert "name another folder with --folder" in capsys.readouterr().err


def test_of_the_real_course_no_output_is_handed_out_and_every_link_lives(tmp_path):
    list(hand_out(find_place(), tmp_path))
    notebooks = [path for folder in ("notebooks", "exercises") for path in (tmp_path / folder).glob("*.ipynb")]
    assert len(notebooks) > 20
    assert [saved for path in notebooks for saved in cells_of(path) if saved.get("outputs")] == []
    texts = ((path, text) for path in [*notebooks, *tmp_path.glob("docs/*.md")] for _, text in prose(path))
    assert [(path.name, dead) for path, text in texts for dead in dead_links(path, text)] == []
