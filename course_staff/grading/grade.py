"""Grading many notebooks: learners' code runs in a sandbox and returns values; the expected values exist only in this process.

A submission has a sandbox for itself, and each of its questions a process, which gets the cases one by one. All its public cases
are judged before its first hidden input goes in, so that none can reach what its student is shown. What ran out of time without
having computed for half of it is run once more when nothing else runs.
"""

import html
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from course_staff.grading.asking import Replies, ask, parse_in_sandbox
from course_staff.grading.lanes import Lanes
from course_staff.grading.prepare import PreparedCases, PreparedQuestion, PreparedSet
from course_staff.grading.record import CaseRecord, QuestionRecord, Record
from course_staff.grading.sandbox import Lane
from course_staff.grading.submission import Answer, answer_to, notes_on_set, read_submission
from course_utils.grading import judge
from course_utils.grading.judge import ENDLESS, Outcome
from course_utils.grading.question import HIGHER_IS_BETTER, Case

_ALONE = 3.0  # times its limit is what a question gets that is run once more, alone
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
    done: Callable[[str, Record], None],
    private: Iterable[Path] = (),
) -> None:
    """Grade in `jobs` lanes of this kind; `done(student, record)` is called in this thread for each that is through.

    No submission sees another, nor the folders that are `private`. Whatever happens to one submission, the others are graded;
    when this is interrupted nothing is left running. Raises `CourseError`, before anything is graded, where no process can be
    started.
    """
    hidden = {*private, *(path.absolute().parent for path in submissions.values())}
    works = {student: Work(path, exercise_set) for student, path in submissions.items()}
    with closing(Lanes([Lane(sandbox_kind, hidden) for _ in range(min(jobs, len(submissions)))])) as lanes:
        lanes.try_out()
        late = []
        for student in lanes.take(works, lambda student, lane: works[student].grade_safely(lane)):
            if works[student].late:
                late.append(student)
            else:
                done(student, works[student].record)
        for student in lanes.take(late, lambda student, lane: works[student].grade_safely(lane), at_once=1):
            done(student, works[student].record)


@dataclass
class Work:
    """A submission on its way. `record` is what is known so far, as JSON holds it. `late` are the positions of questions that are
    to be run again, alone."""

    path: Path
    exercise_set: PreparedSet
    record: Record = field(default_factory=dict)
    late: set[int] = field(default_factory=set)
    _answers: list[Answer] = field(default_factory=list)

    def grade_safely(self, lane: Lane) -> None:
        """Grade all, or what is late; a fault of the grader itself is written down, and costs no other submission."""
        try:
            if self.late:
                self.grade_late(lane)
            else:
                self.grade(lane)
        except Exception as error:
            why = f"Not graded, because the grader itself failed ({type(error).__name__}: {error}); please report this."
            self.late.clear()
            self.record = {"points": 0, "of": self.exercise_set.points, "notes": [why[:_LONGEST_NOTE]], "questions": []}
            self.record["failed"] = True

    def grade(self, lane: Lane) -> None:
        """Every question on its public cases, then those that may go on, on their hidden ones."""
        self.record = {"of": self.exercise_set.points, "questions": [{} for _ in self.exercise_set.questions]}
        self.record["notes"] = self._read(lane)
        self._grade(range(len(self.exercise_set.questions)), lane, is_alone=False)

    def grade_late(self, lane: Lane) -> None:
        """What was late, in the only lane that is in use, with more time; that counts."""
        late, self.late = sorted(self.late), set()
        self._grade(late, lane, is_alone=True)

    def _grade(self, positions: Sequence[int], lane: Lane, is_alone: bool) -> None:
        for position in positions:
            self._grade_public(position, lane, is_alone)
        for position in positions:
            if position not in self.late and self._may_go_on(position):
                self._grade_hidden(position, lane, is_alone)
        self._sum_up()

    def _read(self, lane: Lane) -> list[str]:
        """Find the answers; returns notes on the whole."""
        submission = read_submission(self.path, lambda sources: parse_in_sandbox(sources, lane))
        self._answers = [answer_to(submission, prepared.entry) for prepared in self.exercise_set.questions]
        ids = [prepared.question.id for prepared in self.exercise_set.questions]
        return [*submission.notes, *notes_on_set(submission, self.exercise_set.name, ids)]

    def _grade_public(self, position: int, lane: Lane, is_alone: bool) -> None:
        prepared, answer = self.exercise_set.questions[position], self._answers[position]
        if answer.state == "written":
            record, starved = self._ask_public(position, False, lane, is_alone)
            ended = {verdict["kind"] for verdict in record["public"]} & {*ENDLESS, "died"}
            if record["state"] != "passed" and answer.whole != answer.cells and not ended:
                other, other_starved = self._ask_public(position, True, lane, is_alone)
                if _passes(other["public"]) > _passes(record["public"]):  # it rests on what the parser did not see
                    record, starved = other, other_starved
            if starved and not is_alone:
                self.late.add(position)
        else:
            record = _record_public(prepared, [Outcome(answer.state)] * len(prepared.public.cases), list(answer.notes))
        self.record["questions"][position] = record

    def _may_go_on(self, position: int) -> bool:
        prepared, record = self.exercise_set.questions[position], self.record["questions"][position]
        passed = _passes(record["public"])
        return passed and (record["parts"] or passed == len(prepared.public.cases)) and bool(prepared.hidden.cases)

    def _ask(self, position: int, part: PreparedCases, whole: bool, lane: Lane, is_alone: bool) -> Replies:
        prepared, answer = self.exercise_set.questions[position], self._answers[position]
        seconds = (_ALONE if is_alone else 1) * prepared.question.limit(self.exercise_set.seconds)
        return ask(answer.whole if whole else answer.cells, prepared.pickled, part.inputs, seconds, lane)

    def _ask_public(self, position: int, whole: bool, lane: Lane, is_alone: bool) -> tuple[QuestionRecord, bool]:
        prepared = self.exercise_set.questions[position]
        replies = self._ask(position, prepared.public, whole, lane, is_alone)
        record = _record_public(prepared, replies.outcomes, [*self._answers[position].notes, *replies.notes])
        return record | {"whole": whole}, replies.starved

    def _grade_hidden(self, position: int, lane: Lane, is_alone: bool) -> None:
        prepared, question = self.exercise_set.questions[position], self.record["questions"][position]
        replies = self._ask(position, prepared.hidden, question["whole"], lane, is_alone)
        if replies.starved and not is_alone:
            self.late.add(position)
        result = _judge_safely(prepared, prepared.hidden.cases, replies.outcomes)
        question["hidden"] = _verdicts(result)
        before = [question["figures"]] if "figures" in question else []
        question |= _worst_figures(prepared, prepared.hidden.cases, replies.outcomes, question["hidden"], *before)
        question["diagnosis"] = question["diagnosis"] or result.diagnosis
        question["state"] = "passed" if question["state"] == "passed" and result.passed else "failed"

    def _sum_up(self) -> None:
        """Points, of what is there; a record of more than a page's length keeps none of the words."""
        for prepared, question in zip(self.exercise_set.questions, self.record["questions"], strict=True):
            passed = [verdict["passed"] for verdict in question["public"] + question["hidden"]]
            cases = prepared.public.cases + prepared.hidden.cases
            question["not_run"] = len(cases) - len(passed)
            expected = [prepared.question.expected(case.inputs) for case in cases]
            question["points"] = judge.points(prepared.question, expected, passed + [False] * question["not_run"])
        self.record["points"] = sum(question["points"] for question in self.record["questions"])
        if len(html.escape(json.dumps(self.record))) > _LONGEST_RECORD:
            for question in self.record["questions"]:
                question |= {"notes": [], "diagnosis": "", "shown": {**question["shown"], "diagnosis": ""}}
                for verdict in question["public"] + question["hidden"]:
                    verdict["sentence"] = verdict["sentence"] and "What it returned is too long to show."


def _record_public(prepared: PreparedQuestion, outcomes: list[Outcome], notes: list[str]) -> QuestionRecord:
    """A question's record after its public cases."""
    question = prepared.question
    result = _judge_safely(prepared, prepared.public.cases, outcomes)
    kinds, public = {verdict.kind for verdict in result.verdicts}, _verdicts(result)
    nothing = next((kind for kind in ("untouched", "missing") if kinds == {kind}), "failed")
    return {
        "id": question.id,
        "title": question.title,
        "of": result.of,
        "parts": question.parts,
        "refusing": question.share is not None,
        "difficulty": question.difficulty,
        "minutes": question.minutes,
        "state": "passed" if result.passed else nothing,
        "mistake": result.mistake,
        "diagnosis": result.diagnosis,
        "shown": {"diagnosis": result.diagnosis, "hint": result.hint},
        **_worst_figures(prepared, prepared.public.cases, outcomes, public),
        "public": public,
        "hidden": [],
        "notes": notes,
    }


def _judge_safely(prepared: PreparedQuestion, cases: tuple[Case, ...], outcomes: list[Outcome]) -> judge.Result:
    """The result on some of the cases; a fault of the judge costs this question's points, and no other's."""
    try:
        with _judging:
            return judge.judge_answer(prepared.question, cases, outcomes, prepared.entry, tries=2)
    except Exception as error:
        nothing = [Outcome("unsafe", text=_NOT_JUDGED.format(type(error).__name__))] * len(cases)
        return judge.judge_answer(prepared.question, cases, nothing, prepared.entry, tries=2)


def _worst_figures(
    prepared: PreparedQuestion,
    cases: Sequence[Case],
    outcomes: list[Outcome],
    verdicts: list[CaseRecord],
    *before: dict,
) -> dict:
    """`{"figures": ...}`, of all cases that passed the worst; nothing where none did."""
    figures = list(before)
    for case, outcome, verdict in zip(cases, outcomes, verdicts, strict=True):
        if prepared.question.figures and verdict["passed"]:
            with suppress(Exception), _judging:  # values of another form than the question's own
                figures.append(prepared.question.figures(prepared.question.expected(case.inputs), outcome.values))
    worst = {name: (min if name in HIGHER_IS_BETTER else max) for counts in figures for name in counts}
    return {"figures": {name: of(counts[name] for counts in figures) for name, of in worst.items()}} if figures else {}


def _verdicts(result: judge.Result) -> list[CaseRecord]:
    return [
        {"case": v.case, "passed": v.passed, "kind": v.kind, "sentence": v.sentence, "brief": v.brief}
        for v in result.verdicts
    ]


def _passes(verdicts: list[CaseRecord]) -> int:
    return sum(verdict["passed"] for verdict in verdicts)
