"""A learner's progress and what is next: the page that `course lab` opens, and the lines of it that `course check` prints.

The page is Markdown, which JupyterLab renders; its links open notebooks in other tabs.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from course_utils.desk.bets import Bet, chapter_number, load_bets
from course_utils.desk.ledger import Ledger
from course_utils.desk.workspace import HANDED_OUT
from course_utils.files import chapters_in, free_name, require_writable, write_text
from course_utils.grading.board import Board, my_progress
from course_utils.units import bar, format_counted

START_PAGE = "start.md"
# Of a bar beside a chapter: its width, and its signs for full and empty.
_BAR = 5, "▰▱"
_LINK = re.compile(r"\[([^\]]*)\]\(([^)]*)\)")
_NOT_BEGUN = """\
**Welcome. Do this first:**

1. Open {chapter.link}. It takes about {chapter.minutes} minutes, and you need no GPU.
2. Run its cells one by one with Shift+Enter. When a cell asks for your bet, type your number into its box and click
   the next cell.
3. Then try its [exercises]({exercises}): each answer is checked immediately.
"""
_BACK = """\
## How to come back

Run `make lab` in the course's folder, or `course lab` in a terminal with the course environment activated (in that folder:
`source .venv/bin/activate`). It opens this page and updates it with everything you have saved. `course lab 03` opens a
chapter directly, `course check` prints your progress, and `course report` writes a page with your bets and your
ledger. Terms that a chapter links to are in the [glossary](docs/glossary.md).

A reopened notebook still shows its old output, but nothing has run yet; a broken chain next to a box or a slider
marks this. To use the box again, run the notebook's first code cell and the one above the box; for everything else run all
cells from the top. If a cell says “model not found”, reload the page.

To quit JupyterLab, save (Ctrl+S), then choose File → Shut Down, or press Ctrl+C in the terminal. To update the
course, quit first; then run `git pull` in the course's folder, and `course lab`. Your work stays.
"""


@dataclass(frozen=True)
class NotebookProgress:
    """A notebook in the learner's folder: how many of its code cells were run, and when it was `saved_at` last (0: never)."""

    path: Path
    title: str
    minutes: int
    cell_count: int
    cells_run: int
    saved_at: float

    @property
    def number(self) -> str:
        """The chapter's number: `05b`."""
        return chapter_number(self.path.stem)

    @property
    def link(self) -> str:
        """The chapter's title, as a link from the learner's folder."""
        return f"[{self.title}]({self.path.parent.name}/{self.path.name})"

    @property
    def share_run(self) -> str:
        """The number of cells that were run, with a bar; empty if none was."""
        if not self.cells_run:
            return ""
        return f"{bar(self.cells_run / self.cell_count, *_BAR)} {self.cells_run} of {self.cell_count}"


@dataclass(frozen=True)
class Desk:
    """A learner's chapters and exercises by number, their bets, their progress, and how many rows their ledger has."""

    chapters: dict[str, NotebookProgress]
    exercises: dict[str, NotebookProgress]
    bets: dict[str, Bet]
    board: Board
    ledger_rows: int

    @classmethod
    def load(cls, folder: Path) -> "Desk":
        """The desk of the learner whose own copy of the course is `folder`."""
        chapters, exercises = (_notebooks(folder / name) for name in ("notebooks", "exercises"))
        return cls(chapters, exercises, load_bets(), my_progress(), len(Ledger.load().rows))

    def page(self) -> str:
        """All of it as Markdown, without the table's empty columns."""
        has_begun = self._last is not None or self.bets or any(standing.passed for standing in self.board.standings)
        if has_begun:
            head = ["## Continue here\n", *self._next_lines(), "\n## Your progress\n", *self._progress_lines()]
        elif self.chapters:
            first = next(iter(self.chapters.values()))
            exercises = f"exercises/{self.exercises.get(first.number, first).path.name}"
            head = [_NOT_BEGUN.format(chapter=first, exercises=exercises)]
        else:
            head = []
        update_note = f"<small>Updated {datetime.now():%Y-%m-%d, %H:%M}. Run `course lab` to refresh this page.</small>"
        title = "# Your course in efficient training"
        return "\n".join([title, "", update_note, "", *head, "\n## Chapters\n", *self._table(), "", _BACK])

    def __str__(self):
        lines = "\n".join([*self._next_lines(), "", *self._progress_lines()])
        return "\n".join([_LINK.sub(r"\2", lines).replace("**", ""), "", *self.board.bars])

    @property
    def _last(self) -> NotebookProgress | None:
        notebooks = [notebook for notebook in (*self.chapters.values(), *self.exercises.values()) if notebook.saved_at]
        return max(notebooks, key=lambda notebook: notebook.saved_at, default=None)

    def _next_lines(self) -> Iterator[str]:
        """What the learner saved last, and what is next."""
        last = self._last
        if not self.chapters:
            yield "- You have no copy of the chapters yet: run `course lab` to make one."
        elif last is not None:
            kind = "the exercises of chapter" if last.path.parent.name == "exercises" else "chapter"
            progress = f"{last.cells_run} of {last.cell_count} cells run"
            yield f"- **Last saved**: {kind} {last.number}, {last.link} ({progress})."
        next_chapter = next((chapter for chapter in self.chapters.values() if not chapter.cells_run), None)
        if next_chapter is not None:
            minutes = next_chapter.minutes
            yield f"- **Next chapter**: {next_chapter.number}, {next_chapter.link}: about {minutes} minutes."
        if self.board.exercises:
            exercises = self.board.exercises
            yield f"- **Next question**: {self.board.next}, in [{Path(exercises).stem}]({exercises})."
        elif next_chapter is None:
            yield "- You have run every chapter and passed every question."

    def _progress_lines(self) -> Iterator[str]:
        """Chapters begun, exercises, bets and ledger rows so far."""
        settled_bets = [bet for bet in self.bets.values() if bet.truth is not None]
        if self.chapters:
            begun_count = sum(bool(chapter.cells_run) for chapter in self.chapters.values())
            yield f"- **Chapters**: {begun_count} of {len(self.chapters)} begun."
        yield f"- **Exercises**: {self.board.head}"
        if settled_bets:
            fair = sum(bet.fair for bet in settled_bets)
            yield f"- **Bets**: {fair} of your {len(settled_bets)} settled bets were within a factor of 2."
        if open_chapters := sorted({chapter_number(name) for name, bet in self.bets.items() if bet.truth is None}):
            yield f"- **Chapters with open bets**: {', '.join(open_chapters)}."
        if self.ledger_rows:
            yield f"- **Ledger**: {format_counted(self.ledger_rows, 'row')} of predictions and measurements (`course ledger`)."

    def _table(self) -> Iterator[str]:
        heads = ("", "chapter", "minutes", "exercises", "cells run", "bets within a factor of 2")
        standings = {chapter_number(standing.name): standing for standing in self.board.standings}
        passed = {number: f"{standing.passed} of {standing.questions} passed" for number, standing in standings.items()}
        rows = []
        for number, chapter in self.chapters.items():
            chapter_bets = [bet for name, bet in self.bets.items() if chapter_number(name) == number]
            settled_bets = [bet for bet in chapter_bets if bet.truth is not None]
            is_linked = number in passed and number in self.exercises
            exercises = f"[{passed[number]}](exercises/{self.exercises[number].path.name})" if is_linked else ""
            fair = f"{sum(bet.fair for bet in settled_bets)} of {len(settled_bets)}" if settled_bets else ""
            rows.append((number, chapter.link, str(chapter.minutes or ""), exercises, chapter.share_run, fair))
        columns = [column for column in zip(heads, *rows, strict=True) if any(column[1:])]
        head, *rest = (f"| {' | '.join(row)} |" for row in zip(*columns, strict=True))
        yield from [head, "|---|---|" + "---:|" * (len(columns) - 2), *rest]


def write_start_page(folder: Path) -> Path:
    """Write the page into the learner's `folder` and return its path; an older page that somebody changed is renamed.

    Raises `CourseError` if nothing can be written there.
    """
    path = folder / START_PAGE
    base = folder / HANDED_OUT / START_PAGE
    text = Desk.load(folder).page()
    with require_writable(path, "make it writable"):
        if path.is_file() and not (base.is_file() and base.read_bytes() == path.read_bytes()):
            path.rename(free_name(path))
        for target in (base, path):
            write_text(target, text)
    return path


def _notebooks(folder: Path) -> dict[str, NotebookProgress]:
    """The course's notebooks in `folder` by number, without those that a reader renamed or added."""
    base = folder.parent / HANDED_OUT / folder.name
    paths = [path for path in chapters_in(folder) if (base / path.name).is_file()]
    notebooks = [_read_notebook(path, base / path.name) for path in paths]
    return {notebook.number: notebook for notebook in notebooks}


def _read_notebook(path: Path, base: Path) -> NotebookProgress:
    """The notebook at `path`, which was handed out as `base`; only its name and time if it cannot be read."""
    saved_at = path.stat().st_mtime if base.read_bytes() != path.read_bytes() else 0.0
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        head = "".join("".join(cell["source"]) for cell in cells[:2] if cell["cell_type"] == "markdown")
        code = [cell for cell in cells if cell["cell_type"] == "code" and "".join(cell["source"]).strip()]
        run_count = sum(bool(cell.get("execution_count")) for cell in code)
    except (ValueError, KeyError, TypeError):
        return NotebookProgress(path, path.stem, 0, 0, 0, saved_at)
    title = re.search(r"^# ([^:\n]+)", head, re.MULTILINE)
    minutes = re.search(r"\*\*Time:\*\* about (\d+)", head)
    name = _LINK.sub(r"\1", title[1]).strip() if title else path.stem
    return NotebookProgress(path, name, int(minutes[1]) if minutes else 0, len(code), run_count, saved_at)
