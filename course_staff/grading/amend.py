"""What instructors add to a grading: points and comments by hand, and late days. Records stay what the grader found; this is laid
over them anew in every run, so that nothing of it is lost when something is graded again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from course_staff.grading import by_hand, late
from course_staff.grading.late import Lateness, LateRule
from course_utils.errors import CourseError
from course_utils.files import read_json, write_json

_HAND, _LATE, _RULE, _SEEN = "by_hand.csv", "late.csv", "late.json", "by_hand.json"


@dataclass(frozen=True)
class Amendments:
    """What is `given` by hand, each row with the file that it was first read for, and the late days by a `rule`, if there is
    one."""

    folder: Path
    given: Sequence[by_hand.Given]
    seen: Mapping[str, str]
    rule: LateRule | None
    lateness: Mapping[str, Lateness]

    def laid_over(self, records: Sequence[Mapping]) -> list[dict]:
        """The records with points by hand, and then with what late days take off."""
        amended = [by_hand.with_points_by_hand(record, self.given, self.seen) for record in records]
        if self.rule is None:
            return amended
        return [late.with_lateness(record, self.rule, self.lateness.get(record["student"])) for record in amended]

    def keep(self, records: Sequence[Mapping]) -> None:
        """Write the instructor's files where there are none yet, rows for new students, when files came, the rule, and which file
        each row by hand was given to.
        """
        records = sorted(records, key=lambda record: record["student"])
        files = {record["student"]: record["file"] for record in records}
        keys = {by_hand.key_of(one): files[one.student] for one in self.given if one.student in files}
        if keys:
            write_json(self.folder / _SEEN, {key: self.seen.get(key, file) for key, file in keys.items()})
        by_hand.write_by_hand(self.folder / _HAND, records)
        if self.rule:
            write_json(self.folder / _RULE, late.as_json(self.rule))
            late.write_late(self.folder / _LATE, records)


def read_amendments(
    folder: Path,
    students: Sequence[str],
    questions: Mapping[str, float],
    due: str | None = None,
    days: int | None = None,
    percent: float | None = None,
) -> Amendments:
    """What the results' `folder` holds of the instructor's; `due`, `days` and `percent` are a new rule, or change that of an
    earlier run.

    Raises `CourseError`, naming the file and the row, for what cannot be, and for late days without a due time.
    """
    rule = read_json(folder / _RULE, late.rule_from)
    if due is not None:
        rule = LateRule(late.due_time(due), *((rule.days, rule.percent) if rule else ()))
    if rule is None and (days is not None or percent is not None):
        raise CourseError("Late days need a due time; give it with --due 2026-05-04T23:59.")
    if rule:
        rule = LateRule(rule.due, rule.days if days is None else days, rule.percent if percent is None else percent)
    given = by_hand.read_by_hand(folder / _HAND, students, questions)
    lateness = late.read_late(folder / _LATE, students) if rule else {}
    return Amendments(folder, given, read_json(folder / _SEEN, dict) or {}, rule, lateness)
