"""Points and comments by hand: the instructor's file `by_hand.csv`, which every later grading reads. A grading adds rows for new
students at its end; what stands there stays.

A row gives a student's question its points, in the place of the grader's. A question that the set does not have, such as `free`,
is one of the instructor's own; its maximum stands in the column `of`, and everybody's total grows by it. With a maximum of 0 it
gives extra points, and totals stay.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from course_staff.grading.cells import NamedRows, columns_of, csv_text, no_formula, number_in, read_rows
from course_utils.errors import CourseError
from course_utils.files import replacing

COLUMNS = "student", "question", "of", "points", "comment"
_MOST_EXTRA = 1000
_LONGEST = 2000  # characters of a comment
_OWN = {"title": "by hand", "parts": False, "state": "given", "diagnosis": "", "mistake": "", "not_run": 0}


@dataclass(frozen=True)
class Given:
    """What a row gives: `points`, or None where it only comments."""

    student: str
    question: str
    of: float
    points: float | None
    comment: str


def read_by_hand(path: Path, students: Sequence[str], questions: Mapping[str, float]) -> list[Given]:
    """The rows of the file at `path` that give points or a comment; `questions` are the set's, with their maxima.

    No row where no file is. Raises `CourseError`, naming the row, for an unknown student or question, for points that are no
    number between 0 and the maximum, and for a question that a student has twice.
    """
    names, found, own = NamedRows(path.name, students), {}, {}
    for place, row in read_rows(path, ("student", "question", "points")):
        where, text = f"{path.name}, row {place}", {name: (row.get(name) or "").strip() for name in COLUMNS[1:]}
        if not (text["points"] or text["comment"]):
            continue
        student, question = names.student(place, row["student"]), text["question"]
        of = questions.get(question) if question in questions else _maximum(where, question, text["of"], own, questions)
        points = number_in(text["points"]) if text["points"] else None
        if points is not None and not 0 <= points <= (of or _MOST_EXTRA):
            raise CourseError(
                f"{where}: {text['points']!r} are no points of {question}; "
                f"give a number from 0 to {of or _MOST_EXTRA:g}."
            )
        if (student, question) in found:
            raise CourseError(f"{where}: {student!r} has points for {question} already; keep one of the rows.")
        found[student, question] = Given(student, question, of, points, text["comment"][:_LONGEST])
    return list(found.values())


def _maximum(where: str, question: str, of: str, own: dict[str, float], questions: Mapping[str, float]) -> float:
    """Of a question of the instructor's own, as its first row says it."""
    said = number_in(of) if of else own.get(question, math.nan)
    if not question or not 0 <= said < math.inf:
        raise CourseError(
            f"{where}: the set has no question {question!r}; write one of {', '.join(questions)}, "
            "or give its maximum in the column `of` where it is one of your own, and 0 for extra points."
        )
    if own.setdefault(question, said) != said:
        raise CourseError(
            f"{where}: {question} had {own[question]:g} points above and has {said:g} here; give it one maximum."
        )
    return said


def with_points_by_hand(record: Mapping, given: Sequence[Given], seen: Mapping[str, str]) -> dict:
    """The record with all that is given by hand to anybody: its own points and comments, and the questions that others have.

    `seen` has for each `key_of` a row the file that lay there when the row was first read.
    """
    own = {one.question: one for one in given if one.student == record["student"]}
    questions = [
        {**question, **_by_hand(own.pop(question["id"], None), question["points"], record, seen)}
        for question in record["questions"]
    ]
    known = {question["id"] for question in questions}
    for one in {one.question: one for one in given if one.question not in known}.values():
        if not one.of and one.question not in own:  # extra points of somebody else
            continue
        empty = {**_OWN, "id": one.question, "of": one.of, "points": 0, "shown": {"diagnosis": "", "hint": ""}}
        lists = {name: [] for name in ("public", "hidden", "notes")}
        questions.append({**empty, **lists, **_by_hand(own.get(one.question), None, record, seen)})
    added = sum(question["of"] for question in questions if question["id"] not in known) if record["questions"] else 0
    points = round(sum(question["points"] for question in questions), 2)
    return {**record, "questions": questions, "points": points, "of": record["of"] + added}


def _by_hand(one: Given | None, was: float | None, record: Mapping, seen: Mapping[str, str]) -> dict:
    if one is None:
        return {}
    older = seen.get(key_of(one), record["file"]) != record["file"]
    said = {"by_hand": {"was": was, "comment": one.comment, "older": older, "given": one.points is not None}}
    return said if one.points is None else {"points": one.points, **said}


def key_of(one: Given) -> str:
    """A row in one text: changed points, or another comment, are another row."""
    return "\t".join((one.student, one.question, f"{one.points}", one.comment))


def write_by_hand(path: Path, records: Sequence[Mapping]) -> None:
    """See to it that the file has rows for every student with an answer: a row for each question, with nothing given.

    Whatever stands in the file stays as it is, to the byte. A student who has any row gets no other.
    """
    there = {row["student"] for _, row in read_rows(path, ("student",))}
    new = [record for record in records if not {record["student"], no_formula(record["student"])} & there]
    rows = [[record["student"], one["id"], one["of"], "", ""] for record in new for one in record["questions"]]
    if not path.exists():
        _replace(path, csv_text([COLUMNS, *rows]).encode("utf-8-sig"))
    elif rows:
        before = path.read_bytes()
        end = b"" if before.endswith(b"\n") else b"\n"
        columns, delimiter = columns_of(path)
        values = [dict(zip(COLUMNS, row, strict=True)) for row in rows]
        added = csv_text([[row.get(name, "") for name in columns] for row in values], delimiter)
        _replace(path, before + end + added.encode())


def _replace(path: Path, content: bytes) -> None:
    with replacing(path) as draft:
        draft.write_bytes(content)
