"""The record of one submission, in the form of its JSON file; everything that the class sees is made from records."""

import hashlib
import json
import re
import unicodedata
from collections.abc import Sequence
from typing import Literal, NotRequired, TypedDict, get_args, get_origin, get_type_hints, is_typeddict

from course_utils.grading.judge import OUTCOME_KINDS

Number = int | float


class CaseRecord(TypedDict):
    """The verdict on one case; see `judge.Verdict`."""

    case: str
    passed: bool
    kind: Literal[tuple(OUTCOME_KINDS)]
    sentence: str
    brief: str


class PublicDiagnosis(TypedDict):
    """What a student's page says of the public cases."""

    diagnosis: str
    hint: str


class QuestionRecord(TypedDict):
    """The grade of one question: all verdicts, and what the page and the leaderboard show of them."""

    id: str
    title: str
    points: Number
    max_points: Number
    in_parts: bool  # each right case earns its share
    is_test: NotRequired[bool]  # the answer is a test, which earns points for what it refuses
    difficulty: NotRequired[int]
    minutes: NotRequired[int]
    state: Literal["passed", "failed", "untouched", "missing"]
    ran_all_cells: NotRequired[bool]  # whether all cells without an answer were run, too
    mistake: NotRequired[str]
    diagnosis: str  # of hidden cases too
    public_diagnosis: PublicDiagnosis
    figures: NotRequired[object]  # what the leaderboard compares, by name
    public: list[CaseRecord]
    hidden: list[CaseRecord]
    not_run: int
    notes: list[str]
    # `was`, the grader's points where they were replaced, and `comment`; in no file of `records`.
    by_hand: NotRequired[dict]


class Grade(TypedDict):
    """The grade of one submission, as `grade.grade_all` gives it."""

    points: Number
    max_points: Number
    notes: list[str]
    questions: list[QuestionRecord]
    failed: NotRequired[bool]  # the grader itself failed


class Record(Grade):
    """A grade with whose it is and what it is valid for."""

    student: str
    set: str
    graded: NotRequired[str]  # when, in ISO's form
    key: str  # what the record is valid for: see `worklist.identify`
    file: str  # a digest of the submitted file
    seed: int | None


def read_record(text: str) -> Record:
    """The record in a file's text; raises `ValueError` for any other text, such as a record of another version of the course."""
    record = json.loads(text)
    if not _has_form(record, Record):
        raise ValueError("This is no record of a graded submission.")
    for question in record["questions"]:
        verdicts = question["public"] + question["hidden"]
        if question["state"] == "failed" and all(verdict["passed"] for verdict in verdicts):
            raise ValueError(f"{question['id']} failed, and no case of it did.")
    return record


def maxima_of(records: Sequence[Record]) -> dict[str, float]:
    """Id of each question, in order, to its maximum."""
    return {question["id"]: question["max_points"] for record in records for question in record["questions"]}


def file_name(student: str) -> str:
    """A name for files that every system takes, readable, and never the same for two students."""
    plain = unicodedata.normalize("NFKD", student).encode("ascii", "ignore").decode()
    readable = re.sub(r"[^A-Za-z0-9]+", "_", plain).strip("_")[:60]
    return f"{readable or 'student'}-{hashlib.sha256(student.encode('utf-8', 'replace')).hexdigest()[:16]}"


def _has_form(value: object, form: object) -> bool:
    """Whether a value that was read from JSON has the form that a type of this module gives."""
    if is_typeddict(form):
        hints = get_type_hints(form)
        if not (isinstance(value, dict) and form.__required_keys__ <= value.keys()):
            return False
        return all(_has_form(value[name], hint) for name, hint in hints.items() if name in value)
    if get_origin(form) is list:
        return isinstance(value, list) and all(_has_form(item, get_args(form)[0]) for item in value)
    return value in get_args(form) if get_origin(form) is Literal else isinstance(value, form)
