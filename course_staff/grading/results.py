"""The folder that a grading writes: a record and a page per student as each is graded, then the class's table and summary.

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

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from course_staff.grading import class_summary
from course_staff.grading.leaderboard import boards, leaderboard_table
from course_staff.grading.pages import class_page, leaderboard_page, student_page
from course_staff.grading.record import Record, file_name, maxima_of, read_record
from course_staff.grading.spreadsheet import csv_text
from course_staff.notebooks.files import read_notebook
from course_utils.errors import CourseError
from course_utils.files import exercises_of, find_place, keep_copies, require_writable, write_text
from course_utils.grading.rendering import printable

if TYPE_CHECKING:
    from course_staff.grading.gradebook import Gradebook

_LEADERBOARD = "leaderboard.html", "leaderboard.csv"


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
        """Student to record, of all earlier runs that can be read; raises `CourseError` if one was of another set."""
        records = {}
        for path in sorted((self.folder / "records").glob("*.json")):
            with suppress(OSError, ValueError, RecursionError):
                record = read_record(path.read_text("utf-8"))
                records[record["student"]] = record
        for other in {record["set"] for record in records.values()} - {self.set_name}:
            raise CourseError(f"{self.folder} contains results of the set {other}; name another folder with --out.")
        return records

    def save(self, student: str, record: Record) -> Record:
        """Write the record, completely or not at all, and the student's page; returns it with the name and the set."""
        time = datetime.now().astimezone().isoformat(timespec="minutes")
        saved = {"student": student, "set": self.set_name, "graded": time, **record}
        _write(self.folder / "records" / f"{file_name(student)}.json", _json(saved))
        _write(self._page(student), student_page(saved, title=self.title))
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
        _write(self.folder / "summary.html", class_page(records, self.set_name, others, remarks, self.title))
        ranked = self._rank(records)
        for record in records:
            student = record["student"]
            _write(self._page(student), student_page(record, ranked.get(student, ""), self.title))
        return text

    def _rank(self, records: list[Record]) -> dict[str, str]:
        """Write the leaderboard, or remove one that is no longer true; returns the letters of those who are on it."""
        html_name, csv_name = _LEADERBOARD
        if leaderboards := boards(records):
            _write(self.folder / html_name, leaderboard_page(leaderboards, self.title))
            _write(self.folder / csv_name, leaderboard_table(leaderboards))
        else:
            for name in _LEADERBOARD:
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


def table(records: list[Record]) -> str:
    """CSV: a row per student with points, of how many, points by question, and notes. No cell is taken for a formula."""
    ids = list(maxima_of(records))
    rows = [["student", "points", "of", *ids, "notes"]]
    for record in records:
        points = {question["id"]: question["points"] for question in record["questions"]}
        notes = " ".join(record["notes"] + [note for question in record["questions"] for note in question["notes"]])
        total, by_question = record["points"], [points.get(name, 0) for name in ids]
        if record.get("failed"):  # nothing is known, which is not the same as no points
            total, by_question = "", [""] * len(ids)
        rows.append([record["student"], total, record["max_points"], *by_question, notes])
    return csv_text(rows)


def _json(value: object) -> str:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _write(path: Path, text: str) -> None:
    with require_writable(path, "make room, then run the same command again"):
        write_text(path, text, errors="replace")
