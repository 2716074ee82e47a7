"""An exercise set made ready to be graded: its questions with their cases, and the inputs of these, pickled."""

import hashlib
import io
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from course_staff.grading import encoding
from course_staff.notebooks.files import read_notebook
from course_staff.release import source
from course_utils.errors import CourseError
from course_utils.grading import judge
from course_utils.grading.loading import SetEntry, load_set, question_from
from course_utils.grading.question import CASE_SECONDS, Case, Question


@dataclass(frozen=True)
class PreparedCases:
    """Cases of a question, and the inputs of each, pickled."""

    cases: tuple[Case, ...]
    inputs: tuple[bytes, ...]


@dataclass(frozen=True)
class PreparedQuestion:
    """One question ready to be graded. `pickled` is the question without its answers, for a learner's process."""

    question: Question
    entry: SetEntry
    public: PreparedCases
    hidden: PreparedCases
    pickled: bytes


@dataclass(frozen=True)
class PreparedSet:
    """A set ready to be graded."""

    name: str
    questions: tuple[PreparedQuestion, ...]
    digest: str  # of the questions, the solutions, the seed and the code that grades
    seconds: float = CASE_SECONDS  # the limit of a case
    seed: int | None = None  # None if only public cases are run

    @property
    def points(self) -> int:
        """What the whole set is worth."""
        return sum(prepared.question.points for prepared in self.questions)


def prepare(
    name: str, solutions: Path | None = None, seed: int | None = None, seconds: float = CASE_SECONDS
) -> PreparedSet:
    """The set called `name`; with the notebook `solutions` also its hidden cases, drawn from `seed`.

    Raises `CourseError` for an unknown set, and if the solutions are not those that the set was released from.
    """
    entries = load_set(name)["questions"]
    if solutions:
        all_authored = source.load_solutions(solutions)
        codes = {authored.question.id: authored.code for authored in all_authored}
        if [*codes.items()] != [(entry["id"], entry["code"]) for entry in entries]:
            raise CourseError(f"{solutions} is not what the set {name} was released from; run `course release` first.")
        questions = [authored.question for authored in all_authored]
    else:
        questions = list(map(question_from, entries))
        seed = None
    digest = _digest(entries, solutions, seed, seconds)
    pairs = zip(questions, entries, strict=True)
    prepared = tuple(_prepare_question(question, entry, seed) for question, entry in pairs)
    return PreparedSet(name, prepared, digest, seconds, seed)


def _digest(entries: list[SetEntry], solutions: Path | None, seed: int | None, seconds: float) -> str:
    """A hash of all that a grade depends on besides the submission."""
    # Text cells count for nothing here: a better sentence in a question is no reason to grade a class again.
    cells = read_notebook(solutions).cells if solutions else []
    texts = [json.dumps(entries, sort_keys=True), [cell["source"] for cell in cells if cell["cell_type"] == "code"]]
    rooms = [Path(module.__file__).parent for module in (encoding, source, judge)]
    grading = [path.read_bytes() for room in rooms for path in sorted(room.glob("*.py"))]
    return hashlib.sha256(repr((grading, *texts, seed, seconds)).encode()).hexdigest()


def _prepare_question(question: Question, entry: SetEntry, seed: int | None) -> PreparedQuestion:
    import cloudpickle

    public = question.cases()
    hidden_cases = [] if seed is None else question.cases(seed)
    hidden = [Case(f"hidden {number}: {case.name}", case.inputs) for number, case in enumerate(hidden_cases, 1)]
    parts = [PreparedCases(tuple(cases), tuple(_pickle(case.inputs) for case in cases)) for cases in (public, hidden)]
    pickled = cloudpickle.dumps(question.for_learners())
    return PreparedQuestion(question.with_expected_for([*public, *hidden]), entry, *parts, pickled)


def _pickle(inputs: dict) -> bytes:
    """Plain tensors in the grader's own form: torch packs each into a file, and unpacking takes longer than the case."""
    import cloudpickle
    import torch

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, value: object) -> object:
            if type(value) is torch.Tensor and value.is_contiguous() and not value.requires_grad:
                with suppress(encoding.EncodingError):
                    return encoding.load, (encoding.dump(value),)
            return super().reducer_override(value)

    buffer = io.BytesIO()
    Pickler(buffer).dump(inputs)
    return buffer.getvalue()
