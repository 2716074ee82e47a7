"""The learner's first page, as somebody meets it who begins, and who comes back."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from course_utils.desk import bets, start
from course_utils.desk.workspace import SOURCES, hand_out
from course_utils.errors import CourseError
from course_utils.files import Place
from course_utils.grading.board import Board, Standing

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def course_copy(tmp_path_factory) -> Path:
    """The first chapters of the course with their exercises, and its pages."""
    course, workspace = (tmp_path_factory.mktemp("start") / name for name in ("course", "my-course"))
    for path in (path for pattern in SOURCES for path in ROOT.glob(pattern)):
        if path.suffix == ".md" or path.name < "04":
            (course / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, course / path.relative_to(ROOT))
    assert list(hand_out(Place(course), workspace)) == [
        f"Your copies of the chapters and exercises are in {workspace}."
    ]
    return workspace


@pytest.fixture
def folder(course_copy, tmp_path) -> Path:
    return shutil.copytree(course_copy, tmp_path / "my-course")


def page_of(folder) -> str:
    return start.write_start_page(folder).read_text(encoding="utf-8")


def work_on(path: Path, cells: int, when: float) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for count, cell in enumerate(code[:cells], start=1):
        cell["execution_count"] = count
    path.write_text(json.dumps(notebook), encoding="utf-8")
    os.utime(path, (when, when))


def test_who_begins_reads_what_to_do_first_in_three_lines(folder):
    steps = re.findall(r"^\d\. .*", page_of(folder), re.MULTILINE)
    assert len(steps) == 3
    assert steps[0].startswith("1. Open [Start here](notebooks/00_start_here.ipynb). It takes about 40 minutes")
    assert "(exercises/00_" in steps[2]
    assert "Your progress" not in page_of(folder)


def test_every_chapter_stands_there_with_its_minutes_as_the_readme_has_them(folder):
    row = re.compile(r"^\| (\w+) \| \[([^\]]+)\]\((\S+)\).*\| (\d+) \|$", re.MULTILINE)
    readme = row.findall((ROOT / "README.md").read_text())
    rows = re.findall(r"^\| (\w+) \| \[([^\]]+)\]\((\S+)\) \| (\d+) \|", page_of(folder), re.MULTILINE)
    assert rows == [row for row in readme if row[0] < "04"]
    assert len(rows) == 4


def test_every_link_leads_to_a_file_of_the_folder(folder):
    links = re.findall(r"\]\(([^)#]+)", page_of(folder))
    assert len(links) >= 10
    assert [link for link in links if not (folder / link).is_file()] == []


@pytest.fixture
def two_begun(folder, monkeypatch) -> Path:
    """The folder with two chapters begun, one question passed, two bets settled and one open."""
    board = (
        Standing("00_start_here", 1, 3, 2, 6, "q2 · Seconds"),
        Standing("01_autodiff", 0, 7, 0, 14, "q1 · A graph"),
    )
    monkeypatch.setattr(start, "my_progress", lambda: Board(board))
    bets.bet("00-peak", 50, "MiB")
    bets.settle("00-peak", 60)
    bets.bet("00-seconds", 3, "s")
    bets.settle("00-seconds", 9)
    bets.bet("01-kept", 7)
    work_on(folder / "notebooks" / "00_start_here.ipynb", 4, when=2e9)
    work_on(folder / "notebooks" / "01_autodiff.ipynb", 2, when=3e9)
    return folder


def test_who_comes_back_reads_where_they_were_and_what_is_next(two_begun):
    text = page_of(two_begun)
    assert "Welcome" not in text
    assert re.search(
        r"\*\*Last saved\*\*: chapter 01, \[Autodiff\]\(notebooks/01_autodiff.ipynb\) \(2 of \d+ cells run", text
    )
    assert "**Next question**: q2 · Seconds, in [" in text
    assert "**Next chapter**: 02, [Optimizers from scratch](" in text
    assert "2 of 4 begun" in text
    assert "1 of 10 questions passed, 2 of 20 points" in text
    assert "1 of your 2 settled bets were within a factor of 2" in text
    assert "**Chapters with open bets**: 01." in text
    row = next(line for line in text.splitlines() if line.startswith("| 00 |"))
    assert re.search(r"\| 40 \| \[1 of 3 passed\]\(exercises/00_\w+\.ipynb\) \| [▰▱]+ 4 of \d+ \| 1 of 2 \|$", row)


def test_in_a_terminal_the_same_lines_stand_without_markdown(two_begun):
    short = str(start.Desk.load(two_begun))
    assert short.startswith("- Last saved: chapter 01, notebooks/01_autodiff.ipynb (2 of ")
    for line in ("Next question: q2 · Seconds, in exercises/00_exercises_start_here.ipynb.", "Chapters: 2 of 4 begun."):
        assert f"\n- {line}\n" in short
    assert "**" not in short
    assert short.endswith("0 of 14 points"), "the bars"


def test_it_is_written_anew_and_a_page_that_somebody_changed_stays_beside_it(folder):
    start.write_start_page(folder)
    work_on(folder / "notebooks" / "00_start_here.ipynb", 1, when=2e9)
    assert "(1 of" in page_of(folder)
    assert [path.name for path in folder.glob("*.md")] == ["start.md"]
    (folder / "start.md").write_text("my own remarks", encoding="utf-8")
    assert "(1 of" in page_of(folder)
    assert (folder / "start (old).md").read_text(encoding="utf-8") == "my own remarks"


def test_a_chapter_that_was_renamed_to_be_begun_anew_is_no_chapter_more(folder):
    before = re.findall(r"^\| \w+ \| \[.*", page_of(folder), re.MULTILINE)
    for kind, name in (("notebooks", "00_start_here"), ("exercises", "00_exercises_start_here")):
        shutil.copy(folder / kind / f"{name}.ipynb", folder / kind / "00_mine.ipynb")
    assert re.findall(r"^\| \w+ \| \[.*", page_of(folder), re.MULTILINE) == before


def test_a_damaged_notebook_is_named_and_spoils_nothing(folder):
    (folder / "notebooks" / "03_adamw.ipynb").write_text("{", encoding="utf-8")
    assert "| 03 | [03_adamw](notebooks/03_adamw.ipynb) |  |" in page_of(folder)


def test_where_it_cannot_be_written_a_sentence_says_so(folder):
    (folder / "start.md").mkdir()
    with pytest.raises(CourseError, match="start.md cannot be written"):
        start.write_start_page(folder)


def test_it_says_when_it_was_written_and_how_a_later_version_comes(folder):
    text = page_of(folder)
    assert re.match(r"# .+\n\n<small>Updated \d{4}-\d\d-\d\d, \d\d:\d\d\. Run `course lab` to refresh", text)
    assert "run `git pull` in the course's folder" in text
