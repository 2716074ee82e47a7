"""Writes points into a learning platform's own export, whose rows name the students, so that the platform can import it.

| platform | export | finds a student by | takes the file at |
|---|---|---|---|
| Canvas | Grades, Export | `ID`, `SIS User ID`, `SIS Login ID` | Grades, Import |
| Moodle | assignment, Download grading worksheet | `Identifier`, email address, username, ID number | Upload grading worksheet |

Canvas calls a submission that is downloaded `name_ID_file_…`, where `ID` is the student's; Moodle puts it in a folder called
`Name_NUMBER_assignsubmission_file`, where the worksheet's identifier is `Participant NUMBER`. Any other submission is found by a
file or a folder that is called as one of the student's columns.

The formats are those of the platforms' own sources:
https://github.com/instructure/canvas-lms/blob/master/lib/gradebook_importer.rb and `content_zipper.rb` beside it,
https://github.com/moodle/moodle/blob/main/mod/assign/feedback/offline/importgradeslib.php and
`mod/assign/classes/downloader.php`.
"""

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from course_staff.grading.record import Record
from course_staff.grading.spreadsheet import csv_text, parse_table
from course_utils.errors import CourseError
from course_utils.units import format_counted

_ADVICE = {
    "canvas": "export the gradebook of Canvas (Grades, Export)",
    "moodle": "download the assignment's grading worksheet from Moodle, in English (Download grading worksheet)",
}


@dataclass(frozen=True)
class Platform:
    """What a platform's tables of grades look like, by their columns."""

    name: str
    export_columns: tuple[str, ...]  # columns that only its export has
    import_columns: tuple[str, ...]  # columns that its import reads
    full_name: str  # the column of a student's full name
    keys: tuple[str, ...]  # columns that identify a student, the first by a number
    download_name: re.Pattern  # finds this number in what the platform calls a submission
    grade_column: str | None = None  # the one that its import fills; without one, that of the assignment
    worth_column: str | None = None  # the points to be had; without one, a row has them


_CANVAS = Platform(
    "canvas",
    export_columns=("ID", "Section"),
    import_columns=(
        *("Student", "LastName", "FirstName", "ID", "SIS User ID", "SIS Login ID"),
        *("Integration ID", "Root Account", "Section"),
    ),
    full_name="Student",
    keys=("ID", "SIS User ID", "SIS Login ID"),
    download_name=re.compile(r"(?:^|/)[^/]*?_(\d+)_\d+_[^/]*$"),
)
_MOODLE = Platform(
    "moodle",
    export_columns=("Identifier", "Grade", "Last modified (grade)"),
    import_columns=("Identifier", "Full name", "ID number", "Email address", "Maximum Grade", "Last modified (grade)"),
    full_name="Full name",
    keys=("Identifier", "Email address", "Username", "ID number"),
    download_name=re.compile(r"_(\d+)_assignsubmission_"),
    grade_column="Grade",
    worth_column="Maximum Grade",
)

FILE_NAMES = tuple(f"{platform.name}.csv" for platform in (_CANVAS, _MOODLE))
"""The names of the filled files."""


@dataclass(frozen=True)
class Gradebook:
    """A platform's export: `columns` are the names of its columns, `rows` have a text for each of them."""

    platform: Platform
    source: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    delimiter: str

    @property
    def file_name(self) -> str:
        """The name of the filled file."""
        return f"{self.platform.name}.csv"

    @property
    def how_to_match(self) -> str:
        """What to do if no submission was found in the export."""
        keys = f"{', '.join(self.platform.keys[:-1])} or {self.platform.keys[-1]}"
        return (
            f"no submission is named after a student in {self.source}; grade them as {self.platform.name.capitalize()} downloads "
            f"them, or name each file or folder by its student's {keys}."
        )

    def fill(self, records: Sequence[Record], set_name: str) -> tuple[str | None, list[str]]:
        """The CSV that the platform takes, None if nobody has points, and sentences on what was left out.

        It has rows only for students whose points are known: an empty cell would take away a grade that is there.
        """
        ungraded = [record["student"] for record in records if record.get("failed")]
        graded = {record["student"]: record for record in records if not record.get("failed")}
        target = self._target(set_name)
        maximum = max((record["max_points"] for record in graded.values()), default=0)
        points, unmatched = self._match(graded)
        remarks = _say_left_out("not graded, because the grader itself failed", ungraded)
        remarks += [*unmatched, *self._differing_worth(target, maximum)]
        if absent := [row for number, row in enumerate(self.rows) if self._is_student(row) and number not in points]:
            columns = self.platform.full_name, self.platform.keys[0]
            names = "; ".join(next(filter(None, (self._value(row, name) for name in columns)), "") for row in absent)
            count = format_counted(len(absent), "student")
            remarks.append(f"Without points, and so without a row: {count} of {self.source}, {names}.")
        return csv_text([*self._lines(points, target, maximum)], self.delimiter) if points else None, remarks

    def _match(self, graded: Mapping[str, Record]) -> tuple[dict[int, float], list[str]]:
        """Points by the number of a student's row, and sentences on the submissions that belong to no row, or to several."""
        rows_of = {student: self._rows_of(student) for student in graded}
        matches = [*rows_of.values()]
        clear = {name: rows for name, rows in rows_of.items() if len(rows) == 1 and matches.count(rows) == 1}
        unclear = [name for name, rows in rows_of.items() if rows and name not in clear]
        remarks = _say_left_out(f"not in {self.source}", [name for name, rows in rows_of.items() if not rows])
        remarks += _say_left_out("several for one student, or one for several", unclear)
        return {row: graded[name]["points"] for name, (row,) in clear.items()}, remarks

    def _lines(self, points: Mapping[int, float], target: str, maximum: float) -> Iterator[list]:
        """The filled table: its head, Canvas's rows above the students, and the students that have points."""
        columns = [name for name in self.platform.import_columns if name in self.columns]
        yield [*columns, target]
        for number, row in enumerate(self.rows):
            if self._is_student(row) and number not in points:
                continue
            worth = maximum if _is_worth(row) else ""
            value = points.get(number, self._value(row, target) if target in self.columns else worth)
            yield [*(self._value(row, name) for name in columns), value]

    def _is_student(self, row: tuple[str, ...]) -> bool:
        return bool(self._value(row, self.platform.keys[0]).strip())

    def _rows_of(self, student: str) -> list[int]:
        """The numbers of the rows that a submission's name matches."""
        first, *others = self.platform.keys
        # Moodle writes `Participant 123`; the number is the key.
        numbers = [re.search(r"\d*$", self._value(row, first).strip())[0] for row in self.rows]
        match = self.platform.download_name.search(student)
        if match and match[1] in numbers:
            return [row_number for row_number, number in enumerate(numbers) if number == match[1]]
        names = {student.casefold(), student.partition("/")[0].casefold()}
        keys = [
            {number, *(self._value(row, name).casefold() for name in others)}
            for number, row in zip(numbers, self.rows, strict=True)
        ]
        return [row_number for row_number, row_keys in enumerate(keys) if names & row_keys]

    def _target(self, set_name: str) -> str:
        """The column that is filled: the platform's own, or that of the assignment called as the set, or a new one."""
        assignment = re.compile(rf"{re.escape(set_name)}( \(\d+\))?")
        column = next((name for name in self.columns if assignment.fullmatch(name)), set_name)
        return self.platform.grade_column or column

    def _differing_worth(self, target: str, maximum: float) -> list[str]:
        """A sentence where the platform's assignment is worth another number of points."""
        column = self.platform.worth_column
        cells = [self._value(row, column or target) for row in self.rows if column or _is_worth(row)]
        worths = {float(text.replace(",", ".")) for text in cells if re.fullmatch(r"\d+([.,]\d+)?", text)}
        return [
            f"The platform's assignment is worth {worth:g} points and the set {maximum:g}: "
            "points are written as they are, not scaled."
            for worth in sorted(worths - {float(maximum)})
        ]

    def _value(self, row: tuple[str, ...], column: str) -> str:
        return row[self.columns.index(column)] if column in self.columns else ""


def read_gradebook(path: Path) -> Gradebook:
    """The export in the file at `path`; raises `CourseError` for what is neither Canvas's nor Moodle's."""
    try:
        table, delimiter = parse_table(path.read_text(encoding="utf-8-sig"), ",;")
        columns, *rows = [tuple(row) for row in table if row] or [()]
    except OSError as error:
        raise CourseError(f"{path} cannot be read ({error.strerror}); check the name.") from None
    except (UnicodeDecodeError, csv.Error):
        columns, rows = (), []
    for platform in (_CANVAS, _MOODLE):
        if set(platform.export_columns) <= set(columns):
            padded = (tuple(row[: len(columns)]) + ("",) * (len(columns) - len(row)) for row in rows)
            return Gradebook(platform, path.name, columns, tuple(padded), delimiter)
    raise CourseError(f"{path.name} is not an export that can be filled in; {', or '.join(_ADVICE.values())}.")


def _is_worth(row: tuple[str, ...]) -> bool:
    return row[0].strip() == "Points Possible"


def _say_left_out(reason: str, students: list[str]) -> list[str]:
    return [f"Left out, {reason}: {', '.join(students)}."] if students else []
