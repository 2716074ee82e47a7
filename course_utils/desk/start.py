"""Where a learner is and what is next: the page that `course lab` opens, and what `course check` prints of it.

The page is Markdown, which JupyterLab shows rendered and whose links open notebooks beside it.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from course_utils.desk.bets import Bet, load_bets
from course_utils.desk.ledger import Ledger
from course_utils.desk.workspace import HANDED_OUT
from course_utils.files import chapters_in, free_name, replacing, require_writable
from course_utils.grading.board import Board, my_progress
from course_utils.units import bar, format_counted

NAME = "start.md"
_BAR = 5, "▰▱"  # beside a chapter
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
class Notebook:
    """A notebook in the learner's folder: how many of its code cells were run when it was saved last, and when that was."""

    path: Path
    title: str
    minutes: int
    cell_count: int
    cells_run: int
    changed: float

    @property
    def number(self) -> str:
        """The chapter that it is, or belongs to: `05b`."""
        return self.path.stem.partition("_")[0]

    @property
    def link(self) -> str:
        """The chapter's title, as a link from the learner's folder."""
        return f"[{self.title}]({self.path.parent.name}/{self.path.name})"

    @property
    def share_run(self) -> str:
        """How many cells were run, with a bar; empty where none was."""
        if not self.cells_run:
            return ""
        return f"{bar(self.cells_run / self.cell_count, *_BAR)} {self.cells_run} of {self.cell_count}"


@dataclass(frozen=True)
class Desk:
    """A learner's chapters and exercises by number, their bets, their progress, and how many rows their ledger has."""

    chapters: dict[str, Notebook]
    exercises: dict[str, Notebook]
    bets: dict[str, Bet]
    board: Board
    ledger_rows: int

    @classmethod
    def of(cls, folder: Path) -> "Desk":
        """The desk of the learner whose own copy of the course is `folder`."""
        return cls(
            _notebooks(folder / "notebooks"),
            _notebooks(folder / "exercises"),
            load_bets(),
            my_progress(),
            len(Ledger.load().rows),
        )

    def page(self) -> str:
        """All of it as Markdown; columns in which nothing stands yet are left out."""
        begun = self._last is not None or self.bets or any(standing.passed for standing in self.board.standings)
        if begun:
            head = ["## Continue here\n", *self.ahead(), "\n## Your progress\n", *self.so_far()]
        elif self.chapters:
            first = next(iter(self.chapters.values()))
            exercises = f"exercises/{self.exercises.get(first.number, first).path.name}"
            head = [_NOT_BEGUN.format(chapter=first, exercises=exercises)]
        else:
            head = []
        written = f"<small>Updated {datetime.now():%Y-%m-%d, %H:%M}. Run `course lab` to refresh this page.</small>"
        title = "# Your course in efficient training"
        return "\n".join([title, "", written, "", *head, "\n## Chapters\n", *self._table(), "", _BACK])

    def __str__(self):
        lines = "\n".join([*self.ahead(), "", *self.so_far()])
        return "\n".join([_LINK.sub(r"\2", lines).replace("**", ""), "", *self.board.bars])

    @property
    def _last(self) -> Notebook | None:
        """The notebook that was saved last."""
        begun = [notebook for notebook in (*self.chapters.values(), *self.exercises.values()) if notebook.changed]
        return max(begun, key=lambda notebook: notebook.changed, default=None)

    def ahead(self) -> Iterator[str]:
        """Where they were last, and what is next."""
        last = self._last
        if not self.chapters:
            yield "- You have no copy of the chapters yet: run `course lab` to make one."
        elif last is not None:
            kind = "the exercises of chapter" if last.path.parent.name == "exercises" else "chapter"
            done = f"{last.cells_run} of {last.cell_count} cells run"
            yield f"- **Last saved**: {kind} {last.number}, {last.link} ({done})."
        fresh = next((chapter for chapter in self.chapters.values() if not chapter.cells_run), None)
        if fresh is not None:
            which = f"{fresh.number}, {fresh.link}: about {fresh.minutes} minutes"
            yield f"- **Next chapter**: {which}."
        if self.board.exercises:
            name = Path(self.board.exercises).stem
            yield f"- **Next question**: {self.board.next}, in [{name}]({self.board.exercises})."
        elif fresh is None:
            yield "- You have run every chapter and passed every question."

    def so_far(self) -> Iterator[str]:
        """Lines of Markdown: chapters begun, exercises, bets and ledger rows so far."""
        settled = [bet for bet in self.bets.values() if bet.truth is not None]
        if self.chapters:
            begun = sum(bool(chapter.cells_run) for chapter in self.chapters.values())
            yield f"- **Chapters**: {begun} of {len(self.chapters)} begun."
        yield f"- **Exercises**: {self.board.head}"
        if settled:
            fair = sum(bet.fair for bet in settled)
            yield f"- **Bets**: {fair} of your {len(settled)} settled bets were within a factor of 2."
        if waiting := sorted({name.partition("-")[0] for name, bet in self.bets.items() if bet.truth is None}):
            yield f"- **Chapters with open bets**: {', '.join(waiting)}."
        if self.ledger_rows:
            rows = format_counted(self.ledger_rows, "row")
            yield f"- **Ledger**: {rows} of predictions and measurements (`course ledger`)."

    def _table(self) -> Iterator[str]:
        heads = ("", "chapter", "minutes", "exercises", "cells run", "bets within a factor of 2")
        standings = {standing.name.partition("_")[0]: standing for standing in self.board.standings}
        passed = {number: f"{standing.passed} of {standing.questions} passed" for number, standing in standings.items()}
        rows = []
        for number, chapter in self.chapters.items():
            own = [bet for name, bet in self.bets.items() if name.partition("-")[0] == number]
            settled = [bet for bet in own if bet.truth is not None]
            is_linked = number in passed and number in self.exercises
            exercises = f"[{passed[number]}](exercises/{self.exercises[number].path.name})" if is_linked else ""
            fair = f"{sum(bet.fair for bet in settled)} of {len(settled)}" if settled else ""
            rows.append((number, chapter.link, str(chapter.minutes or ""), exercises, chapter.share_run, fair))
        shown = [column for column in zip(heads, *rows, strict=True) if any(column[1:])]
        head, *rest = (f"| {' | '.join(row)} |" for row in zip(*shown, strict=True))
        yield from [head, "|---|---|" + "---:|" * (len(shown) - 2), *rest]


def write_start_page(folder: Path) -> Path:
    """Write the page into the learner's `folder` and return where it is; an older one that somebody changed stays beside it.

    Raises `CourseError` if nothing can be written there.
    """
    path, handed = folder / NAME, folder / HANDED_OUT / NAME
    text = Desk.of(folder).page()
    with require_writable(path, "make it writable"):
        if path.is_file() and not (handed.is_file() and handed.read_bytes() == path.read_bytes()):
            path.rename(free_name(path))
        for target in (handed, path):
            with replacing(target) as draft:
                draft.write_text(text, encoding="utf-8", newline="\n")
    return path


def _notebooks(folder: Path) -> dict[str, Notebook]:
    """The notebooks of the course by number; what a reader renamed or added is none of them."""
    handed = folder.parent / HANDED_OUT / folder.name
    paths = [path for path in chapters_in(folder) if (handed / path.name).is_file()]
    notebooks = [_read_notebook(path, handed / path.name) for path in paths]
    return {notebook.number: notebook for notebook in notebooks}


def _read_notebook(path: Path, handed: Path) -> Notebook:
    """What the page says of the notebook at `path`, which was `handed` out; of one that cannot be read, its name."""
    changed = path.stat().st_mtime if handed.read_bytes() != path.read_bytes() else 0.0
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        head = "".join("".join(cell["source"]) for cell in cells[:2] if cell["cell_type"] == "markdown")
        code = [cell for cell in cells if cell["cell_type"] == "code" and "".join(cell["source"]).strip()]
        run = sum(bool(cell.get("execution_count")) for cell in code)
    except (ValueError, KeyError, TypeError):
        return Notebook(path, path.stem, 0, 0, 0, changed)
    title, minutes = re.search(r"^# ([^:\n]+)", head, re.MULTILINE), re.search(r"\*\*Time:\*\* about (\d+)", head)
    name = _LINK.sub(r"\1", title[1]).strip() if title else path.stem
    return Notebook(path, name, int(minutes[1]) if minutes else 0, len(code), run, changed)
