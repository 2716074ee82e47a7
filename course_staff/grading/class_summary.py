"""How a class did: how each question was answered, which mistakes were made more than once, what was odd."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from course_staff.grading.record import QuestionRecord, Record
from course_utils.grading.judge import OUTCOME_KINDS
from course_utils.grading.question import LEVELS
from course_utils.grading.rendering import printable
from course_utils.units import format_counted

_ROWS_SHOWN = 10
_EMPTY = OUTCOME_KINDS["untouched"], OUTCOME_KINDS["missing"]


@dataclass(frozen=True)
class SummaryRow:
    """A line of the summary."""

    text: str
    count: int = 0  # of the answers that the text describes; 0 where nothing is counted
    students: Sequence[str] = ()  # who made the mistake that the text names


Section = tuple[str, list[SummaryRow]]
"""A title and the rows below it."""


def summary(records: list[Record], set_name: str, other_files: list[str], remarks: Sequence[str] = ()) -> str:
    """The class in plain text: points, how each question was answered, the commonest named mistakes, what was odd."""
    questions = summarize_questions(records)
    wrong = [question for question in questions if question.has_wrong_answers]
    others = [question for question in questions if not question.has_wrong_answers]
    right = [question.in_one_row() for question in others if question.passed]
    unanswered = [question.in_one_row() for question in others if not question.passed]
    sections = [(f"{q.title}: {q.passed} of {q.answers} passed", q.outcomes) for q in wrong]
    if right:
        sections.append(("No wrong answers on the others" if wrong else "No wrong answers", right))
    if unanswered:
        sections.append(("Nobody answered", unanswered))
    lines = [head(records, set_name), *remarks]
    for title, rows in [*sections, *list_common_mistakes(records), *oddities(records, other_files)]:
        lines += ["", title, *(f"  {row.count:4d}  {row.text}" if row.count else f"  {row.text}" for row in rows)]
    return "\n".join(map(printable, lines)) + "\n"


def head(records: list[Record], set_name: str) -> str:
    """How many submissions there are, the share of all points that they have, and how many could not be graded."""
    graded = [record for record in records if not record.get("failed")]
    points, maximum = (sum(record[name] for record in graded) for name in ("points", "max_points"))
    share = f", {points / maximum:.0%} of all points" if maximum else ""
    ungraded = f", {len(records) - len(graded)} not graded" if len(graded) < len(records) else ""
    return f"{set_name}: {format_counted(len(records), 'submission')}{share}{ungraded}"


@dataclass(frozen=True)
class QuestionSummary:
    """How many of a question's `answers` passed, and the outcomes of the others, the commonest first; `level` is the author's
    word for its difficulty."""

    id: str
    title: str
    level: str
    answers: int
    passed: int
    outcomes: list[SummaryRow]

    @property
    def has_wrong_answers(self) -> bool:
        """Whether anybody's answer was wrong, and not just missing."""
        return any(outcome.text not in _EMPTY for outcome in self.outcomes)

    def in_one_row(self) -> SummaryRow:
        """`q1 · Momentum: 12 of 19 passed, 7 not written`"""
        outcomes = (f"{outcome.count} {outcome.text}" for outcome in self.outcomes)
        return SummaryRow(f"{self.title}: {', '.join([f'{self.passed} of {self.answers} passed', *outcomes])}")


def summarize_questions(records: Sequence[Record]) -> list[QuestionSummary]:
    """How every question was answered, in the set's order."""
    records_of: dict[str, list[QuestionRecord]] = {}
    for record in records:
        for question in record["questions"]:
            records_of.setdefault(question["id"], []).append(question)
    return [_summarize(name, questions) for name, questions in records_of.items()]


def _summarize(name: str, questions: Sequence[QuestionRecord]) -> QuestionSummary:
    counts = Counter(_outcome_in_words(question) for question in questions)
    return QuestionSummary(
        id=name,
        title=f"{name} · {questions[0]['title']}",
        level=LEVELS.get(questions[0].get("difficulty"), ""),
        answers=len(questions),
        passed=counts.pop("passed", 0),
        outcomes=[SummaryRow(outcome, count) for outcome, count in counts.most_common()],
    )


def oddities(records: list[Record], others: list[str]) -> list[Section]:
    """Notes, answers to look at, equal files, and `others`, which are no notebooks; sections without rows are left out."""
    odd = "they ended their process or returned something that cannot be judged"
    rows_by_title = {
        "Notes": [SummaryRow(f"{record['student']}: {note}") for record in records for note in record["notes"]],
        f"Answers to look at: {odd}": _list_suspicious_answers(records),
        "Identical files": _list_equal_files(records),
        "Ignored, because they are not notebooks": [SummaryRow(name) for name in others],
    }
    return [(title, rows) for title, rows in rows_by_title.items() if rows]


def _list_suspicious_answers(records: list[Record]) -> list[SummaryRow]:
    """Students, each with the questions whose answer ended in a way that honest ones seldom do."""
    ids_of: dict[str, list[str]] = {}
    for record in records:
        for question in record["questions"]:
            verdicts = [*question.get("public", ()), *question.get("hidden", ())]
            if any(verdict["kind"] in ("died", "unsafe") for verdict in verdicts if not verdict["passed"]):
                ids_of.setdefault(record["student"], []).append(question["id"])
    return [SummaryRow(f"{student}: {', '.join(ids)}") for student, ids in ids_of.items()]


def _list_equal_files(records: list[Record]) -> list[SummaryRow]:
    """Students whose files are the same to the byte."""
    students: dict[str, list[str]] = {}
    for record in records:
        students.setdefault(record["file"], []).append(record["student"])
    return [SummaryRow(", ".join(names)) for names in students.values() if len(names) > 1]


def _outcome_in_words(question: QuestionRecord) -> str:
    if question["state"] != "failed":
        return OUTCOME_KINDS.get(question["state"], question["state"])
    first = next(verdict for verdict in [*question["public"], *question["hidden"]] if not verdict["passed"])
    only = "" if any(not verdict["passed"] for verdict in question["public"]) else " (hidden cases only)"
    return (question["diagnosis"] or OUTCOME_KINDS[first["kind"]]) + only


def list_common_mistakes(records: list[Record]) -> list[Section]:
    """The named mistakes of more than one submission, the commonest first, then in the questions' order; the title says how many
    are left out. There is no section if no mistake was named."""
    students_by_mistake: dict[tuple[int, str], list[str]] = {}
    for record in records:
        for number, question in enumerate(record["questions"]):
            if question["diagnosis"]:
                mistake = number, f"{question['id']}: {question['diagnosis']}"
                students_by_mistake.setdefault(mistake, []).append(record["student"])
    if not students_by_mistake:
        return []
    shared = sorted((-len(names), *mistake, names) for mistake, names in students_by_mistake.items() if len(names) > 1)
    if not shared:
        return [("Most common mistakes", [SummaryRow("Each was made once; see the questions above.")])]
    cut = f", the first {_ROWS_SHOWN}" if len(shared) > _ROWS_SHOWN else ""
    title = f"Most common mistakes: {len(shared)} of {len(students_by_mistake)} were made more than once{cut}"
    return [(title, [SummaryRow(text, len(students), students) for _, _, text, students in shared[:_ROWS_SHOWN]])]
