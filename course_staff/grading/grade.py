"""Grading many notebooks: learners' code runs elsewhere and gives values; here alone is what is right.

A question of a submission is independent of everything else: it has a process of its own, gets its cases one by one, the public
ones first, and its verdict depends neither on the order of the files nor on the other questions.
"""

import hashlib
import os
import pickle
import queue
import re
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from course_staff.grading import encoding, isolate
from course_staff.grading.earlier import Submitted
from course_staff.grading.sandbox import SAFE, Lane, NotStartedError, SandboxError
from course_staff.grading.source import load_solutions
from course_staff.grading.submission import (
    Answer,
    Parsed,
    UnreadableError,
    answer_to,
    content_of,
    notes_on_set,
    read_submission,
)
from course_utils.errors import CourseError
from course_utils.grading import judge
from course_utils.grading.judge import KINDS, Outcome
from course_utils.grading.question import Case, Question
from course_utils.grading.released import SETS, load_set, question_from
from course_utils.grading.run import SECONDS

CELL_SECONDS, CELLS_SECONDS = 20.0, 60.0
"""Time limit of one cell that is no answer, and of all a question's cells together."""
_CASES = 10  # times the limit of one case is what all cases together may take
_PARSE_SECONDS = 10.0  # for all cells of a submission
_GRACE = 5.0  # seconds that a process gets to say itself that its time was up
_VERSION = 3  # of a student's record
_NOTEBOOK = re.compile(r"\.ipynb(\.txt|\.json)?$", re.IGNORECASE)


@dataclass(frozen=True)
class Paper:
    """One question ready to be graded. `cases` are the public ones, `public` in number, then the hidden ones; `inputs` are theirs
    and `asked` the question as a learner's process may know it, both pickled."""

    question: Question
    entry: Mapping
    cases: tuple[Case, ...]
    public: int
    inputs: tuple[bytes, ...]
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

    @property
    def points(self) -> int:
        """What the whole set is worth."""
        return sum(paper.question.points for paper in self.papers)


def prepare(name: str, solutions: Path | None = None, seed: int | None = None, seconds: float = SECONDS) -> Papers:
    """The set called `name`; with the notebook `solutions` also its hidden cases, drawn from `seed`.

    Raises `CourseError` for an unknown set, and where the solutions are not those that the set was released from.
    """
    entries = load_set(name)["questions"]
    if solutions:
        authored = load_solutions(solutions)
        if [(each.question.id, each.code) for each in authored] != [(entry["id"], entry["code"]) for entry in entries]:
            raise CourseError(f"{solutions} is not what the set {name} was released from; run `course release` first.")
        questions = [each.question for each in authored]
    else:
        questions, seed = list(map(question_from, entries)), None
    texts = [(SETS / f"{name}.json").read_text("utf-8"), solutions and Path(solutions).read_text("utf-8")]
    fingerprint = hashlib.sha256(repr((_VERSION, *texts, seed, seconds)).encode()).hexdigest()
    papers = (_paper(question, entry, seed) for question, entry in zip(questions, entries, strict=True))
    return Papers(name, tuple(papers), fingerprint, seconds, seed)


def _paper(question: Question, entry: Mapping, seed: int | None) -> Paper:
    import cloudpickle

    public = question.cases()
    hidden = [] if seed is None else question.cases(seed)
    named = [Case(f"hidden {number}: {case.name}", case.inputs) for number, case in enumerate(hidden, 1)]
    cases = (*public, *named)
    asked = Question(  # only what `run` refers to, and nothing else of what its author knows
        **{name: getattr(question, name) for name in ("id", "points", "difficulty", "minutes", "answer", "run")},
        title="",
        hints=("-", "-", "-"),
        expected=_refuse,
        public=_refuse,
    )
    inputs = tuple(cloudpickle.dumps(case.inputs) for case in cases)
    return Paper(question.knowing(cases), entry, cases, len(public), inputs, cloudpickle.dumps(asked))


def _refuse(*_):
    raise CourseError("Only the judge knows this.")


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


def identify(path: Path, papers: Papers, kind: str) -> Submitted:
    """The file at `path` with what its record is valid for: the same content, graded by the same questions, seed and limits, and
    as safely as `kind` is."""
    try:
        content = content_of(path)
    except UnreadableError as error:
        content = str(error).encode()
    digest = hashlib.sha256(content).hexdigest()
    key = hashlib.sha256(f"{papers.fingerprint} {kind in SAFE} {digest}".encode()).hexdigest()
    return Submitted(path, digest, key)


def grade_all(
    submissions: Mapping[str, Path],
    papers: Papers,
    kind: str,
    jobs: int,
    done: Callable[[str, dict], None],
    private: Iterable[Path] = (),
) -> None:
    """Grade in `jobs` lanes of the sandbox's `kind` and call `done(student, record)` as each is finished, in this thread.

    No submission sees another, nor the folders that are `private`. Whatever happens to one submission, the others
    are graded; when this is interrupted nothing is left running.
    """
    hidden = {*private, *(path.absolute().parent for path in submissions.values())}
    lanes = [Lane(kind, hidden) for _ in range(min(jobs, len(submissions)))]
    free: queue.SimpleQueue = queue.SimpleQueue()
    for lane in lanes:
        free.put(lane)

    def grade(path: Path) -> dict:
        lane = free.get()
        try:
            return grade_submission(path, papers, lane)
        except Exception as error:  # a fault of the grader itself is written down, and costs no other submission
            why = f"Not graded, because the grader itself failed ({type(error).__name__}: {error}); please report this."
            return {"points": 0, "of": papers.points, "notes": [why], "questions": [], "failed": True}
        finally:
            free.put(lane)

    with ThreadPoolExecutor(len(lanes)) as pool:
        students = {pool.submit(grade, path): student for student, path in submissions.items()}
        try:
            for graded in as_completed(students):
                done(students[graded], graded.result())
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for lane in lanes:
                lane.stop()
    for lane in lanes:
        lane.close()


def grade_submission(path: Path, papers: Papers, lane: Lane) -> dict:
    """The record of one submission, as JSON holds it: points, notes, and for each question its verdicts and diagnosis."""
    submission = read_submission(path, lambda sources: _parse(sources, lane))
    questions = []
    for paper in papers.papers:
        answer = answer_to(submission, paper.entry)
        if answer.state == "written":
            outcomes, notes = _run(answer, paper, papers.seconds, lane)
        else:
            outcomes, notes = [Outcome(answer.state)] * len(paper.cases), []
        try:
            record = _record(paper, outcomes, [*answer.notes, *notes])
        except Exception as error:  # a fault of the judge costs this question's points, and no other's
            nothing = [Outcome("unsafe", text=_NOT_JUDGED.format(type(error).__name__))] * len(paper.cases)
            record = _record(paper, nothing, list(answer.notes))
        questions.append(record)
    ids = [paper.question.id for paper in papers.papers]
    return {
        "points": sum(question["points"] for question in questions),
        "of": papers.points,
        "notes": [*submission.notes, *notes_on_set(submission, papers.name, ids)],
        "questions": questions,
    }


def _record(paper: Paper, outcomes: list[Outcome], notes: list[str]) -> dict:
    question, public = paper.question, paper.public
    result = judge.grade(question, paper.cases, outcomes, paper.entry)
    shown = judge.grade(question, paper.cases[:public], outcomes[:public], paper.entry, tries=2)
    verdicts = [{"case": v.case, "passed": v.passed, "kind": v.kind, "sentence": v.sentence} for v in result.verdicts]
    kinds = {verdict.kind for verdict in result.verdicts}
    nothing = next((kind for kind in ("untouched", "missing") if kinds == {kind}), "failed")
    return {
        "id": question.id,
        "title": question.title,
        "points": result.points,
        "of": result.of,
        "parts": question.parts,
        "state": "passed" if result.passed else nothing,
        "mistake": result.mistake,
        "diagnosis": result.diagnosis,
        "shown": {"diagnosis": shown.diagnosis, "hint": shown.hint},
        "counted": list(question.counted),
        "public": verdicts[:public],
        "hidden": verdicts[public:],
        "notes": notes,
    }


# ---- one answer in a process of its own, which may say anything


def _parse(sources: list[str], lane: Lane) -> list[Parsed]:
    """What each cell is, said by a process of the sandbox; nothing is known of cells that keep the parser busy too long."""
    try:
        with lane.question() as talk, talk.within(_PARSE_SECONDS):
            said = encoding.load(talk.ask(pickle.dumps({"sources": sources, "limits": isolate.LIMITS})))
        return [
            Parsed(is_check is True, frozenset(map(str, names)))
            for (is_check, names), _ in zip(said, sources, strict=True)
        ]
    except NotStartedError:
        raise
    except (SandboxError, encoding.TornError, encoding.EncodingError, TypeError, ValueError):
        return [Parsed()] * len(sources)


def _run(answer: Answer, paper: Paper, seconds: float, lane: Lane) -> tuple[list[Outcome], list[str]]:
    """What the cases gave, and notes. A sandbox that breaks is replaced once; what breaks it twice is the answer's own doing."""
    try:
        return _converse(answer, paper, seconds, lane)
    except SandboxError:
        pass
    try:
        return _converse(answer, paper, seconds, lane)
    except NotStartedError:
        raise
    except SandboxError as error:
        return [Outcome("died", text=str(error))] * len(paper.cases), []


def _converse(answer: Answer, paper: Paper, seconds: float, lane: Lane) -> tuple[list[Outcome], list[str]]:
    cells = [[cell.number, cell.source, is_answer] for cell, is_answer in answer.cells]
    job = {"cells": cells, "seconds": seconds, "cell_seconds": CELL_SECONDS, "limits": isolate.LIMITS}
    outcomes: list[Outcome] = []
    notes: list[str] = []
    limit, bytes_left = CELLS_SECONDS, encoding.LONGEST
    with lane.question() as talk:
        try:
            with talk.within(limit):
                no_answer, notes = _read_opening(talk.ask(pickle.dumps(job), paper.asked))
            if no_answer:
                return [no_answer] * len(paper.cases), notes
            limit, end = seconds, time.monotonic() + _CASES * seconds
            for inputs in paper.inputs:
                with talk.within(min(seconds + _GRACE, end - time.monotonic())):
                    message = talk.ask(inputs)
                bytes_left -= len(message)
                outcomes.append(_read_outcome(message) if bytes_left >= 0 else _TOO_LONG)
                if outcomes[-1] is _TOO_LONG or outcomes[-1].kind in judge.ENDLESS:
                    break  # nobody waits for the same endless loop a dozen times
        except encoding.TornError:
            outcomes.append(Outcome("timeout", text=f"{limit:g} s") if talk.timed_out else Outcome("died"))
    if lane.excess and outcomes[-1].kind == "died":
        outcomes[-1] = Outcome("died", text=lane.excess)
    return outcomes + outcomes[-1:] * (len(paper.cases) - len(outcomes)), notes


_NOT_JUDGED = "The judge itself stopped on what this answer gave ({}): please report this, with the notebook."
_FORGED = Outcome("unsafe", text="What came back is no outcome of a case.")
_TOO_LONG = Outcome("unsafe", text=f"All cases together gave more than the {encoding.LONGEST:,} bytes that are judged.")


def _read_opening(message: bytes) -> tuple[Outcome | None, list[str]]:
    """What a process says after its cells have run: an outcome where there is no answer, and what stopped which cell."""
    try:
        match encoding.load(message):
            case {"outcome": said, "notes": list(notes)}:
                return None if said is None else _outcome(said), [_note(note) for note in notes[:20]]
    except encoding.EncodingError:
        pass
    return _FORGED, []


def _note(note) -> str:
    match note:
        case [int(number), str(text)]:
            return f"Cell {number} stopped with {text[:400]}."
    raise encoding.EncodingError("This is no note.")


def _read_outcome(message: bytes) -> Outcome:
    try:
        return _outcome(encoding.load(message))
    except encoding.EncodingError as error:
        return Outcome("unsafe", text=f"What came back cannot be judged: {error}")


def _outcome(said) -> Outcome:
    """An outcome from plain values."""
    match said:
        case {"kind": str(kind), "values": dict(values), "text": str(text), "line": str(line), "mutated": list(names)}:
            if kind in KINDS and all(type(name) is str for name in names):
                return Outcome(kind, values, text[:400], line[:400], tuple(names[:20]))
    return _FORGED
