"""Late days: when a file was due, when it came, and what is left of its points.

Each student has some days in all for the whole course. What is later than these allow costs a share of the points a day. What
was earned is kept beside what is left.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path

from course_staff.grading.cells import NamedRows, columns_of, csv_text, no_formula, number_in, read_rows
from course_utils.errors import CourseError
from course_utils.files import replacing
from course_utils.units import format_counted

COLUMNS = "student", "handed in", "days late", "used before"
_DAY = timedelta(days=1)


@dataclass(frozen=True)
class LateRule:
    """`due` in ISO's form with its time zone; `days` that each student may be late in all; `percent` of the points that every
    day beyond them costs."""

    due: str
    days: int = 0
    percent: float = 10.0

    def days_late(self, handed_in: datetime) -> int:
        """How many days after the due time, a day that has begun counted whole."""
        return max(0, math.ceil((handed_in - datetime.fromisoformat(self.due)) / _DAY))

    def in_words(self) -> str:
        """The rule as students read it."""
        due = datetime.fromisoformat(self.due)
        free = f"Each student has {format_counted(self.days, 'late day')} in all. " if self.days else ""
        return (
            f"Due {due:%Y-%m-%d %H:%M} ({due:UTC%z}). {free}Every day {'beyond these' if free else 'late'} costs "
            f"{self.percent:g} % of the points."
        )


def kept(points: float, days: int, free: int, percent: float) -> float:
    """What is left of `points` when a file came `days` late, `free` of which cost nothing and each other one `percent`."""
    return round(points * max(0.0, 1 - percent / 100 * max(0, days - free)), 2)


@dataclass(frozen=True)
class Lateness:
    """A student's `days` late, None where the file's time tells, and how many late days were `used` before, in other sets."""

    days: int | None
    used: int = 0


def due_time(text: str) -> str:
    """`2026-05-04T23:59` with this machine's time zone, where it names none; raises `CourseError` for what is no time."""
    try:
        return datetime.fromisoformat(text).astimezone().isoformat(timespec="seconds")
    except (ValueError, OverflowError):
        raise CourseError(f"{text!r} is no date and time; write it like 2026-05-04T23:59.") from None


def read_late(path: Path, students: Sequence[str]) -> dict[str, Lateness]:
    """Student to lateness, of those rows of the instructor's `late.csv` that say how many days; nothing where no file is.

    Raises `CourseError`, naming the row, for a student that is not there, and for what is no whole number of days.
    """
    rows, found = NamedRows(path.name, students), {}
    for place, row in read_rows(path, ("student", "days late")):
        student = rows.student(place, row["student"])
        days, used = (_days(path.name, place, row.get(name, "")) for name in COLUMNS[2:])
        if days is None and used is None:
            continue
        if student in found:
            raise CourseError(f"{path.name}, row {place}: {student!r} stands there twice; keep one of the rows.")
        found[student] = Lateness(days, used or 0)
    return found


def with_lateness(record: Mapping, rule: LateRule, told: Lateness | None) -> dict:
    """The record with what is left of its points, what was earned, and why; `told` is the instructor's row."""
    handed_in = record.get("handed_in")
    by_time = rule.days_late(datetime.fromisoformat(handed_in)) if handed_in else 0
    days = by_time if told is None or told.days is None else told.days
    free = max(0, rule.days - (told.used if told else 0))
    earned = record["points"]
    late = {"days": days, "free": min(days, free), "earned": earned, "rule": rule.in_words(), "percent": rule.percent}
    return {**record, "points": kept(earned, days, free, rule.percent), "late": late}


def late_words(late: Mapping) -> str:
    """What a student reads on the days and what they cost."""
    if not late["days"]:
        return "Handed in on time."
    said = f"Handed in {format_counted(late['days'], 'day')} late"
    if late["days"] == late["free"]:
        return f"{said}, covered by late days."
    over = late["days"] - late["free"]
    free = f"; {format_counted(late['free'], 'late day')} used" if late["free"] else ""
    percent = min(100, over * late["percent"])
    return f"{said}{free}: {percent:g} % of the {late['earned']:g} points earned were taken off."


def write_late(path: Path, records: Sequence[Mapping]) -> None:
    """See to it that the file has a row for every student: the time of the file that was graded, and room for what is right.

    That time is renewed; whatever else stands in the file stays.
    """
    times = {record["student"]: (record.get("handed_in") or "")[:16].replace("T", " ") for record in records}
    columns, delimiter = columns_of(path) if path.exists() else (list(COLUMNS), ",")
    before = [row for _, row in read_rows(path, COLUMNS[:1])]
    known = {cell: time for student, time in times.items() for cell in (student, no_formula(student))}
    rows = [{**row, COLUMNS[1]: known.get(row["student"], "") or row.get(COLUMNS[1], "")} for row in before]
    there = {row["student"] for row in before}
    new = [student for student in times if not {student, no_formula(student)} & there]
    rows += [{COLUMNS[0]: student, COLUMNS[1]: times[student]} for student in new]
    told = [[row.get(name, "") for name in columns] for row in rows]
    if not path.exists() or told != [[row.get(name, "") for name in columns] for row in before]:
        with replacing(path) as draft:
            draft.write_text(csv_text([columns, *told], delimiter), encoding="utf-8-sig", newline="\n")


def rule_from(value: Mapping) -> LateRule:
    """The rule that `asdict` gave; raises `ValueError` or `TypeError` for anything else."""
    rule = LateRule(**value)
    datetime.fromisoformat(rule.due)
    return rule


def as_json(rule: LateRule) -> dict:
    """What `rule_from` reads."""
    return asdict(rule)


def _days(file: str, place: int, text: str) -> int | None:
    if not (text := text.strip()):
        return None
    if not (days := number_in(text)) >= 0 or not days.is_integer():
        raise CourseError(f"{file}, row {place}: {text!r} is no number of days; write a whole number from 0 on.")
    return int(days)
