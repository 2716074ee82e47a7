"""README, CONTRIBUTING and docs/ claim only what a reader can run."""

import io
import json
import re
import shlex
import shutil
import tomllib
from contextlib import redirect_stderr, redirect_stdout
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from course_staff.notebooks import readme
from course_staff.notebooks.files import read_notebook
from course_staff.notebooks.markdown import headings, links
from course_staff.notebooks.overview import PAPERS, overview_figure
from course_staff.notebooks.setup_cell import repository_address
from course_staff.notebooks.stored import shown_text, shows, store_rows, stored_rows
from course_utils import cli
from course_utils.chapters import chapters_in
from course_utils.errors import CourseError
from course_utils.ledger import Ledger, record
from course_utils.settings import settings

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
DOCUMENTS += [ROOT / "exercises" / "README.md", ROOT / "solutions" / "README.md"]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PLACEHOLDERS = {"N": "1", "NN": "03"}
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def command_lines(text: str) -> list[str]:
    """Every `course …`, `make …` and `python -m …` in code, comments and prompts removed."""
    fenced = [
        line
        for language, code in _FENCE.findall(text)
        if language in ("", "sh", "console")
        for line in code.splitlines()
    ]
    inline = re.findall(r"`([^`\n]+)`", _FENCE.sub("", text))
    lines = (line.partition("  #")[0].removeprefix("$ ").strip() for line in fenced + inline)
    bare = (line.removeprefix(".venv/bin/") for line in lines)
    return [line for line in bare if re.match(r"(course|make) [\w-]|python -m ", line) and "…" not in line]


def fault_of(line: str) -> str:
    """Why the command line cannot be run, or nothing."""
    program, *words = [PLACEHOLDERS.get(word, word) for word in shlex.split(line)]
    if program == "make":
        target, *rest = words
        known = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        odd = [word for word in rest if not re.match(r"(ARGS|PYTHON)=", word)]
        return "" if target in known and not odd else f"make has no {target} {odd}"
    if program == "python":
        return "" if find_spec(words[1]) else f"there is no module {words[1]}"
    if len(words) == 1:  # named, and not typed as it stands
        return "" if words[0] in (*cli.COMMANDS, *cli.STAFF, "-h") else f"course has no {words[0]}"
    return _refused(words)


def _refused(words: list[str]) -> str:
    said = io.StringIO()
    try:
        with redirect_stderr(said), redirect_stdout(said):
            cli._parser().parse_args(words)
    except SystemExit as end:
        return said.getvalue() if end.code else ""
    return ""


CASES = [(path, line) for path in DOCUMENTS for line in dict.fromkeys(command_lines(path.read_text(encoding="utf-8")))]


@pytest.mark.parametrize(("path", "line"), CASES, ids=[f"{path.name}: {line}" for path, line in CASES])
def test_every_command_written_down_exists(path, line):
    assert fault_of(line) == ""


def test_a_command_that_does_not_exist_is_found():
    text = "```\nmake lap   # typed wrong\n```\n`course grade x` `course fly` `python -m benchmarks.nothing` `course doctor`"
    assert [bool(fault_of(line)) for line in command_lines(text)] == [True, True, True, True, False]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", [ROOT / "README.md", ROOT / "docs" / "package.md"], ids=lambda path: path.name)
def test_the_python_in_it_runs(path):
    names, said = {"__name__": "reader"}, ""
    for language, code in _FENCE.findall(path.read_text(encoding="utf-8")):
        if language == "python":
            said = said_by(compile(code, str(path), "exec"), names)
            assert re.search(r"\d \w?i?B|\d{3}", said), "it prints figures"
        elif language == "text":
            assert said == code, "what is shown is what the code above it prints"


def said_by(code, names: dict) -> str:
    with redirect_stdout(io.StringIO()) as said:
        exec(code, names)
    return said.getvalue()


def chapter_rows(text: str) -> list[tuple[str, str, str, int]]:
    row = r"^\| (\w+) \| \[([^\]]+)\]\(notebooks/([^)]+)\.ipynb\).*\| (\d+) \|$"
    return [(*found[:3], int(found[3])) for found in re.findall(row, text, re.MULTILINE)]


def minutes_of(path: Path) -> int:
    return int(re.search(r"\*\*Time:\*\* about (\d+) minutes", read_notebook(path).cells[0].source)[1])


def test_the_table_lists_exactly_the_chapters_with_their_titles_and_minutes():
    expected = []
    for path in chapters_in(ROOT / "notebooks"):
        title = headings(read_notebook(path).cells[0].source)[0].text.partition(":")[0]
        expected.append((path.stem.partition("_")[0], title, path.stem, minutes_of(path)))
    assert chapter_rows(README) == expected


def test_the_chapters_without_exercises_are_those_it_names():
    without = [path.stem for path in chapters_in(ROOT / "notebooks") if not (ROOT / "exercises" / path.name).is_file()]
    assert without == ["05b_choosing"]
    assert "each but 05b has [exercises]" in README


def test_it_fits_on_a_screen():
    lines = _FENCE.sub(lambda found: found[2], README).splitlines()
    assert sum(bool(line.strip()) for line in lines) <= 64
    assert max(map(len, (line for line in lines if line.startswith("|")))) < 175, (
        "a row of the table is one line or two"
    )


def test_every_picture_and_file_it_leads_to_is_there():
    targets = links(README) + re.findall(r'(?:src|srcset)="([^"]+)"', README)
    assert set(readme.PICTURES.values()) <= set(targets)
    for target in targets:
        assert target.startswith("https://") or (ROOT / target.partition("#")[0]).exists(), target


def test_the_pictures_show_what_the_notebooks_hold_today():
    words = overview_figure(stored_rows(ROOT))[1]
    for place in readme.PICTURES.values():
        assert readme.picture_text(ROOT / place) == words, "run `course stamp`"


def test_every_chapter_has_a_row_in_the_picture():
    chapters = {row.chapter for row in stored_rows(ROOT)}
    assert chapters == {path.stem for path in chapters_in(ROOT / "notebooks")}, (
        "a row is stored that an output shows: make `ledger.record(...)` a cell's last expression"
    )


@pytest.mark.parametrize("paper", PAPERS)
def test_the_picture_draws_each_technique_once_and_nothing_overlaps(paper):
    rows = stored_rows(ROOT)
    figure, alt = overview_figure(rows, paper)
    techniques = {(row.chapter, row.technique) for row in rows if row.unit == "bytes"}
    drawn = [line for axes in figure.axes for line in axes.lines]
    assert len(drawn) == 2 * len(techniques)
    assert alt.count("predicted ") == len(techniques)
    figure.draw_without_rendering()
    notes = [text.get_window_extent() for axes in figure.axes for text in axes.texts]
    assert max(note.x1 for note in notes) < figure.bbox.width
    labels = [tick.get_window_extent() for axes in figure.axes for tick in axes.get_yticklabels()]
    assert min(box.x0 for box in labels) >= 0
    assert not [1 for note in notes for label in labels if note.overlaps(label)]


def test_without_rows_there_is_no_picture():
    with pytest.raises(CourseError, match="execute a chapter first"):
        overview_figure([])


@pytest.mark.parametrize("path", chapters_in(ROOT / "notebooks"), ids=lambda path: path.stem)
def test_the_stored_rows_are_what_the_chapter_shows(path):
    rows, text = [row for row in stored_rows(ROOT) if row.chapter == path.stem], shown_text(path)
    assert rows
    assert [row for row in rows if not shows(text, row)] == [], (
        f"run `course run {path.stem} --save`, then `course stamp`"
    )


def test_a_run_stores_what_its_chapter_shows_and_leaves_the_others(tmp_path, monkeypatch):
    import nbformat
    from nbformat.v4 import new_code_cell, new_notebook, new_output

    monkeypatch.setenv("COURSE_SCALE", "laptop")
    settings.cache_clear()
    record("07_x", "left over", "peak of a step", predicted=1, measured=2)
    record("07_x", "a < b", "peak of a step", predicted=3_000_000, measured=3_300_001)
    table = Ledger(Ledger.load().rows[1:])._repr_html_()
    cell = new_code_cell("entry", outputs=[new_output("display_data", {"text/html": table})])
    (tmp_path / "docs").mkdir()
    for name in ("06_w", "07_x", "07_x"):
        record("06_w", "a < b", "peak of a step", predicted=3_000_000, measured=3_300_001)
        nbformat.write(new_notebook(cells=[cell]), tmp_path / f"{name}.ipynb")
        store_rows(tmp_path, tmp_path / f"{name}.ipynb")
    first, second = stored_rows(tmp_path)
    assert (first.chapter, second.chapter) == ("06_w", "07_x")
    assert (second.technique, second.predicted, second.measured) == ("a < b", 3_000_000, 3_300_001)


def test_a_picture_is_drawn_anew_only_where_the_rows_are_others(tmp_path):
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "ledger.json", tmp_path / "docs")
    changed = readme.stamp_pictures(tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in changed] == list(readme.PICTURES.values())
    assert readme.stamp_pictures(tmp_path) == []


def test_badges_stand_in_the_table_only_where_colab_can_open_the_notebooks(tmp_path):
    assert readme.with_badges(README, repository_address()) == README, "run `course stamp`"
    assert readme.with_badges(README, "https://git.example.org/efficient-training/course").count("colab.research") == 0
    page = tmp_path / "README.md"
    page.write_text(README, encoding="utf-8")
    for address in ("https://github.com/someone/course", "https://github.com/someone/course.git"):
        readme.stamp_badges(page, address)
        text = page.read_text(encoding="utf-8")
        opened = re.findall(r"https://colab\.research\.google\.com/github/someone/course/blob/main/(\S+?)\)", text)
        assert opened == [f"notebooks/{path.name}" for path in chapters_in(ROOT / "notebooks")]
        assert chapter_rows(text) == chapter_rows(README)
    assert not readme.stamp_badges(page, "https://github.com/someone/course")
    assert readme.stamp_badges(page, "https://example.org/github.com/x/y")
    assert page.read_text(encoding="utf-8") == readme.with_badges(README, "https://example.org")


def test_the_citation_is_one_of_version_1_2_0():
    """The required keys and the types of the schema of the Citation File Format, 1.2.0."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert cited["cff-version"] == "1.2.0"
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
    allowed = {
        "abstract",
        "authors",
        "cff-version",
        "keywords",
        "license",
        "message",
        "repository-code",
        "title",
        "type",
        "version",
    }
    assert set(cited) <= allowed
    assert cited["type"] in ("software", "dataset")
    assert all(set(author) == {"name"} and isinstance(author["name"], str) for author in cited["authors"])
    assert all(isinstance(word, str) for word in cited["keywords"])
    assert (cited["version"], cited["license"]) == (project["version"], project["license"])
    assert cited["repository-code"] == project["urls"]["Repository"]
    assert f"# {cited['title']}" == README.splitlines()[0]


def test_the_changelog_begins_with_the_version_of_the_package():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    heads = headings((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    assert heads[1].text.startswith(version)


GUIDE = (ROOT / "docs" / "instructors.md").read_text(encoding="utf-8")
PLANS = dict(zip(*[iter(re.split(r"^## (.+)$", GUIDE, flags=re.MULTILINE)[1:])] * 2, strict=True))


def planned(plan: str) -> list[tuple[str, int, list[str], int]]:
    """Chapter, its minutes, questions, their minutes, for each row of a plan."""
    row = r"^\| \d \| \[\w+\]\(\.\./notebooks/(\w+)\.ipynb\) \| (\d+) \| ([\w, ]*) \| (\d+) \|$"
    found = re.findall(row, plan, re.MULTILINE)
    return [(name, int(minutes), re.findall(r"q\d", asked), int(more)) for name, minutes, asked, more in found]


def question_minutes(name: str) -> dict[str, int]:
    path = ROOT / "course_utils" / "grading" / "sets" / f"{name}.json"
    return {q["id"]: q["minutes"] for q in json.loads(path.read_text("utf-8"))["questions"]} if path.is_file() else {}


@pytest.mark.parametrize("name", ["Two days", "Seven weeks"])
def test_a_plans_minutes_are_those_of_the_chapters_and_questions(name):
    plan = planned(PLANS[name])
    assert len(plan) == PLANS[name].count("](../notebooks/")
    for chapter, minutes, questions, more in plan:
        assert minutes == minutes_of(ROOT / "notebooks" / f"{chapter}.ipynb")
        assert more == sum(question_minutes(chapter)[question] for question in questions), chapter
    together = re.search(r"Together: (\d+) minutes of chapters, (\d+) minutes of exercises", PLANS[name])
    assert [int(sum_) for sum_ in together.groups()] == [sum(row[1] for row in plan), sum(row[3] for row in plan)]


def test_seven_weeks_teach_every_chapter():
    assert [row[0] for row in planned(PLANS["Seven weeks"])] == [path.stem for path in chapters_in(ROOT / "notebooks")]


def test_a_lecture_is_four_demos_within_ninety_minutes():
    rows = re.findall(r"^\| \[\w+\]\(\.\./notebooks/(\w+)\.ipynb\) \| (\d+) \|", PLANS["One lecture"], re.MULTILINE)
    demos = [tomllib.loads((ROOT / "notebooks" / "demos" / f"{name}.toml").read_text("utf-8")) for name, _ in rows]
    assert [int(minutes) for _, minutes in rows] == [demo["minutes"] for demo in demos]
    assert len(demos) == 4
    assert sum(demo["minutes"] for demo in demos) <= 60
