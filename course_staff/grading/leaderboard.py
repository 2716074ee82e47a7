"""The leaderboard: what right answers cost in bytes and operations, and how accurate they are; which of them nobody beats.

Students are called by letters, which a hash of their submissions puts in order, so that neither names nor files can be told from
them. Each run assigns new ones, and each student's page says its own.
"""

import hashlib
from collections.abc import Mapping, Sequence

from course_staff.grading.record import QuestionRecord, Record
from course_staff.grading.spreadsheet import csv_text
from course_utils.viz.tradeoff import Entry, Leaderboard

_TOO_LARGE = 1e30  # for a figure


def boards(records: Sequence[Record]) -> list[Leaderboard]:
    """A board for each question for which any record has figures, passed or not."""
    letters = _give_letters(records)
    titles, entries = {}, {}
    for record in records:
        for question in record["questions"]:
            if question.get("figures") is not None:
                titles[question["id"]] = question["title"]
            if figures := _get_figures(question):
                entry = Entry(letters[record["student"]], record["student"], *figures)
                entries.setdefault(question["id"], []).append(entry)
    return [Leaderboard.from_entries(name, title, entries.get(name, [])) for name, title in titles.items()]


def leaderboard_table(leaderboards: Sequence[Leaderboard]) -> str:
    """The leaderboard as CSV: a row per entry, in the page's order, figures as they are."""
    rows = [["question", "entry", "front", "bytes", "operations", "accuracy"]]
    for board in leaderboards:
        for rank, entry in enumerate(board.entries):
            on_front = "yes" if rank < board.front_size else "no"
            rows.append([board.id, entry.letter, on_front, entry.bytes, entry.operations, entry.accuracy])
    return csv_text(rows)


def _give_letters(records: Sequence[Record]) -> dict[str, str]:
    """Student to letter, for those with an entry on any board."""
    ranked = [record for record in records if any(map(_get_figures, record["questions"]))]
    names = {record["student"]: f"{record['key']} {record['student']}".encode("utf-8", "replace") for record in ranked}
    students = sorted(names, key=lambda student: hashlib.sha256(names[student]).digest())
    return {student: _letter(number) for number, student in enumerate(students)}


def _get_figures(question: QuestionRecord) -> tuple[float, float, float] | None:
    """Bytes, operations and accuracy of a question that was passed; None if they are missing, or no such numbers."""
    counts = question.get("figures")
    if question["state"] != "passed" or not isinstance(counts, Mapping):
        return None
    figures = tuple(counts.get(name) for name in ("bytes", "operations", "accuracy"))
    are_numbers = all(type(figure) in (int, float) and 0 <= figure < _TOO_LARGE for figure in figures)
    return figures if are_numbers else None


def _letter(number: int) -> str:
    """A, B, … Z, AA, AB, … for 0, 1, …"""
    rest, letter = divmod(number, 26)
    return (_letter(rest - 1) if rest else "") + chr(ord("A") + letter)
