"""Grading many notebooks: learners' code runs in a sandbox and returns values; the expected values exist only in this process.

Each submission has its own sandbox, and each of its questions a process, which gets the cases one by one. All public cases are
judged before the process gets the first hidden input, so that no hidden input can reach what the student is shown. A question
that ran out of time, and computed for less than half of it, is run once more when nothing else runs.
"""

import html
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from course_staff.grading.asking import Replies, ask, parse_in_sandbox
from course_staff.grading.lane_pool import LanePool
from course_staff.grading.prepare import PreparedCases, PreparedQuestion, PreparedSet
from course_staff.grading.record import CaseRecord, Grade, QuestionRecord
from course_staff.grading.sandbox import Lane
from course_staff.grading.submission import Answer, answer_to, notes_on_set, read_submission
from course_utils.grading import judge
from course_utils.grading.judge import ENDLESS, Outcome
from course_utils.grading.question import HIGHER_IS_BETTER, Case

# A question that is run once more, alone, gets its time limit times this.
_RERUN_TIME_FACTOR = 3.0
_NOT_GRADED = "Not graded, because the grader itself failed ({}: {}); please report this."
_NOT_JUDGED = "The judge itself failed on this answer's result ({}): please report this, with the notebook."
# Lanes judge in threads, and a judge may run a model, or a recipe dry, which patches torch for all of them.
_judging = Lock()
_LONGEST_NOTE = 400  # characters
_LONGEST_RECORD = 100_000  # characters, as a page would hold them


def grade_all(
    submissions: Mapping[str, Path],
    exercise_set: PreparedSet,
    sandbox_kind: str,
    jobs: int,
    on_graded: Callable[[str, Grade], None],
    private: Iterable[Path] = (),
) -> None:
    """Grade in `jobs` lanes of this kind; `on_graded(student, grade)` is called in this thread when one is graded.

    No submission sees another, nor the folders that are `private`. Whatever happens to one submission, the others are graded;
    when this is interrupted nothing is left running. Raises `CourseError`, before anything is graded, if no process can be
    started.
    """
    hidden = {*private, *(path.absolute().parent for path in submissions.values())}
    graders = {student: SubmissionGrader(path, exercise_set) for student, path in submissions.items()}
    with closing(LanePool([Lane(sandbox_kind, hidden) for _ in range(min(jobs, len(submissions)))])) as lanes:
        lanes.try_out()
        starved_students = []
        for student in lanes.take(graders, lambda student, lane: graders[student].grade_safely(lane)):
            if graders[student].starved_indices:
                starved_students.append(student)
            else:
                on_graded(student, graders[student].grade)
        for student in lanes.take(
            starved_students, lambda student, lane: graders[student].grade_safely(lane), at_once=1
        ):
            on_graded(student, graders[student].grade)


@dataclass
class SubmissionGrader:
    """A submission that is being graded: `grade` is what is known so far, `starved_indices` say which questions are to be run
    once more, alone."""

    path: Path
    exercise_set: PreparedSet
    grade: Grade = field(init=False)  # from the first `grade_safely` on
    starved_indices: set[int] = field(default_factory=set)
    _answers: list[Answer] = field(default_factory=list)

    def grade_safely(self, lane: Lane) -> None:
        """Grade all questions, or those that are to be run again; if the grader itself fails, the grade says so."""
        try:
            if self.starved_indices:
                self._grade(sorted(self.starved_indices), lane, is_alone=True)
            else:
                self._read(lane)
                self._grade(range(len(self.exercise_set.questions)), lane, is_alone=False)
        except Exception as error:
            note = _NOT_GRADED.format(type(error).__name__, error)[:_LONGEST_NOTE]
            self.starved_indices.clear()
            self.grade = {
                "points": 0,
                "max_points": self.exercise_set.points,
                "notes": [note],
                "questions": [],
                "failed": True,
            }

    def _read(self, lane: Lane) -> None:
        """Find the answers, and begin the grade with notes on the whole notebook."""
        submission = read_submission(self.path, lambda sources: parse_in_sandbox(sources, lane))
        self._answers = [answer_to(submission, prepared.entry) for prepared in self.exercise_set.questions]
        ids = [prepared.question.id for prepared in self.exercise_set.questions]
        notes = [*submission.notes, *notes_on_set(submission, self.exercise_set.name, ids)]
        self.grade = {"points": 0, "max_points": self.exercise_set.points, "notes": notes, "questions": []}

    def _grade(self, indices: Iterable[int], lane: Lane, is_alone: bool) -> None:
        """Run the public cases of all these questions, then the hidden cases of those that may go on."""
        all_prepared = self.exercise_set.questions
        graders = {
            index: QuestionGrader(all_prepared[index], self._answers[index], lane, self.exercise_set.seconds, is_alone)
            for index in indices
        }
        question_records = dict(enumerate(self.grade["questions"]))
        for index, grader in graders.items():
            question_records[index] = grader.grade_public()
        for index, grader in graders.items():
            if not grader.needs_rerun and grader.may_go_on(question_records[index]):
                grader.grade_hidden(question_records[index])
        self.grade["questions"] = [*question_records.values()]
        self.starved_indices = {index for index, grader in graders.items() if grader.needs_rerun}
        self._add_points()
        if len(html.escape(json.dumps(self.grade))) > _LONGEST_RECORD:
            self._drop_sentences()

    def _add_points(self) -> None:
        for prepared, question_record in zip(self.exercise_set.questions, self.grade["questions"], strict=True):
            passed = [verdict["passed"] for verdict in question_record["public"] + question_record["hidden"]]
            cases = prepared.public.cases + prepared.hidden.cases
            question_record["not_run"] = len(cases) - len(passed)
            expected = [prepared.question.expected(case.inputs) for case in cases]
            question_record["points"] = judge.points(
                prepared.question, expected, passed + [False] * question_record["not_run"]
            )
        self.grade["points"] = sum(question_record["points"] for question_record in self.grade["questions"])

    def _drop_sentences(self) -> None:
        for question_record in self.grade["questions"]:
            question_record |= {
                "notes": [],
                "diagnosis": "",
                "public_diagnosis": {**question_record["public_diagnosis"], "diagnosis": ""},
            }
            for verdict in question_record["public"] + question_record["hidden"]:
                verdict["sentence"] = verdict["sentence"] and "What it returned is too long to show."


@dataclass
class QuestionGrader:
    """A question and its answer, run in `lane` with `seconds` for a usual case."""

    prepared: PreparedQuestion
    answer: Answer
    lane: Lane
    seconds: float
    is_alone: bool  # in the only lane in use, with more time
    needs_rerun: bool = False  # because it was starved, and not alone

    def grade_public(self) -> QuestionRecord:
        """The question's record after its public cases."""
        if self.answer.state != "written":
            outcomes = [Outcome(self.answer.state)] * len(self.prepared.public.cases)
            return self._record_public(outcomes, list(self.answer.notes))
        question_record, starved = self._ask_public(with_all_cells=False)
        ended = {verdict["kind"] for verdict in question_record["public"]} & {*ENDLESS, "died"}
        if question_record["state"] != "passed" and self.answer.all_cells != self.answer.cells and not ended:
            other, other_starved = self._ask_public(with_all_cells=True)
            if _passes(other["public"]) > _passes(question_record["public"]):  # it rests on what the parser did not see
                question_record, starved = other, other_starved
        self.needs_rerun = starved and not self.is_alone
        return question_record

    def may_go_on(self, question_record: QuestionRecord) -> bool:
        """Whether the hidden cases are to be run, after the public ones."""
        passed = _passes(question_record["public"])
        is_enough = question_record["in_parts"] or passed == len(self.prepared.public.cases)
        return passed and is_enough and bool(self.prepared.hidden.cases)

    def grade_hidden(self, question_record: QuestionRecord) -> None:
        """Put the hidden cases into the record."""
        cases = self.prepared.hidden.cases
        replies = self._ask(self.prepared.hidden, question_record["ran_all_cells"])
        self.needs_rerun = replies.starved and not self.is_alone
        result = self._judge_safely(cases, replies.outcomes)
        question_record["hidden"] = _case_records(result)
        self._add_figures(question_record, cases, replies.outcomes, question_record["hidden"])
        question_record["diagnosis"] = question_record["diagnosis"] or result.diagnosis
        question_record["state"] = "passed" if question_record["state"] == "passed" and result.passed else "failed"

    def _ask_public(self, with_all_cells: bool) -> tuple[QuestionRecord, bool]:
        replies = self._ask(self.prepared.public, with_all_cells)
        question_record = self._record_public(replies.outcomes, [*self.answer.notes, *replies.notes])
        return question_record | {"ran_all_cells": with_all_cells}, replies.starved

    def _ask(self, part: PreparedCases, with_all_cells: bool) -> Replies:
        cells = self.answer.all_cells if with_all_cells else self.answer.cells
        seconds = (_RERUN_TIME_FACTOR if self.is_alone else 1) * self.prepared.question.case_seconds(self.seconds)
        return ask(cells, self.prepared.pickled, part.inputs, seconds, self.lane)

    def _record_public(self, outcomes: list[Outcome], notes: list[str]) -> QuestionRecord:
        question = self.prepared.question
        result = self._judge_safely(self.prepared.public.cases, outcomes)
        kinds = {verdict.kind for verdict in result.verdicts}
        failure = next((kind for kind in ("untouched", "missing") if kinds == {kind}), "failed")
        question_record = {
            "id": question.id,
            "title": question.title,
            "points": 0,  # `SubmissionGrader` counts these, and the cases that were not run
            "max_points": result.max_points,
            "in_parts": question.parts,
            "is_test": question.share is not None,
            "difficulty": question.difficulty,
            "minutes": question.minutes,
            "state": "passed" if result.passed else failure,
            "mistake": result.mistake,
            "diagnosis": result.diagnosis,
            "public_diagnosis": {"diagnosis": result.diagnosis, "hint": result.hint},
            "public": _case_records(result),
            "hidden": [],
            "not_run": 0,
            "notes": notes,
        }
        self._add_figures(question_record, self.prepared.public.cases, outcomes, question_record["public"])
        return question_record

    def _judge_safely(self, cases: tuple[Case, ...], outcomes: list[Outcome]) -> judge.Result:
        """The result on some of the cases; a fault of the judge costs this question's points, and no other's."""
        try:
            with _judging:
                return judge.judge_answer(self.prepared.question, cases, outcomes, self.prepared.entry, tries=2)
        except Exception as error:
            faults = [Outcome("unsafe", text=_NOT_JUDGED.format(type(error).__name__))] * len(cases)
            return judge.judge_answer(self.prepared.question, cases, faults, self.prepared.entry, tries=2)

    def _add_figures(
        self,
        question_record: QuestionRecord,
        cases: Sequence[Case],
        outcomes: list[Outcome],
        verdicts: list[CaseRecord],
    ) -> None:
        """Put into the record the worst of its figures and of those of the cases that passed, if there are any."""
        question = self.prepared.question
        figures = [question_record["figures"]] if question_record.get("figures") else []
        for case, outcome, verdict in zip(cases, outcomes, verdicts, strict=True):
            if question.figures and verdict["passed"]:
                with suppress(Exception), _judging:  # values of another form than the question's own
                    figures.append(question.figures(question.expected(case.inputs), outcome.values))
        worst = {name: (min if name in HIGHER_IS_BETTER else max) for counts in figures for name in counts}
        if figures:
            question_record["figures"] = {
                name: choose(counts[name] for counts in figures) for name, choose in worst.items()
            }


def _case_records(result: judge.Result) -> list[CaseRecord]:
    return [
        {"case": v.case, "passed": v.passed, "kind": v.kind, "sentence": v.sentence, "brief": v.brief}
        for v in result.verdicts
    ]


def _passes(verdicts: list[CaseRecord]) -> int:
    return sum(verdict["passed"] for verdict in verdicts)
