"""Points and comments by hand: the instructor's file `by_hand.csv` in the folder of results, which every grading reads.

A row gives a student's question its points in the place of the grader's, or a comment, or both. Records stay what the grader
found; this is laid over them in every run, so that nothing of it is lost when something is graded again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from course_staff.grading.record import Record
from course_staff.grading.spreadsheet import no_formula, number_in, read_rows
from course_utils.errors import CourseError

FILE = "by_hand.csv"
_LONGEST_COMMENT = 2000  # characters


@dataclass(frozen=True)
class Mark:
    """What a row says: `points`, or None if it only comments."""

    points: float | None
    comment: str


def read_by_hand(path: Path, students: Sequence[str], questions: Mapping[str, float]) -> dict[tuple[str, str], Mark]:
    """(student, question) to the mark in the file at `path`; `questions` are the set's, with their maxima.

    Nothing where no file is. Raises `CourseError`, naming the row, for an unknown student or question, for points that are no
    number between 0 and the maximum, and for a question that a student has twice.
    """
    cells = {no_formula(name): name for name in students} | {name: name for name in students}
    marks: dict[tuple[str, str], Mark] = {}
    for number, row in read_rows(path, ("student", "question", "points")):
        where, student = f"{path.name}, row {number}", row["student"]
        question, text = row["question"].strip(), row["points"].strip()
        if student not in cells:
            raise CourseError(f"{where}: there is no student {student!r}; write the name as in results.csv.")
        if question not in questions:
            raise CourseError(f"{where}: the set has no question {question!r}; write one of {', '.join(questions)}.")
        points, most = number_in(text) if text else None, questions[question]
        if points is not None and not 0 <= points <= most:
            raise CourseError(
                f"{where}: {text!r} is not a number of points for {question}; give a number from 0 to {most:g}."
            )
        if (cells[student], question) in marks:
            raise CourseError(f"{where}: {student!r} already has a row for {question}; keep one.")
        marks[cells[student], question] = Mark(points, row.get("comment", "").strip()[:_LONGEST_COMMENT])
    return marks


def with_points_by_hand(record: Record, marks: Mapping[tuple[str, str], Mark]) -> Record:
    """The record with its points and comments by hand; `was` keeps the grader's points where they were replaced."""
    questions = []
    for question in record["questions"]:
        if mark := marks.get((record["student"], question["id"])):
            was = None if mark.points is None else question["points"]
            points = question["points"] if mark.points is None else mark.points
            question = {**question, "points": points, "by_hand": {"was": was, "comment": mark.comment}}
        questions.append(question)
    return {**record, "questions": questions, "points": round(sum(question["points"] for question in questions), 2)}
