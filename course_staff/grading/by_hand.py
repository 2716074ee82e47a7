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
class Correction:
    """What a row says: `points`, or None if it only comments."""

    points: float | None
    comment: str


Corrections = dict[tuple[str, str], Correction]
"""(student, question's id) to what is said of it."""


def read_by_hand(path: Path, students: Sequence[str], questions: Mapping[str, float]) -> Corrections:
    """The corrections in the file at `path`; `questions` are the set's, with their maxima.

    Empty if there is no file. Raises `CourseError`, naming the row, for an unknown student or question, for points that are no
    number between 0 and the maximum, and for a question that a student has twice.
    """
    cells = {no_formula(name): name for name in students} | {name: name for name in students}
    corrections: Corrections = {}
    for number, row in read_rows(path, ("student", "question", "points")):
        row_name = f"{path.name}, row {number}"
        student = row["student"]
        question = row["question"].strip()
        text = row["points"].strip()
        if student not in cells:
            raise CourseError(f"{row_name}: there is no student {student!r}; write the name as in results.csv.")
        if question not in questions:
            raise CourseError(f"{row_name}: the set has no question {question!r}; write one of {', '.join(questions)}.")
        points = number_in(text) if text else None
        maximum = questions[question]
        if points is not None and not 0 <= points <= maximum:
            raise CourseError(
                f"{row_name}: {text!r} is not a number of points for {question}; give a number from 0 to {maximum:g}."
            )
        if (cells[student], question) in corrections:
            raise CourseError(f"{row_name}: {student!r} already has a row for {question}; keep one.")
        corrections[cells[student], question] = Correction(points, row.get("comment", "").strip()[:_LONGEST_COMMENT])
    return corrections


def correct(records: Sequence[Record], corrections: Corrections) -> tuple[list[Record], list[str]]:
    """The records with their corrections, and a sentence for each correction of a question that has no grade."""
    graded = {(record["student"], question["id"]) for record in records for question in record["questions"]}
    remarks = [
        f"{FILE}: {question} of {student} has no grade to replace; regrade this one with --only."
        for student, question in corrections
        if (student, question) not in graded
    ]
    return [with_points_by_hand(record, corrections) for record in records], remarks


def with_points_by_hand(record: Record, corrections: Corrections) -> Record:
    """The record with its points and comments by hand; `was` keeps the grader's points where they were replaced."""
    questions = []
    for question in record["questions"]:
        if correction := corrections.get((record["student"], question["id"])):
            was = None if correction.points is None else question["points"]
            points = question["points"] if correction.points is None else correction.points
            question = {**question, "points": points, "by_hand": {"was": was, "comment": correction.comment}}
        questions.append(question)
    return {**record, "questions": questions, "points": round(sum(question["points"] for question in questions), 2)}
