"""Grading many notebooks: learners' code runs in a sandbox and returns values; the expected values exist only in this process.

Each submission has its own sandbox, and each of its questions a process, which gets the cases one by one. All public cases are
judged before the process gets the first hidden input, so that no hidden input can reach what the student is shown. A question
that ran out of time, and computed for less than half of it, is run once more when nothing else runs.
"""

import html
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
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

        def grade(student: str, lane: Lane) -> None:
            graders[student].grade_safely(lane)

        for student in lanes.take(graders, grade):
            if graders[student].starved_indices:
                starved_students.append(student)
            else:
                on_graded(student, graders[student].grade)
        for student in lanes.take(starved_students, grade, at_once=1):
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
            self.grade = self._begin([note]) | {"failed": True}

    def _read(self, lane: Lane) -> None:
        """Find the answers, and what is to be noted on the whole notebook."""
        submission = read_submission(self.path, lambda sources: parse_in_sandbox(sources, lane))
        self._answers = [answer_to(submission, prepared.entry) for prepared in self.exercise_set.questions]
        ids = [prepared.question.id for prepared in self.exercise_set.questions]
        self.grade = self._begin([*submission.notes, *notes_on_set(submission, self.exercise_set.name, ids)])

    def _begin(self, notes: list[str]) -> Grade:
        return {"points": 0, "max_points": self.exercise_set.points, "notes": notes, "questions": []}

    def _grade(self, indices: Iterable[int], lane: Lane, is_alone: bool) -> None:
        """Run the public cases of all these questions, then the hidden cases of those that may go on."""
        all_prepared = self.exercise_set.questions
        graders = {
            index: QuestionGrader(all_prepared[index], self._answers[index], lane, self.exercise_set.seconds, is_alone)
            for index in indices
        }
        for grader in graders.values():
            grader.run_public()
        for grader in graders.values():
            if not grader.needs_rerun and grader.may_go_on():
                grader.run_hidden()
        self.starved_indices = {index for index, grader in graders.items() if grader.needs_rerun}
        question_records = dict(enumerate(self.grade["questions"]))
        question_records |= {index: grader.record() for index, grader in graders.items()}
        self.grade["questions"] = [*question_records.values()]
        self.grade["points"] = sum(question_record["points"] for question_record in question_records.values())
        if len(html.escape(json.dumps(self.grade))) > _LONGEST_RECORD:
            self.grade["questions"] = [*map(_drop_sentences, question_records.values())]


@dataclass(frozen=True)
class Trial:
    """An answer's run on some of the cases, and the judge's result."""

    cases: tuple[Case, ...]
    replies: Replies
    result: judge.QuestionResult
    ran_all_cells: bool | None = None  # None where no cell was run

    @property
    def passes(self) -> int:
        """How many of the cases passed."""
        return sum(verdict.passed for verdict in self.result.verdicts)


_NOT_RUN = Trial((), Replies([], []), judge.QuestionResult("", (), 0, 0))


@dataclass
class QuestionGrader:
    """A question and its answer, run in `lane` with `seconds` for a usual case; `record` says what came of it."""

    prepared: PreparedQuestion
    answer: Answer
    lane: Lane
    seconds: float
    is_alone: bool  # in the only lane in use, with more time
    needs_rerun: bool = False  # because it was starved, and not alone
    public: Trial = _NOT_RUN
    hidden: Trial = _NOT_RUN

    def run_public(self) -> None:
        """Run the public cases; where one fails, all again, with every cell that answers no question."""
        cases = self.prepared.public.cases
        if self.answer.state != "written":
            outcomes = [Outcome(self.answer.state)] * len(cases)
            self.public = Trial(cases, Replies(outcomes, []), self._judge_safely(cases, outcomes))
            return
        self.public = self._try_cases(self.prepared.public)
        ended = {verdict.kind for verdict in self.public.result.verdicts} & {*ENDLESS, "died"}
        if not self.public.result.passed and self.answer.all_cells != self.answer.cells and not ended:
            other = self._try_cases(self.prepared.public, with_all_cells=True)
            if other.passes > self.public.passes:  # it rests on what the parser did not see
                self.public = other
        self.needs_rerun = self.public.replies.starved and not self.is_alone

    def may_go_on(self) -> bool:
        """Whether the hidden cases are to be run, after the public ones."""
        is_enough = self.prepared.question.parts or self.public.passes == len(self.prepared.public.cases)
        return self.public.passes > 0 and is_enough and bool(self.prepared.hidden.cases)

    def run_hidden(self) -> None:
        """Run the hidden cases after the same cells."""
        self.hidden = self._try_cases(self.prepared.hidden, self.public.ran_all_cells)
        self.needs_rerun = self.hidden.replies.starved and not self.is_alone

    def record(self) -> QuestionRecord:
        """The record of what was run; cases that were not run earn nothing."""
        question, public, hidden = self.prepared.question, self.public.result, self.hidden.result
        passed = [verdict.passed for verdict in public.verdicts + hidden.verdicts]
        cases = self.prepared.public.cases + self.prepared.hidden.cases
        not_run = len(cases) - len(passed)
        expected = [question.expected(case.inputs) for case in cases]
        kinds = {verdict.kind for verdict in public.verdicts}
        failure = next((kind for kind in ("untouched", "missing") if kinds == {kind}), "failed")
        optional = {"ran_all_cells": self.public.ran_all_cells, "figures": self._find_worst_figures()}
        return {
            "id": question.id,
            "title": question.title,
            "points": judge.points(question, expected, passed + [False] * not_run),
            "max_points": question.points,
            "in_parts": question.parts,
            "is_test": question.share is not None,
            "difficulty": question.difficulty,
            "minutes": question.minutes,
            "state": "passed" if public.passed and hidden.passed else failure,
            "mistake": public.mistake,
            "diagnosis": public.diagnosis or hidden.diagnosis,
            "public_diagnosis": {"diagnosis": public.diagnosis, "hint": public.hint},
            "public": [*map(asdict, public.verdicts)],
            "hidden": [*map(asdict, hidden.verdicts)],
            "not_run": not_run,
            "notes": [*self.answer.notes, *self.public.replies.notes],
            **{name: value for name, value in optional.items() if value is not None},
        }

    def _try_cases(self, part: PreparedCases, with_all_cells: bool = False) -> Trial:
        cells = self.answer.all_cells if with_all_cells else self.answer.cells
        seconds = (_RERUN_TIME_FACTOR if self.is_alone else 1) * self.prepared.question.case_seconds(self.seconds)
        replies = ask(cells, self.prepared.pickled, part.inputs, seconds, self.lane)
        return Trial(part.cases, replies, self._judge_safely(part.cases, replies.outcomes), with_all_cells)

    def _judge_safely(self, cases: tuple[Case, ...], outcomes: list[Outcome]) -> judge.QuestionResult:
        """The result on some of the cases; a fault of the judge costs this question's points, and no other's."""
        try:
            with _judging:
                return judge.judge_answer(self.prepared.question, cases, outcomes, self.prepared.entry, tries=2)
        except Exception as error:
            faults = [Outcome("unsafe", text=_NOT_JUDGED.format(type(error).__name__))] * len(cases)
            return judge.judge_answer(self.prepared.question, cases, faults, self.prepared.entry, tries=2)

    def _find_worst_figures(self) -> dict[str, float] | None:
        """Of each figure the worst among the cases that passed; None if there are no figures."""
        question = self.prepared.question
        figures = []
        for trial in (self.public, self.hidden):
            for case, outcome, verdict in zip(trial.cases, trial.replies.outcomes, trial.result.verdicts, strict=True):
                if question.figures and verdict.passed:
                    with suppress(Exception), _judging:  # values of another form than the question's own
                        figures.append(question.figures(question.expected(case.inputs), outcome.values))
        worst = {name: (min if name in HIGHER_IS_BETTER else max) for counts in figures for name in counts}
        return {name: choose(counts[name] for counts in figures) for name, choose in worst.items()} if figures else None


def _drop_sentences(question_record: QuestionRecord) -> QuestionRecord:
    """The record without the sentences that hold an answer's own words."""

    def shorten_case(verdict: CaseRecord) -> CaseRecord:
        return verdict | {"sentence": verdict["sentence"] and "What it returned is too long to show."}

    return question_record | {
        "notes": [],
        "diagnosis": "",
        "public_diagnosis": {**question_record["public_diagnosis"], "diagnosis": ""},
        "public": [*map(shorten_case, question_record["public"])],
        "hidden": [*map(shorten_case, question_record["hidden"])],
    }
