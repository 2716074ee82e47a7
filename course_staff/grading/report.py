"""What a grading writes: a record and a page per student as soon as each is graded, then the class's table and summary.

| file | for | holds |
|---|---|---|
| `students/NAME.html` | the student | verdicts on public cases, how many hidden ones passed, the diagnosis |
| `records/NAME.json` | the instructor | everything, hidden cases too; a later run takes it up |
| `results.csv`, `results.json` | the instructor | points by student and question; all records |
| `by_hand.csv` | the grader | points and comments by hand, where the instructor wrote some |
| `canvas.csv`, `moodle.csv` | the platform | points in its own export, where one was given |
| `summary.html`, `summary.txt` | the instructor | the class in a table and a picture, each question's fate, common mistakes |
| `leaderboard.html`, `leaderboard.csv` | the class | what right answers cost, where a question has figures |
| `.gitignore` | git | ignores the folder; an existing one is kept |

`students` and the leaderboard may be handed on as they are; nothing else in the folder may.
"""

import hashlib
import json
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib

from course_staff.grading import class_summary
from course_staff.grading.leaderboard import boards
from course_staff.grading.picture import class_figure
from course_staff.grading.record import QuestionRecord, Record, read_record
from course_staff.grading.spreadsheet import csv_text
from course_staff.notebooks.files import read_notebook
from course_utils.errors import CourseError
from course_utils.files import atomic_write, exercises_of, find_place, keep_copies, require_writable
from course_utils.grading.judge import OUTCOME_KINDS, Verdict
from course_utils.grading.question import LEVELS
from course_utils.grading.rendering import printable, render
from course_utils.grading.showing import SIGNS, Line, case_lines
from course_utils.units import format_bytes, format_counted
from course_utils.viz.style import STYLE
from course_utils.viz.tradeoff import Leaderboard, format_operations, tradeoff_figure

if TYPE_CHECKING:
    from course_staff.grading.gradebook import Gradebook

_render = partial(render, extra_folder=Path(__file__).parent / "templates")
_BOARD = "leaderboard.html", "leaderboard.csv"
RULE = (
    "A question earns its points if all its cases are right, including hidden ones. "
    "If it says “in parts”, each right case earns its share."
)
"""How points come about; on every student's page, and in docs/instructors.md."""
RULE_OF_TESTS = (
    "If it says “for what your test refuses”, each wrong answer that your test refuses earns its share; "
    "accepting right ones earns nothing, and refusing one costs all points."
)
"""The same of questions whose answer is a test of others; where a set has one."""
_STATES = {
    "passed": "right",
    "untouched": "not written yet",
    "missing": OUTCOME_KINDS["missing"],
    "failed": "not right yet",
}
_WRONG = "Not right yet: see its cases below."
_MOST_STEPS = 3


class Results:
    """The folder that a grading writes to. Raises `CourseError` if nothing can be written there."""

    def __init__(self, folder: Path, set_name: str, title: str = ""):
        self.folder = folder
        self.set_name = set_name
        self.title = title or set_name
        with require_writable(folder, "name another folder with --out"):
            for part in ("students", "records"):
                (folder / part).mkdir(parents=True, exist_ok=True)
            if not (ignored := folder / ".gitignore").exists():
                ignored.write_text("# Grades are private: `git add -A` must not add them.\n*\n", encoding="utf-8")

    def earlier(self) -> dict[str, Record]:
        """Student to record, of all earlier runs; what cannot be read is left out."""
        records = {}
        for path in sorted((self.folder / "records").glob("*.json")):
            with suppress(OSError, ValueError, RecursionError):
                record = read_record(path.read_text("utf-8"))
                records[record["student"]] = record
        return records

    def save(self, student: str, record: Record) -> Record:
        """Write the record, completely or not at all, and the student's page; returns it with the name and the set."""
        time = datetime.now().astimezone().isoformat(timespec="minutes")
        saved = {"student": student, "set": self.set_name, "graded": time, **record}
        _write(self.folder / "records" / f"{file_name(student)}.json", _json(saved))
        _write(self._page(student), page(saved, title=self.title))
        return saved

    def finish(self, records: list[Record], others: list[str], remarks: Sequence[str] = ()) -> str:
        """Write the class's files and every student's page; returns the summary as text.

        `others` are the names of ignored files; `remarks` hold for all these grades.
        """
        records = sorted(records, key=lambda record: record["student"])
        self._keep_if_edited()
        _write(self.folder / "results.csv", table(records))
        _write(self.folder / "results.json", _json(records))
        text = class_summary.summary(records, self.set_name, others, remarks)
        _write(self.folder / "summary.txt", text)
        _write(self.folder / "summary.html", summary_page(records, self.set_name, others, remarks, self.title))
        ranked = self._rank(records)
        for record in records:
            student = record["student"]
            _write(self._page(student), page(record, ranked.get(student, ""), self.title))
        return text

    def _rank(self, records: list[Record]) -> dict[str, str]:
        """Write the leaderboard, or remove one that is no longer true; returns the letters of those who are on it."""
        html_name, csv_name = _BOARD
        if leaderboards := boards(records):
            _write(self.folder / html_name, board_page(leaderboards, self.title))
            _write(self.folder / csv_name, board_table(leaderboards))
        else:
            for name in _BOARD:
                (self.folder / name).unlink(missing_ok=True)
        return {entry.student: entry.letter for board in leaderboards for entry in board.entries}

    def fill(self, gradebook: "Gradebook", records: list[Record]) -> tuple[list[str], bool]:
        """Write the points into a platform's own file, `canvas.csv` or `moodle.csv`; returns sentences on what was left out and
        on the file, and whether it was written: not if nobody has points.
        """
        text, remarks = gradebook.fill(records, self.set_name)
        if text is None:
            return [*map(printable, remarks), f"No {gradebook.file_name} was written: {gradebook.how_to_match}"], False
        _write(self.folder / gradebook.file_name, text)
        return [*map(printable, remarks), f"Points are in {gradebook.file_name}."], True

    def _keep_if_edited(self) -> None:
        """Keep a copy of a table that was edited after the earlier run: somebody may have changed points by hand."""
        path = self.folder / "results.csv"
        try:
            records = json.loads((self.folder / "results.json").read_text("utf-8"))
            is_unchanged = path.read_text(encoding="utf-8") == table(records)
        except (OSError, ValueError, TypeError, LookupError):
            is_unchanged = False
        if not is_unchanged and (copies := keep_copies([path], self.folder / "copies")):
            print(f"results.csv was edited after the last run; your version is saved in {copies}.", file=sys.stderr)

    def _page(self, student: str) -> Path:
        return self.folder / "students" / f"{file_name(student)}.html"


def title_of(set_name: str, solutions: Path | None) -> str:
    """The title in the first line of the set's notebook; the set's name if there is no notebook."""
    path = solutions
    with suppress(CourseError):  # if only the package is installed
        path = path or find_place().root / exercises_of(set_name)
    if not (path and path.is_file()):
        return set_name
    texts = (cell["source"] for cell in read_notebook(path).cells if cell["cell_type"] == "markdown")
    first = next(texts, "").partition("\n")[0]
    return first.removeprefix("# ") if first.startswith("# ") else set_name


def file_name(student: str) -> str:
    """A name for files that every system takes, readable, and never the same for two students."""
    plain = unicodedata.normalize("NFKD", student).encode("ascii", "ignore").decode()
    readable = re.sub(r"[^A-Za-z0-9]+", "_", plain).strip("_")[:60]
    return f"{readable or 'student'}-{hashlib.sha256(student.encode('utf-8', 'replace')).hexdigest()[:16]}"


def table(records: list[Record]) -> str:
    """CSV: a row per student with points, of how many, points by question, and notes. No cell is taken for a formula."""
    ids = list(_maxima(records))
    rows = [["student", "points", "of", *ids, "notes"]]
    for record in records:
        points = {question["id"]: question["points"] for question in record["questions"]}
        notes = " ".join(record["notes"] + [note for question in record["questions"] for note in question["notes"]])
        if record.get("failed"):  # nothing is known, which is not the same as no points
            rows.append([record["student"], "", record["max_points"], *("" for _ in ids), notes])
            continue
        rows.append(
            [record["student"], record["points"], record["max_points"], *(points.get(name, 0) for name in ids), notes]
        )
    return csv_text(rows)


def page(record: Record, letter: str = "", title: str = "") -> str:
    """A student's page, with the `letter` on the leaderboard if there is one. Of hidden cases it says how many passed and how the
    others ended, never an input or a value.
    """
    return _render(
        "student.html.j2",
        title=f"{title or record['set']}: {record['student']}",
        record=record,
        letter=letter,
        graded=_day(record.get("graded")),
        found_any=any(question["state"] != "missing" or question.get("by_hand") for question in record["questions"]),
        rule=RULE,
        rule_of_tests=RULE_OF_TESTS,
        notebook=Path(exercises_of(record["set"])).name,
        states=_STATES,
        levels=LEVELS,
        next_steps=_next_steps(record),
        signs=SIGNS,
        public_lines=_public_lines,
        hidden_failures=_count_hidden_failures,
    )


def _next_steps(record: Record) -> list[tuple[str, str]]:
    """(id, advice) of the first few questions without full points: wrong answers, then those not written."""
    lacking = [question for question in record["questions"] if question["points"] < question["max_points"]]
    comments = {question["id"]: question["by_hand"]["comment"] for question in lacking if question.get("by_hand")}
    answered = [
        question for question in lacking if question["state"] in ("failed", "passed") or question["id"] in comments
    ]
    steps = [(question["id"], _advice(question, comments.get(question["id"], ""))) for question in answered]
    for question in lacking:
        if question not in answered:
            minutes = f", {question['minutes']} minutes" if "minutes" in question else ""
            points = format_counted(question["max_points"], "point")
            steps.append((question["id"], f"Not written yet: {question['title']} ({points}{minutes})."))
    return steps[:_MOST_STEPS]


def _advice(question: QuestionRecord, comment: str) -> str:
    """What the grader says of an answer, and the instructor's comment beside it."""
    sentence = question["public_diagnosis"]["diagnosis"] or question["public_diagnosis"]["hint"]
    if not comment:
        return sentence or _WRONG
    return f"{sentence} Comment: {comment}" if sentence else comment


def _day(graded: str | None) -> str:
    """A time in ISO's form as text, such as `4 May 2026, 23:59`."""
    if not graded:
        return ""
    time = datetime.fromisoformat(graded)
    return f"{time.day} {time:%B %Y, %H:%M}"


def summary_page(
    records: list[Record], set_name: str, others: list[str], remarks: Sequence[str] = (), title: str = ""
) -> str:
    """`summary` for a browser, with a picture of the class, and a table of all points with a link to each page."""
    questions = class_summary.summarize_questions(records)
    maxima = _maxima(records)
    graded = [record for record in records if not record.get("failed")]
    return _render(
        "summary.html.j2",
        wide=True,
        title=f"{title or set_name}: the class",
        head=class_summary.head(records, set_name),
        graded=_day(max((record["graded"] for record in records if "graded" in record), default=None)),
        remarks=remarks,
        records=records,
        maxima=maxima,
        means={name: _mean(graded, name) for name in maxima if graded},
        mean=sum(record["points"] for record in graded) / len(graded) if graded else None,
        picture=_picture(records, questions),
        questions=questions,
        anchors={question.id for question in questions},
        sections=[*class_summary.list_common_mistakes(records), *class_summary.oddities(records, others)],
        file_name=file_name,
    )


def _picture(records: list[Record], questions: Sequence[class_summary.QuestionSummary]) -> tuple[str, str] | None:
    """The class's picture and its text; None if nobody's file was graded."""
    graded = [record for record in records if record["questions"] and not record.get("failed")]
    if not (graded and questions):
        return None
    maximum = max(record["max_points"] for record in graded)
    return _draw(class_figure, [record["points"] for record in graded], maximum, questions)


def _mean(records: list[Record], name: str) -> float:
    points = [question["points"] for record in records for question in record["questions"] if question["id"] == name]
    return sum(points) / len(records)


def _draw(draw: Callable, *arguments) -> tuple[str, str]:
    """The address of the picture that `draw(*arguments)` returns, and its text."""
    from course_utils.viz.display import svg_address

    with matplotlib.rc_context(STYLE):
        figure, alt = draw(*arguments)
        return svg_address(figure), alt


def board_page(leaderboards: Sequence[Leaderboard], title: str) -> str:
    """The leaderboard for a browser: of each question a picture of the trade-off and a table."""
    pictures = {board.id: _draw(tradeoff_figure, board) for board in leaderboards if board.entries}
    return _render(
        "leaderboard.html.j2",
        wide=True,
        title=f"{title}: leaderboard",
        boards=leaderboards,
        pictures=pictures,
        format_bytes=format_bytes,
        format_operations=format_operations,
    )


def board_table(leaderboards: Sequence[Leaderboard]) -> str:
    """The leaderboard as CSV: a row per entry, in the page's order, figures as they are."""
    rows = [["question", "entry", "front", "bytes", "operations", "accuracy"]]
    for board in leaderboards:
        for rank, entry in enumerate(board.entries):
            on_front = "yes" if rank < board.front else "no"
            rows.append([board.id, entry.letter, on_front, entry.bytes, entry.operations, entry.accuracy])
    return csv_text(rows)


def _maxima(records: Sequence[Record]) -> dict[str, float]:
    """Id of each question, in order, to its maximum."""
    return {question["id"]: question["max_points"] for record in records for question in record["questions"]}


def _public_lines(question: QuestionRecord, with_messages: bool) -> list[Line]:
    """The lines on the cases that a check shows in a notebook, with or without the messages of exceptions; for a right answer
    only their number."""
    count = len(question["public"])
    if question["state"] == "passed" and count > 1:
        return [Line("passed", f"{'Both' if count == 2 else f'All {count}'} public cases are right.")]
    if question["state"] == "missing" and question["notes"]:
        return []
    key = "sentence" if with_messages else "brief"
    return case_lines([Verdict(v["case"], v["passed"], v[key], kind=v["kind"]) for v in question["public"]])


def _count_hidden_failures(question: QuestionRecord) -> list[tuple[str, int]]:
    counts = Counter(OUTCOME_KINDS[verdict["kind"]] for verdict in question["hidden"] if not verdict["passed"])
    return sorted(counts.items())


def _json(value: object) -> str:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _write(path: Path, text: str) -> None:
    with require_writable(path, "make room, then run the same command again"), atomic_write(path) as draft:
        draft.write_text(text, encoding="utf-8", errors="replace", newline="\n")
