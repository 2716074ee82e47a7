"""Grading many notebooks: learners' code runs elsewhere and gives values; here alone is what is right.

A question of a submission is independent of everything else: it has a process of its own, gets its cases one by one, the public
ones first, and its verdict depends neither on the order of the files nor on the other questions.
"""

import hashlib
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from course_staff.grading import encoding, isolate
from course_staff.grading.earlier import Handed
from course_staff.grading.sandbox import SAFE, Lane, NotStartedError, SandboxError
from course_staff.grading.source import load_solutions
from course_staff.grading.submission import (
    Answer,
    Submission,
    UnreadableError,
    answer_to,
    content_of,
    notes_on_set,
    read_submission,
)
from course_staff.grading.wire import TornError
from course_utils.errors import CourseError
from course_utils.grading import judge
from course_utils.grading.judge import KINDS, Outcome, Result
from course_utils.grading.question import Case, Question
from course_utils.grading.released import SETS, load_set, question_from
from course_utils.grading.run import SECONDS

CELL_SECONDS, CELLS_SECONDS = 20.0, 60.0
"""Time limit of one cell that is no answer, and of all a question's cells together."""
_CASES = 10  # times the limit of one case is what all cases together may take
_GRACE = 5.0  # seconds that a process gets to say itself that its time was up
_VERSION = 2  # of a student's record
_NOTEBOOK = re.compile(r"\.ipynb(\.txt|\.json)?$", re.IGNORECASE)


@dataclass(frozen=True)
class Paper:
    """One question ready to be graded. `cases` are the public ones, `public` in number, then the hidden ones; `sent` their inputs
    as they cross; `asked` the question as a learner's process may know it."""

    question: Question
    entry: Mapping
    cases: tuple[Case, ...]
    public: int
    sent: tuple[bytes, ...]
    asked: bytes


@dataclass(frozen=True)
class Papers:
    """A set ready to be graded. `fingerprint` changes with whatever a verdict may depend on; `seconds` is a case's limit; `seed`
    is None where only public cases are run."""

    name: str
    papers: tuple[Paper, ...]
    fingerprint: str
    seconds: float = SECONDS
    seed: int | None = None


def prepare(name: str, solutions: Path | None = None, seed: int | None = None, seconds: float = SECONDS) -> Papers:
    """The set called `name`; with the notebook `solutions` also its hidden cases, drawn from `seed`.

    Raises `CourseError` for an unknown set, and where the solutions are not those that the set was released from.
    """
    entries = load_set(name)["questions"]
    questions = _authored(name, entries, solutions) if solutions else list(map(question_from, entries))
    seed = seed if solutions else None
    parts = (
        _VERSION,
        (SETS / f"{name}.json").read_text("utf-8"),
        solutions and Path(solutions).read_text("utf-8"),
        seed,
        seconds,
    )
    fingerprint = hashlib.sha256(repr(parts).encode()).hexdigest()
    papers = (_paper(question, entry, seed) for question, entry in zip(questions, entries, strict=True))
    return Papers(name, tuple(papers), fingerprint, seconds, seed)


def find_submissions(folder: Path, out: Path | None = None) -> dict[str, Path]:
    """Student to notebook, for every notebook in `folder` and below it, `out` left aside; a file stands for itself.

    A student is called as the file is, with its folders. Raises `CourseError` where there is none.
    """
    if folder.is_file():
        return {folder.stem: folder}
    if not folder.is_dir():
        raise CourseError(f"There is no folder {folder}; give the one that the submissions lie in.")
    found = {}
    for path in sorted(folder.rglob("*")):
        place = path.relative_to(folder)
        hidden = any(part.startswith(".") for part in place.parts[:-1])
        if _NOTEBOOK.search(path.name) and not hidden and not (out and path.is_relative_to(out)):
            name = os.fsencode(place.as_posix().removesuffix(".ipynb")).decode("utf-8", "backslashreplace")
            while name in found:  # nobody takes another's place, whatever a file is called
                name += " (another)"
            found[name] = path
    if not found:
        raise CourseError(f"There is no notebook in {folder}; give the folder that the submissions lie in.")
    return found


def handed_in(path: Path, papers: Papers, kind: str) -> Handed:
    """The file at `path` with what its record is valid for: the same content, graded by the same questions, seed and limits, and
    as safely as `kind` is."""
    try:
        content = content_of(path)
    except UnreadableError as error:
        content = str(error).encode()
    digest = hashlib.sha256(content).hexdigest()
    key = hashlib.sha256(f"{papers.fingerprint} {kind in SAFE} {digest}".encode()).hexdigest()
    return Handed(path, digest, key)


def grade_submission(path: Path, papers: Papers, lane: Lane) -> dict:
    """The record of one submission, as JSON holds it: points, notes, and for each question its verdicts and diagnosis."""
    submission = read_submission(path)
    notes = [*submission.notes, *notes_on_set(submission, papers.name, [paper.question.id for paper in papers.papers])]
    questions = [_graded(submission, paper, papers.seconds, lane) for paper in papers.papers]
    return {
        "points": sum(question["points"] for question in questions),
        "of": sum(question["of"] for question in questions),
        "notes": notes,
        "questions": questions,
    }


def grade_all(
    submissions: Mapping[str, Path], papers: Papers, kind: str, jobs: int, done: Callable[[str, dict], None]
) -> None:
    """Grade in `jobs` lanes of the sandbox's `kind` and call `done(student, record)` as each is finished, in this thread.

    Whatever happens to one submission, the others are graded; when this is interrupted nothing is left running.
    """
    todo: queue.SimpleQueue = queue.SimpleQueue()
    finished: queue.SimpleQueue = queue.SimpleQueue()
    for item in submissions.items():
        todo.put(item)
    with _lanes(kind, min(jobs, len(submissions)), lambda lane: _work(lane, papers, todo, finished)):
        for _ in submissions:
            done(*finished.get())


@contextmanager
def _lanes(kind: str, count: int, work: Callable[[Lane], None]) -> Iterator[None]:
    lanes = [Lane(kind) for _ in range(count)]
    threads = [threading.Thread(target=work, args=[lane], daemon=True) for lane in lanes]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for lane in lanes:
            lane.stop()
        for thread in threads:
            thread.join(30)


def _work(lane: Lane, papers: Papers, todo: queue.SimpleQueue, finished: queue.SimpleQueue) -> None:
    try:
        while not lane.stopped:
            student, path = todo.get_nowait()
            finished.put((student, _safely(path, papers, lane)))
    except queue.Empty:
        pass
    finally:
        lane.close()


def _safely(path: Path, papers: Papers, lane: Lane) -> dict:
    """A record whatever happens: a fault of the grader itself is written down, and costs no other submission."""
    try:
        return grade_submission(path, papers, lane)
    except Exception as error:
        of = sum(paper.question.points for paper in papers.papers)
        why = f"Not graded, because the grader itself failed ({type(error).__name__}: {error}); please report this."
        return {"points": 0, "of": of, "notes": [why], "questions": [], "failed": True}


# ---- one question


def _graded(submission: Submission, paper: Paper, seconds: float, lane: Lane) -> dict:
    return _record(paper, *_outcomes_of(submission, paper, seconds, lane))


def _outcomes_of(submission: Submission, paper: Paper, seconds: float, lane: Lane) -> tuple[list[Outcome], list[str]]:
    answer = answer_to(submission, paper.entry)
    if answer.state != "written":
        return [Outcome(answer.state)] * len(paper.cases), list(answer.notes)
    outcomes, notes = _outcomes(answer, paper, seconds, lane)
    return outcomes, [*answer.notes, *notes]


def _outcomes(answer: Answer, paper: Paper, seconds: float, lane: Lane) -> tuple[list[Outcome], list[str]]:
    """What the cases gave. A sandbox that breaks is replaced once; what breaks it twice is the answer's own doing."""
    for last in (False, True):
        try:
            return _asked(answer, paper, seconds, lane)
        except NotStartedError:
            if last:
                raise
        except SandboxError as error:
            why = str(error)
    return [Outcome("died", text=why)] * len(paper.cases), []


def _asked(answer: Answer, paper: Paper, seconds: float, lane: Lane) -> tuple[list[Outcome], list[str]]:
    notes: list[str] = []
    outcomes: list[Outcome] = []
    late, limit, room = False, CELLS_SECONDS, encoding.LONGEST
    with lane.question() as talk:
        try:
            with talk.within(limit):
                nothing, notes = _opening(talk.ask(_job(answer, seconds), paper.asked))
            if nothing:
                return [nothing] * len(paper.cases), notes
            limit, end = seconds, time.monotonic() + _CASES * seconds
            for inputs in paper.sent:
                with talk.within(min(seconds + _GRACE, end - time.monotonic())):
                    message = talk.ask(inputs)
                room -= len(message)
                outcomes.append(_outcome(message) if room >= 0 else _TOO_LONG)
                if (
                    room < 0 or outcomes[-1].kind in judge.ENDLESS
                ):  # nobody waits for the same endless loop a dozen times
                    break
        except TornError:
            late = talk.late
            outcomes.append(Outcome("timeout", text=f"{limit:g} s") if late else Outcome("died"))
    if lane.why and not late and outcomes[-1].kind == "died":
        outcomes[-1] = Outcome("died", text=lane.why)
    return outcomes + outcomes[-1:] * (len(paper.cases) - len(outcomes)), notes


def _job(answer: Answer, seconds: float) -> bytes:
    cells = [[cell.number, cell.source, is_answer] for cell, is_answer in answer.cells]
    return encoding.dump({"cells": cells, "seconds": seconds, "cell_seconds": CELL_SECONDS, "limits": isolate.LIMITS})


def _opening(message: bytes) -> tuple[Outcome | None, list[str]]:
    """What a process says after its cells have run: an outcome where there is no answer, and what stopped which cell."""
    try:
        said = encoding.load(message)
        nothing, notes = _parts(said, outcome=object, notes=list)
        return (None if nothing is None else _checked(nothing)), [_note(*note) for note in notes[:20]]
    except (encoding.EncodingError, TypeError):
        return _FORGED, []


def _note(number: int, text: str) -> str:
    if type(number) is not int or type(text) is not str:
        raise TypeError
    return f"Cell {number} stopped with {text[:400]}."


def _outcome(message: bytes) -> Outcome:
    try:
        return _checked(encoding.load(message))
    except encoding.EncodingError as error:
        return Outcome("unsafe", text=f"What came back cannot be judged: {error}")
    except TypeError:
        return _FORGED


_FORGED = Outcome("unsafe", text="What came back is no outcome of a case.")
_TOO_LONG = Outcome("unsafe", text=f"All cases together gave more than the {encoding.LONGEST:,} bytes that are judged.")


def _checked(said) -> Outcome:
    """An outcome from plain values; raises `TypeError` for what is none."""
    kind, values, text, line, mutated = _parts(said, kind=str, values=dict, text=str, line=str, mutated=list)
    if kind not in KINDS or not all(type(name) is str for name in mutated):
        raise TypeError
    return Outcome(kind, values, text[:400], line[:400], tuple(mutated[:20]))


def _parts(said, **kinds: type) -> list:
    """The named values of a dict, each of exactly its kind (`object`: of any); raises `TypeError` for anything else."""
    if type(said) is not dict or not all(kind in (object, type(said.get(name))) for name, kind in kinds.items()):
        raise TypeError
    return [said.get(name) for name in kinds]


# ---- what is asked, and what is written down


def _authored(name: str, entries: Sequence[Mapping], solutions: Path) -> list[Question]:
    authored = load_solutions(solutions)
    if [(each.question.id, each.code) for each in authored] != [(entry["id"], entry["code"]) for entry in entries]:
        raise CourseError(f"{solutions} is not what the set {name} was released from; run `course release` first.")
    return [each.question for each in authored]


def _paper(question: Question, entry: Mapping, seed: int | None) -> Paper:
    public = question.cases()
    hidden = [] if seed is None else question.cases(seed)
    named = [Case(f"hidden {number}: {case.name}", case.inputs) for number, case in enumerate(hidden, 1)]
    cases = (*public, *named)
    sent = tuple(encoding.dump(case.inputs) for case in cases)
    return Paper(question.knowing(cases), entry, cases, len(public), sent, _without_answers(question))


def _without_answers(question: Question) -> bytes:
    """The question as a pickle that holds what `run` refers to and nothing else of what its author knows."""
    import cloudpickle

    nobody = Question(
        **{name: getattr(question, name) for name in ("id", "points", "difficulty", "minutes", "answer", "run")},
        title="",
        hints=("-", "-", "-"),
        expected=_not_here,
        public=_not_here,
    )
    return cloudpickle.dumps(nobody)


def _not_here(*_):
    raise CourseError("Only the judge knows this.")


def _record(paper: Paper, outcomes: list[Outcome], notes: list[str]) -> dict:
    question, public = paper.question, paper.public
    result = judge.grade(question, paper.cases, outcomes, paper.entry)
    shown = judge.grade(question, paper.cases[:public], outcomes[:public], paper.entry, tries=2)
    verdicts = [{"case": v.case, "passed": v.passed, "kind": v.kind, "sentence": v.sentence} for v in result.verdicts]
    return {
        "id": question.id,
        "title": question.title,
        "points": result.points,
        "of": result.of,
        "parts": question.parts,
        "state": _state(result),
        "mistake": result.mistake,
        "diagnosis": result.diagnosis,
        "shown": {"diagnosis": shown.diagnosis, "hint": shown.hint},
        "counted": list(question.counted),
        "public": verdicts[:public],
        "hidden": verdicts[public:],
        "notes": notes,
    }


def _state(result: Result) -> str:
    kinds = {verdict.kind for verdict in result.verdicts}
    if result.passed:
        return "passed"
    return kinds.pop() if len(kinds) == 1 and kinds <= {"untouched", "missing"} else "failed"
