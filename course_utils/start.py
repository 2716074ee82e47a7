"""The learner's first page: where I am, what is next, my bets, my progress, the chapters with their minutes, how to come back.

It is Markdown, which JupyterLab shows rendered and whose links open notebooks beside it. `course lab` writes it anew each time.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from course_utils import bets
from course_utils.chapters import chapters_in
from course_utils.errors import CourseError
from course_utils.files import free_name, replacing
from course_utils.grading.board import Board, Standing, my_progress
from course_utils.ledger import Ledger
from course_utils.units import format_counted
from course_utils.workspace import HANDED_OUT

NAME = "start.md"
_FAIR = "bets within a factor of 2"
_NOT_BEGUN = """\
**Welcome. Do this first:**

1. Open [{title}]({link}). It takes about {minutes} minutes, and you need no GPU.
2. Run its cells one after the other with Shift+Enter. Where a cell asks for your bet, type your number into its box and click
   the next cell.
3. Then try its [exercises]({exercises}): each answer is checked at once.
"""
_BACK = """\
## How to come back

Type `make lab` in the course's folder, or `course lab` in a terminal in which the course's environment is on (in that folder:
`source .venv/bin/activate`). It opens this page and writes it anew, with all that you have saved by then. `course lab 03` opens a
chapter at once, `course check` prints your progress, and `course report` makes one page of your own from your bets and your
ledger. Words that a chapter links to are in the [glossary](docs/glossary.md).

A notebook that you open again shows what it showed, and has computed nothing yet; a broken chain beside a box or a slider
says so. Run the notebook's first code cell and the one above the box; for all else run the cells from the first on. Where
one says “model not found”, reload the page.

To end JupyterLab, save (Ctrl+S), then choose File → Shut Down, or press Ctrl+C in the terminal. For a later version of the
course do that first; then type `git pull` in the course's folder, and `course lab`: what you wrote stays.
"""


@dataclass(frozen=True)
class Notebook:
    """A notebook in the learner's folder: how many of its code cells were run when it was saved last, and when that was."""

    path: Path
    title: str
    minutes: int
    cells: int
    run: int
    changed: float

    @property
    def number(self) -> str:
        """The chapter that it is, or belongs to: `05b`."""
        return self.path.stem.partition("_")[0]

    @property
    def link(self) -> str:
        """Its title, as a link from the learner's folder."""
        return f"[{self.title}]({self.path.parent.name}/{self.path.name})"


def write(folder: Path) -> Path:
    """Write the page into the learner's `folder` and return where it is; an older one that somebody changed stays beside it.

    Raises `CourseError` where nothing can be written there.
    """
    path, handed = folder / NAME, folder / HANDED_OUT / NAME
    text = "\n".join(page(folder))
    try:
        if path.is_file() and not (handed.is_file() and handed.read_bytes() == path.read_bytes()):
            path.rename(free_name(path))
        for each in (handed, path):
            with replacing(each) as draft:
                draft.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise CourseError(f"{path} cannot be written ({error.strerror}); put that right.") from None
    return path


def page(folder: Path) -> Iterator[str]:
    """The lines of the page for the learner's `folder`; columns in which nothing stands yet are left out."""
    chapters = _notebooks(folder, "notebooks")
    exercises = {one.number: one for one in _notebooks(folder, "exercises")}
    board, guesses = my_progress(), bets.every()
    yield "# Your course in efficient training\n"
    yield f"<small>Written {datetime.now():%Y-%m-%d, %H:%M}. Type `course lab` in a terminal to renew it.</small>\n"
    begun = [one for one in (*chapters, *exercises.values()) if one.changed]
    if begun or guesses or any(one.passed for one in board.standings):
        yield "**Go on here:**\n"
        yield from _next(chapters, exercises, board, max(begun, key=lambda one: one.changed, default=None))
        yield "\n## Where you are\n"
        yield from _standing(chapters, guesses, board)
    elif chapters:
        first = chapters[0]
        link = f"{first.path.parent.name}/{first.path.name}"
        asked = f"exercises/{exercises[first.number].path.name}" if first.number in exercises else link
        yield _NOT_BEGUN.format(title=first.title, link=link, minutes=first.minutes, exercises=asked)
    yield "\n## Chapters\n"
    yield from _table(chapters, exercises, guesses, board)
    yield f"\n{_BACK}"


def _next(
    chapters: list[Notebook], exercises: dict[str, Notebook], board: Board, last: Notebook | None
) -> Iterator[str]:
    been = []
    if last is not None:
        kind = "the exercises of" if last.path.parent.name == "exercises" else "chapter"
        done = f"{last.run} of its {last.cells} cells were run when you saved it"
        been = [f"- You were last in {kind} {last.number}, {last.link}: {done}."]
    ahead = []  # a chapter comes before its questions
    if (fresh := next((one for one in chapters if not one.run), None)) is not None:
        said = (
            f"- The next chapter that you have not run is {fresh.number}, {fresh.link}: about {fresh.minutes} minutes."
        )
        ahead.append((fresh.number, 0, said))
    if board.exercises:
        number = Path(board.exercises).stem.partition("_")[0]
        where = f", in {exercises[number].link}" if number in exercises else ""
        ahead.append((number, 1, f"- Your next question is {board.next}{where}."))
    said = [line for *_, line in sorted(ahead)] or ["- You have run every chapter and passed every question."]
    yield from [*said, *been] if last is not None and last.run == last.cells else [*been, *said]


def _standing(chapters: list[Notebook], guesses: dict[str, bets.Bet], board: Board) -> Iterator[str]:
    settled = [one for one in guesses.values() if one.truth is not None]
    run, rows = sum(bool(one.run) for one in chapters), len(Ledger.load().rows)
    yield f"- **Chapters**: {run} of {len(chapters)} begun."
    yield f"- **Exercises**: {board.head}"
    if settled:
        fair = sum(one.fair for one in settled)
        yield f"- **Bets**: {fair} of your {len(settled)} settled bets came within a factor of 2 of the truth."
    if len(settled) < len(guesses):
        links = {one.number: one.link for one in chapters}
        waiting = [links.get(name.partition("-")[0], name) for name, one in guesses.items() if one.truth is None]
        where = ", ".join(f"{count} in {link}" for link, count in Counter(waiting).items())
        yield f"- **Bets that wait for their truth**: {where}."
    if rows:
        yield f"- **Ledger**: {format_counted(rows, 'row')}, each a prediction beside its measurement (`course ledger`)."


def _table(
    chapters: list[Notebook], exercises: dict[str, Notebook], guesses: dict[str, bets.Bet], board: Board
) -> Iterator[str]:
    standings = {one.name.partition("_")[0]: one for one in board.standings}
    columns: dict[str, list[str]] = {"": [], "chapter": [], "minutes": [], "exercises": [], "cells run": [], _FAIR: []}
    for one in chapters:
        mine = [bet for name, bet in guesses.items() if name.partition("-")[0] == one.number and bet.truth is not None]
        row = (
            one.number,
            one.link,
            str(one.minutes or ""),
            _asked(standings.get(one.number), exercises.get(one.number)),
            f"{one.run} of {one.cells}" if one.run else "",
            f"{sum(bet.fair for bet in mine)} of {len(mine)}" if mine else "",
        )
        for column, text in zip(columns.values(), row, strict=True):
            column.append(text)
    shown = {head: column for head, column in columns.items() if any(column)}
    yield f"| {' | '.join(shown)} |"
    yield "|---|---|" + "---:|" * (len(shown) - 2)
    for row in zip(*shown.values(), strict=True):
        yield f"| {' | '.join(row)} |"


def _asked(standing: Standing | None, notebook: Notebook | None) -> str:
    if standing is None or notebook is None:
        return ""
    return f"[{standing.passed} of {standing.questions} passed](exercises/{notebook.path.name})"


def _notebooks(folder: Path, inside: str) -> list[Notebook]:
    """Those of the course; what a reader renamed, or wrote, beside them is no chapter more."""
    paths = chapters_in(folder / inside)
    return [_read(path, folder) for path in paths if (folder / HANDED_OUT / inside / path.name).is_file()]


def _read(path: Path, folder: Path) -> Notebook:
    """What the page says of the notebook at `path`; of one that cannot be read, its name."""
    handed = folder / HANDED_OUT / path.relative_to(folder)
    touched = not handed.is_file() or handed.read_bytes() != path.read_bytes()
    changed = path.stat().st_mtime if touched else 0.0
    try:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        head = "".join("".join(cell["source"]) for cell in cells[:2] if cell["cell_type"] == "markdown")
        code = [cell for cell in cells if cell["cell_type"] == "code" and "".join(cell["source"]).strip()]
        run = sum(bool(cell.get("execution_count")) for cell in code)
    except (ValueError, KeyError, TypeError):
        return Notebook(path, path.stem, 0, 0, 0, changed)
    title, minutes = re.search(r"^# ([^:\n]+)", head, re.MULTILINE), re.search(r"\*\*Time:\*\* about (\d+)", head)
    name = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title[1]).strip() if title else path.stem
    return Notebook(path, name, int(minutes[1]) if minutes else 0, len(code), run, changed)
