"""Grading many notebooks: learners' code runs in a sandbox and returns values; the expected values exist only in this process.

A submission has a sandbox for itself, and each of its questions a process, which gets the cases one by one. All its public cases
are judged before its first hidden input goes in, so that none can reach what its student is shown. What ran out of time without
having computed for half of it is run once more when nothing else runs.
"""

import hashlib
import html
import io
import json
import os
import queue
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, Semaphore

from course_staff.grading import encoding
from course_staff.grading.asking import Replies, ask, parse
from course_staff.grading.earlier import Submitted
from course_staff.grading.record import CaseRecord, QuestionRecord, Record
from course_staff.grading.sandbox import SAFE, Lane
from course_staff.grading.source import load_solutions
from course_staff.grading.submission import (
    Answer,
    UnreadableError,
    answer_to,
    content_of,
    notes_on_set,
    read_submission,
)
from course_staff.notebooks.files import read_notebook
from course_utils.errors import CourseError
from course_utils.grading import judge
from course_utils.grading.judge import ENDLESS, Outcome
from course_utils.grading.loading import load_set, question_from
from course_utils.grading.question import HIGHER_IS_BETTER, Case, Question
from course_utils.grading.run import SECONDS

_ALONE = 3.0  # times its limit is what a question gets that is run once more, alone
_LONGEST_NOTE = 400  # characters
_LONGEST_RECORD = 100_000  # characters, as a page would hold them
_NOTEBOOK = re.compile(r"\.ipynb(\.txt|\.json)?$", re.IGNORECASE)


@dataclass(frozen=True)
class PreparedCases:
    """Cases of a question, and the inputs of each, pickled."""

    cases: tuple[Case, ...]
    inputs: tuple[bytes, ...]


@dataclass(frozen=True)
class PreparedQuestion:
    """One question ready to be graded. `pickled` is the question without its answers, for a learner's process."""

    question: Question
    entry: Mapping
    public: PreparedCases
    hidden: PreparedCases
    pickled: bytes


@dataclass(frozen=True)
class PreparedSet:
    """A set ready to be graded. `fingerprint` changes with the questions, the solutions, the seed and the code that grades;
    `seconds` is a case's limit; `seed` is None where only public cases are run."""

    name: str
    questions: tuple[PreparedQuestion, ...]
    fingerprint: str
    seconds: float = SECONDS
    seed: int | None = None

    @property
    def points(self) -> int:
        """What the whole set is worth."""
        return sum(prepared.question.points for prepared in self.questions)


def prepare(name: str, solutions: Path | None = None, seed: int | None = None, seconds: float = SECONDS) -> PreparedSet:
    """The set called `name`; with the notebook `solutions` also its hidden cases, drawn from `seed`.

    Raises `CourseError` for an unknown set, and where the solutions are not those that the set was released from.
    """
    entries = load_set(name)["questions"]
    if solutions:
        authored = load_solutions(solutions)
        codes = {exercise.question.id: exercise.code for exercise in authored}
        if [*codes.items()] != [(entry["id"], entry["code"]) for entry in entries]:
            raise CourseError(f"{solutions} is not what the set {name} was released from; run `course release` first.")
        questions = [exercise.question for exercise in authored]
    else:
        questions, seed = list(map(question_from, entries)), None
    # Text cells count for nothing here: a better sentence in a question is no reason to grade a class again.
    cells = read_notebook(solutions).cells if solutions else []
    texts = [json.dumps(entries, sort_keys=True), [cell["source"] for cell in cells if cell["cell_type"] == "code"]]
    rooms = Path(__file__).parent, Path(judge.__file__).parent
    grading = [path.read_bytes() for room in rooms for path in sorted(room.glob("*.py"))]
    fingerprint = hashlib.sha256(repr((grading, *texts, seed, seconds)).encode()).hexdigest()
    prepared = tuple(
        _prepare_question(question, entry, seed) for question, entry in zip(questions, entries, strict=True)
    )
    return PreparedSet(name, prepared, fingerprint, seconds, seed)


def _prepare_question(question: Question, entry: Mapping, seed: int | None) -> PreparedQuestion:
    import cloudpickle

    public = question.cases()
    drawn = [] if seed is None else question.cases(seed)
    hidden = [Case(f"hidden {number}: {case.name}", case.inputs) for number, case in enumerate(drawn, 1)]
    parts = [PreparedCases(tuple(cases), tuple(_pickle(case.inputs) for case in cases)) for cases in (public, hidden)]
    pickled = cloudpickle.dumps(question.for_learners())
    return PreparedQuestion(question.knowing([*public, *hidden]), entry, *parts, pickled)


def _pickle(inputs: dict) -> bytes:
    """Plain tensors in the grader's own form: torch packs each into a file, and unpacking takes longer than the case."""
    import cloudpickle
    import torch

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, value: object):
            if type(value) is torch.Tensor and value.is_contiguous() and not value.requires_grad:
                with suppress(encoding.EncodingError):
                    return encoding.load, (encoding.dump(value),)
            return super().reducer_override(value)

    buffer = io.BytesIO()
    Pickler(buffer).dump(inputs)
    return buffer.getvalue()


def find_submissions(folder: Path, out: Path | None = None) -> dict[str, Path]:
    """Student to notebook, for every notebook in `folder` and below it, `out` left aside; a file stands for itself.

    A student is called as the file is, with its folders. What systems lay beside files is nobody's: Jupyter's checkpoints, and
    a Mac's `__MACOSX` and `._name.ipynb`. Raises `CourseError` where there is none.
    """
    if folder.is_file():
        return {folder.stem: folder}
    if not folder.is_dir():
        raise CourseError(f"There is no folder {folder}; give the one with the submissions.")
    notebooks = {}
    for path in sorted(folder.rglob("*")):
        relative = path.relative_to(folder)
        is_own = not is_of_the_system(relative) and not (out and path.is_relative_to(out))
        if _NOTEBOOK.search(path.name) and is_own:
            name = os.fsencode(relative.as_posix().removesuffix(".ipynb")).decode("utf-8", "backslashreplace")
            while name in notebooks:  # nobody takes another's place, whatever a file is called
                name += " (another)"
            notebooks[name] = path
    if not notebooks:
        raise CourseError(f"There is no notebook in {folder}; give the folder with the submissions.")
    return notebooks


def is_of_the_system(relative: Path) -> bool:
    """Whether a file at this path within a class's folder is none of a student's."""
    *folders, name = relative.parts
    return name.startswith("._") or any(part.startswith(".") or part == "__MACOSX" for part in folders)


def identify(path: Path, exercise_set: PreparedSet, sandbox_kind: str) -> Submitted:
    """The file at `path` with what its record is valid for: the same content, graded by the same questions, seed and limits, and
    as safely as `sandbox_kind` is."""
    try:
        content = content_of(path)
    except UnreadableError as error:
        content = str(error).encode()
    digest = hashlib.sha256(content).hexdigest()
    key = hashlib.sha256(f"{exercise_set.fingerprint} {sandbox_kind in SAFE} {digest}".encode()).hexdigest()
    return Submitted(path, digest, key)


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
        for student in lanes.take(works, lambda student, lane: works[student].guarded(Work.grade, lane)):
            if works[student].late:
                late.append(student)
            else:
                done(student, works[student].record)
        for student in lanes.take(late, lambda student, lane: works[student].guarded(Work.grade_late, lane), at_once=1):
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

    def guarded(self, step: Callable, lane: Lane) -> None:
        """`step(self, lane)`; a fault of the grader itself is written down, and costs no other submission."""
        try:
            step(self, lane)
        except Exception as error:
            why = f"Not graded, because the grader itself failed ({type(error).__name__}: {error}); please report this."
            self.late.clear()
            self.record = {"points": 0, "of": self.exercise_set.points, "notes": [why[:_LONGEST_NOTE]], "questions": []}
            self.record["failed"] = True

    def grade(self, lane: Lane) -> None:
        """Every question on its public cases, then those that may go on, on their hidden ones."""
        self.record = {"of": self.exercise_set.points, "questions": [{} for _ in self.exercise_set.questions]}
        self.record["notes"] = self._read(lane)
        self._grade(range(len(self.exercise_set.questions)), lane)

    def grade_late(self, lane: Lane) -> None:
        """What was late, in the only lane that is in use, with more time; that counts."""
        late, self.late = sorted(self.late), set()
        self._grade(late, lane, _ALONE)

    def _grade(self, positions: Sequence[int], lane: Lane, patience: float = 1.0) -> None:
        for position in positions:
            self._grade_public(position, lane, patience)
        for position in positions:
            if position not in self.late and self._may_go_on(position):
                self._grade_hidden(position, lane, patience)
        self._sum_up()

    def _read(self, lane: Lane) -> list[str]:
        """Find the answers; gives notes on the whole."""
        submission = read_submission(self.path, lambda sources: parse(sources, lane))
        self._answers = [answer_to(submission, prepared.entry) for prepared in self.exercise_set.questions]
        ids = [prepared.question.id for prepared in self.exercise_set.questions]
        return [*submission.notes, *notes_on_set(submission, self.exercise_set.name, ids)]

    def _grade_public(self, position: int, lane: Lane, patience: float = 1.0) -> None:
        prepared, answer = self.exercise_set.questions[position], self._answers[position]
        if answer.state == "written":
            record, starved = self._ask_public(position, False, lane, patience)
            ended = {verdict["kind"] for verdict in record["public"]} & {*ENDLESS, "died"}
            if record["state"] != "passed" and answer.whole != answer.cells and not ended:
                other, other_starved = self._ask_public(position, True, lane, patience)
                if _passes(other["public"]) > _passes(record["public"]):  # it rests on what the parser did not see
                    record, starved = other, other_starved
            if starved and patience == 1.0:
                self.late.add(position)
        else:
            record = _record_public(prepared, [Outcome(answer.state)] * len(prepared.public.cases), list(answer.notes))
        self.record["questions"][position] = record

    def _may_go_on(self, position: int) -> bool:
        prepared, record = self.exercise_set.questions[position], self.record["questions"][position]
        passed = _passes(record["public"])
        return passed and (record["parts"] or passed == len(prepared.public.cases)) and bool(prepared.hidden.cases)

    def _ask(self, position: int, part: PreparedCases, whole: bool, lane: Lane, patience: float) -> Replies:
        prepared, answer = self.exercise_set.questions[position], self._answers[position]
        seconds = patience * prepared.question.limit(self.exercise_set.seconds)
        return ask(answer.whole if whole else answer.cells, prepared.pickled, part.inputs, seconds, lane)

    def _ask_public(self, position: int, whole: bool, lane: Lane, patience: float) -> tuple[QuestionRecord, bool]:
        prepared = self.exercise_set.questions[position]
        replies = self._ask(position, prepared.public, whole, lane, patience)
        record = _record_public(prepared, replies.outcomes, [*self._answers[position].notes, *replies.notes])
        return record | {"whole": whole}, replies.starved

    def _grade_hidden(self, position: int, lane: Lane, patience: float = 1.0) -> None:
        prepared, question = self.exercise_set.questions[position], self.record["questions"][position]
        replies = self._ask(position, prepared.hidden, question["whole"], lane, patience)
        if replies.starved and patience == 1.0:
            self.late.add(position)
        result = _judge_safely(prepared, prepared.hidden.cases, replies.outcomes)
        question["hidden"] = _verdicts(result)
        before = [question["figures"]] if "figures" in question else []
        question |= _figures(prepared, prepared.hidden.cases, replies.outcomes, question["hidden"], *before)
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


_NOT_JUDGED = "The judge itself failed on this answer's result ({}): please report this, with the notebook."


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
        **_figures(prepared, prepared.public.cases, outcomes, public),
        "public": public,
        "hidden": [],
        "notes": notes,
    }


_judging = Lock()
"""Lanes judge in threads, and a judge may run a model, or a recipe dry, which patches torch for all of them."""


def _judge_safely(prepared: PreparedQuestion, cases: tuple[Case, ...], outcomes: list[Outcome]) -> judge.Result:
    """The result on some of the cases; a fault of the judge costs this question's points, and no other's."""
    try:
        with _judging:
            return judge.judge_answer(prepared.question, cases, outcomes, prepared.entry, tries=2)
    except Exception as error:
        nothing = [Outcome("unsafe", text=_NOT_JUDGED.format(type(error).__name__))] * len(cases)
        return judge.judge_answer(prepared.question, cases, nothing, prepared.entry, tries=2)


def _figures(
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


class Lanes:
    """Lanes, and the threads that work in them: the same ones to the end, because a sandbox ends with the thread that started
    it."""

    def __init__(self, lanes: list[Lane]):
        self.lanes = lanes
        self._threads = ThreadPoolExecutor(len(lanes))
        self._free: queue.SimpleQueue = queue.SimpleQueue()
        for lane in lanes:
            self._free.put(lane)

    def try_out(self) -> None:
        """Start the first one; raises `CourseError` with the cause where that fails."""
        self._threads.submit(self.lanes[0].try_out).result()

    def take(
        self, students: Iterable[str], step: Callable[[str, Lane], None], at_once: int | None = None
    ) -> Iterator[str]:
        """Take the step for each student, in `at_once` lanes (by default all); yields each student when finished."""
        turn = Semaphore(at_once or len(self.lanes))

        def take(student: str) -> None:
            with turn:
                lane = self._free.get()
                try:
                    step(student, lane)
                finally:
                    lane.clear()
                    self._free.put(lane)

        pending = {self._threads.submit(take, student): student for student in students}
        for through in as_completed(pending):
            through.result()
            yield pending[through]

    def close(self) -> None:
        """End what runs; nothing more is begun."""
        for lane in self.lanes:
            lane.stop()
        self._threads.shutdown(cancel_futures=True)
        for lane in self.lanes:
            lane.close()
