"""The pages for a browser: a student's, the class's for the instructor, and the leaderboard."""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

import matplotlib

from course_staff.grading import class_summary
from course_staff.grading.picture import class_figure
from course_staff.grading.record import QuestionRecord, Record, file_name, maxima_of
from course_utils.files import exercises_of
from course_utils.grading.judge import OUTCOME_KINDS, Verdict
from course_utils.grading.question import LEVELS
from course_utils.grading.rendering import render
from course_utils.grading.showing import SIGNS, Line, case_lines
from course_utils.units import format_bytes, format_counted
from course_utils.viz.style import STYLE
from course_utils.viz.tradeoff import Leaderboard, format_operations, tradeoff_figure

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
_render = partial(render, extra_folder=Path(__file__).parent / "templates")


def student_page(record: Record, letter: str = "", title: str = "") -> str:
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
    wrong, unwritten = [], []
    for question in [question for question in record["questions"] if question["points"] < question["max_points"]]:
        by_hand = question.get("by_hand")
        if question["state"] in ("failed", "passed") or by_hand:
            wrong.append((question["id"], _advice(question, by_hand["comment"] if by_hand else "")))
        else:
            minutes = f", {question['minutes']} minutes" if "minutes" in question else ""
            points = format_counted(question["max_points"], "point")
            unwritten.append((question["id"], f"Not written yet: {question['title']} ({points}{minutes})."))
    return (wrong + unwritten)[:_MOST_STEPS]


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


def class_page(
    records: list[Record], set_name: str, others: list[str], remarks: Sequence[str] = (), title: str = ""
) -> str:
    """`class_summary.summary` for a browser, with a picture of the class, and a table of all points with a link to each page."""
    questions = class_summary.summarize_questions(records)
    maxima = maxima_of(records)
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


def leaderboard_page(leaderboards: Sequence[Leaderboard], title: str) -> str:
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
