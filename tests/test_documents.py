"""Of the repository: README, CONTRIBUTING and docs/ claim only what a reader can run."""

import io
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import yaml
from nbformat import write
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from benchmarks.questions import answer
from course_staff.documents import one_step, readme
from course_staff.documents.ledger_picture import ledger_figure
from course_staff.documents.one_step import one_step_figure, take_one_step
from course_staff.notebooks.address import repository_address
from course_staff.notebooks.files import read_notebook
from course_staff.notebooks.markdown import headings
from course_staff.notebooks.stored import shown_text, shows, store_rows, stored_rows
from course_utils import cli, models
from course_utils.desk.ledger import Ledger, record
from course_utils.errors import CourseError
from course_utils.files import chapters_in
from course_utils.settings import SCALES, settings
from course_utils.units import format_bytes

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
DOCUMENTS += [ROOT / "exercises" / "README.md", ROOT / "solutions" / "README.md"]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PLACEHOLDERS = {"N": "1", "NN": "03"}
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def command_lines(text: str) -> list[str]:
    """Every `course …`, `make …` and `python -m …` in code, comments and prompts removed."""
    codes = [code for language, code in _FENCE.findall(text) if language in ("", "sh", "console")]
    fenced = [line for code in codes for line in code.splitlines()]
    inline = re.findall(r"`([^`\n]+)`", _FENCE.sub("", text))
    lines = (line.partition("  #")[0].removeprefix("$ ").strip() for line in fenced + inline)
    bare = (line.removeprefix(".venv/bin/") for line in lines)
    return [line for line in bare if re.match(r"(course|make) [\w-]|python -m ", line) and "…" not in line]


def fault_of(line: str) -> str:
    """Why the command line cannot be run, or nothing."""
    program, *arguments = [PLACEHOLDERS.get(word, word) for word in shlex.split(line)]
    if program == "make":
        target, *rest = arguments
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        odd = [word for word in rest if not re.match(r"(ARGS|PYTHON)=", word)]
        return "" if target in targets and not odd else f"make has no {target} {odd}"
    if program == "python":
        return "" if find_spec(arguments[1]) else f"there is no module {arguments[1]}"
    if len(arguments) == 1:  # named, and not typed as it stands
        return "" if arguments[0] in (*cli.COMMANDS, *cli.STAFF, "-h") else f"course has no {arguments[0]}"
    return _refusal_of(arguments)


def _refusal_of(argv: list[str]) -> str:
    errors = io.StringIO()
    try:
        with redirect_stderr(errors), redirect_stdout(errors):
            cli.make_parser().parse_args(argv)
    except SystemExit as end:
        return errors.getvalue() if end.code else ""
    return ""


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_written_down_exists(path):
    faults = {line: fault_of(line) for line in command_lines(path.read_text(encoding="utf-8"))}
    assert not any(faults.values()), {line: fault for line, fault in faults.items() if fault}


def test_a_command_that_does_not_exist_is_found():
    text = "```\nmake lap   # typed wrong\n```\n`course grade x` `course fly` `python -m benchmarks.nothing` `course doctor`"
    assert [bool(fault_of(line)) for line in command_lines(text)] == [True, True, True, True, False]


def test_codespell_finds_british_words_and_ours_but_none_in_a_picture(tmp_path):
    (tmp_path / "a.md").write_text("The colour of `teh` line.")
    picture = new_output("display_data", {"image/png": "teh+" * 30})
    cells = [new_markdown_cell("A rank, whereby it is known."), new_code_cell("1", outputs=[picture])]
    write(new_notebook(cells=cells), tmp_path / "b.ipynb")
    command = [sys.executable, "-m", "codespell_lib", tmp_path]  # in this folder it reads our pyproject.toml
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    names = sorted(line.partition(" ==> ")[0].rpartition(" ")[2] for line in result.stdout.splitlines())
    assert names == ["colour", "teh", "whereby"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_readmes_plan_is_what_is_printed():
    """Its first line, and the change that the text names with its peak."""
    (block,) = (code for language, code in _FENCE.findall(README) if language == "console")
    command, verdict = block.splitlines()
    printed = answer(command.removeprefix("$ "))
    assert printed.splitlines()[0] == verdict
    peak = re.search(r"gradient checkpointing with QLoRA is one: ([\d.]+ GiB)", README)[1]
    assert re.search(rf" {re.escape(peak)} +-[\d.]+ GiB +trl +gradient checkpointing \+ QLoRA of rank 16\n", printed)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_python_of_the_packages_page_runs():
    names, printed = {"__name__": "reader"}, ""
    for language, code in _FENCE.findall((ROOT / "docs" / "package.md").read_text(encoding="utf-8")):
        if language == "python":
            printed = said_by(compile(code, "package.md", "exec"), names)
            assert re.search(r"\d \w?i?B|\d{3}", printed), "it prints figures"
        elif language == "text":
            assert printed == code, "what is shown is what the code above it prints"


def test_the_loop_of_ones_own_trains_as_an_update_after_backward_does():
    codes = [code for _, code in _FENCE.findall((ROOT / "docs" / "plan.md").read_text(encoding="utf-8"))]
    (code,) = (code for code in codes if "register_post_accumulate_grad_hook" in code)
    ids = torch.arange(32).reshape(2, 16)
    batches = [{"input_ids": ids + step, "labels": ids + step} for step in range(3)]
    ours, plain = (models.build("llama", scale=SCALES["smoke"]) for _ in range(2))
    plain.load_state_dict(ours.state_dict())
    exec(compile(code, "plan.md", "exec"), {"torch": torch, "model": ours, "batches": batches})
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.001)
    for batch in batches:
        plain(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    for parameter, expected in zip(ours.parameters(), plain.parameters(), strict=True):
        assert parameter.grad is None
        assert torch.equal(parameter, expected)


def said_by(code, names: dict) -> str:
    with redirect_stdout(io.StringIO()) as output:
        exec(code, names)
    return output.getvalue()


def chapter_rows(text: str) -> list[tuple[str, str, str, int]]:
    row = r"^\| (\w+) \| \[([^\]]+)\]\(notebooks/([^)]+)\.ipynb\).*\| (\d+) \|$"
    return [(*columns[:3], int(columns[3])) for columns in re.findall(row, text, re.MULTILINE)]


@cache
def minutes_of(path: Path) -> int:
    return int(re.search(r"\*\*Time:\*\* about (\d+) minutes", read_notebook(path).cells[0].source)[1])


def test_the_table_lists_exactly_the_chapters_with_their_titles_and_minutes():
    expected = []
    for path in chapters_in(ROOT / "notebooks"):
        title = headings(read_notebook(path).cells[0].source)[0].text.partition(":")[0]
        expected.append((path.stem.partition("_")[0], title, path.stem, minutes_of(path)))
    assert chapter_rows(README) == expected


@pytest.mark.slow
def test_the_picture_of_a_step_shows_what_a_step_takes_today():
    """And that a rule of thumb is far off, where the prediction is not."""
    step = take_one_step()
    assert sum(step.measured.values()) == pytest.approx(sum(step.predicted.values()), rel=1e-5)
    assert step.guess < 0.5 * sum(step.measured.values())
    alt = re.search(r'docs/one_step\.png".*alt="([^"]+)"', README)[1]
    assert re.findall(r"\d+ MiB", alt) == [format_bytes(step.guess), format_bytes(sum(step.measured.values()))]
    assert_picture_text("one_step", one_step_figure()[1])


def assert_picture_text(name: str, text: str):
    for place in readme.PICTURES[name].values():
        assert readme.picture_text(ROOT / place) == text, "run `course stamp`"


def test_the_picture_of_the_notebooks_draws_each_technique_once_and_nothing_overlaps():
    rows = stored_rows(ROOT)
    figure, alt = ledger_figure(rows)
    assert_picture_text("predicted_measured", alt)
    techniques = {(row.chapter, row.technique) for row in rows if row.unit == "bytes"}
    lines = [line for axes in figure.axes for line in axes.lines]
    assert len(lines) == 2 * len(techniques)
    assert alt.count("predicted ") == len(techniques)
    figure.draw_without_rendering()
    notes = [text.get_window_extent() for axes in figure.axes for text in axes.texts]
    assert max(note.x1 for note in notes) < figure.bbox.width
    labels = [tick.get_window_extent() for axes in figure.axes for tick in axes.get_yticklabels()]
    assert min(box.x0 for box in labels) >= 0
    assert not [1 for note in notes for label in labels if note.overlaps(label)]


def test_without_rows_there_is_no_picture():
    with pytest.raises(CourseError, match="execute a chapter first"):
        ledger_figure([])


@pytest.mark.parametrize("path", chapters_in(ROOT / "notebooks"), ids=lambda path: path.stem)
def test_the_stored_rows_are_what_the_chapter_shows(path):
    rows = [row for row in stored_rows(ROOT) if row.chapter == path.stem]
    assert rows, "a row is stored that an output shows: make `ledger.record(...)` a cell's last expression"
    text = shown_text(path)
    assert all(shows(text, row) for row in rows), f"run `course run {path.stem} --save`, then `course stamp`"


def test_a_run_stores_what_its_chapter_shows_and_leaves_the_others(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_SCALE", "laptop")
    settings.cache_clear()
    record("07_x", "left over", "peak of a step", predicted=1, measured=2)
    record("07_x", "a < b", "peak of a step", predicted=3_000_000, measured=3_300_001)
    table = Ledger(Ledger.load().rows[1:])._repr_html_()
    cell = new_code_cell("entry", outputs=[new_output("display_data", {"text/html": table})])
    (tmp_path / "docs").mkdir()
    for name in ("06_w", "07_x", "07_x"):
        record("06_w", "a < b", "peak of a step", predicted=3_000_000, measured=3_300_001)
        write(new_notebook(cells=[cell]), tmp_path / f"{name}.ipynb")
        store_rows(tmp_path, tmp_path / f"{name}.ipynb")
    first, second = stored_rows(tmp_path)
    assert (first.chapter, second.chapter) == ("06_w", "07_x")
    assert (second.technique, second.predicted, second.measured) == ("a < b", 3_000_000, 3_300_001)


def test_a_picture_is_drawn_anew_only_where_the_rows_are_others(tmp_path, monkeypatch):
    step = one_step.OneStep(1, guess=2**20, predicted={"gradients": 2**22}, measured={"gradients": 2**22})
    monkeypatch.setattr(one_step, "take_one_step", lambda: step)
    (tmp_path / "docs").mkdir()
    shutil.copy(ROOT / "docs" / "ledger.json", tmp_path / "docs")
    stamped = readme.stamp_pictures(tmp_path)
    pictures = [place for places in readme.PICTURES.values() for place in places.values()]
    assert [path.relative_to(tmp_path).as_posix() for path in stamped] == pictures
    assert readme.stamp_pictures(tmp_path) == []


def test_the_address_is_set_in_one_place_and_leaves_no_trace_when_it_is_taken_out(tmp_path, capsys, monkeypatch):
    """Before and after no file offers an address; in between pip, Colab, git and whoever cites are led to the same one."""
    for name in ("README.md", "CITATION.cff", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "course_utils").mkdir()
    (tmp_path / "notebooks").mkdir()
    shutil.copy(chapters_in(ROOT / "notebooks")[-1], tmp_path / "notebooks")  # no other follows it
    monkeypatch.chdir(tmp_path)
    before = texts_in(tmp_path)
    assert not re.search(r"example\.org|git\+|repository-code|colab\.research|Repository =", "".join(before.values()))

    assert cli.main(["stamp", "--repository", "https://git.example.org/a/course"]) == 0
    after = texts_in(tmp_path)
    assert "git clone https://git.example.org/a/course" in after["README.md"]
    assert "colab.research" not in after["README.md"], "Colab opens what is on GitHub"
    assert yaml.safe_load(after["CITATION.cff"])["repository-code"] == "https://git.example.org/a/course"
    urls = tomllib.loads(after["pyproject.toml"])["project"]["urls"]
    assert urls == {"Repository": "https://git.example.org/a/course"}
    assert "course-utils[course] @ git+https://git.example.org/a/course" in after["notebooks/13_capstone.ipynb"]

    for address in ("https://github.com/someone/course", "https://github.com/someone/course.git"):
        assert cli.main(["stamp", "--repository", address]) == 0
        text = texts_in(tmp_path)["README.md"]
        opened = re.findall(r"https://colab\.research\.google\.com/github/someone/course/blob/main/(\S+?)\)", text)
        assert opened == [f"notebooks/{path.name}" for path in chapters_in(ROOT / "notebooks")]
        assert chapter_rows(text) == chapter_rows(README)
    assert cli.main(["stamp", "--repository", ""]) == 0
    assert texts_in(tmp_path) == before
    capsys.readouterr()
    assert cli.main(["stamp"]) == 0
    assert capsys.readouterr().out == "0 of 1 notebooks changed.\n"


@pytest.mark.parametrize(
    "address", ["course", "git@github.com:a/b.git", "https://github.com", "https://github.com/a b"]
)
def test_what_is_no_address_changes_nothing(address, tmp_path, capsys, monkeypatch):
    for name in ("course_utils", "notebooks"):
        (tmp_path / name).mkdir()
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    monkeypatch.chdir(tmp_path)
    before = texts_in(tmp_path)
    assert cli.main(["stamp", "--repository", address]) == 2
    assert "write it out, as https://github.com/NAME/REPOSITORY" in capsys.readouterr().err
    assert texts_in(tmp_path) == before


def texts_in(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in files}


def test_the_citation_names_the_package_as_it_is():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert (cited["version"], cited["license"]) == (project["version"], project["license"])
    assert cited.get("repository-code", "") == repository_address(ROOT)
