"""Runs an answer on a case in this process, within a time limit and on copies of the inputs; whatever happens is an outcome."""

import copy
import inspect
import linecache
import random
import re
import sys
import sysconfig
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

import torch
from torch.utils._pytree import tree_leaves

import course_utils
from course_utils.distributed import RankError
from course_utils.distributed.launch import wait_for_server
from course_utils.errors import shorten
from course_utils.grading.foreign import ForeignError, disable, find_foreign
from course_utils.grading.judge import ENDLESS, Outcome
from course_utils.grading.question import CASE_SECONDS, UNTOUCHED, Case, Question
from course_utils.grading.time_limit import OutOfTime, time_limit
from course_utils.grading.values import UnansweredError, UnfitError, plain, same

_COUNTED = (
    "sends and receives, `broadcast`, `reduce`, `all_reduce`, `reduce_scatter`, `all_gather`, on lists or one tensor"
)
# Of a text and of a line of code in characters.
_LONGEST_TEXT, _LONGEST_LINE = 300, 120
_REFUSED_CALL = re.compile(r"\(\) (got|missing|takes) |object is not callable$")
_SITE_PACKAGES = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
_OUR_PACKAGES = [Path(course_utils.__file__).parents[1] / name for name in ("course_utils", "course_staff")]
_INSTALLED = [Path(folder).resolve() for folder in (*_SITE_PACKAGES, *_OUR_PACKAGES)]


def run_cases(
    question: Question, answer: object, cases: Sequence[Case], seconds: float = CASE_SECONDS, source: str = ""
) -> list[Outcome]:
    """The outcome of `answer` on each of the cases, within `seconds` or the question's own time limit scaled to it; `source` is
    its cell, where known. After an endless loop the remaining cases get its outcome without being run."""
    if foreign := foreign_outcome(question, source):
        return [foreign] * len(cases)
    seconds = question.case_seconds(seconds)
    outcomes: list[Outcome] = []
    with disable(question.replaces):
        for case in cases:
            outcomes.append(run_case(question, answer, case, seconds))
            if outcomes[-1].kind in ENDLESS:
                break
    return outcomes + outcomes[-1:] * (len(cases) - len(outcomes))


def run_case(question: Question, answer: object, case: Case, seconds: float = CASE_SECONDS) -> Outcome:
    """The outcome of `answer` on `case`; all that it should replace is disabled. Random numbers start from the same seed each
    time and are as before afterwards.

    Raises nothing but `KeyboardInterrupt`.
    """
    if answer is ...:
        return Outcome("untouched")
    if source := imported_from(answer):
        return Outcome("foreign", text=source)
    if question.ranks:
        wait_for_server()
    inputs = _copy(case.inputs)
    try:
        with disable(question.replaces), _seed_generators(), time_limit(seconds):
            values = plain(question.run(answer, inputs))
            mutated = tuple(name for name in case.inputs if not same(case.inputs[name], inputs.get(name)))
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too: an answer may raise anything
        return outcome_of(error, seconds)
    return Outcome("values", values, mutated=mutated)


def foreign_outcome(question: Question, source: str) -> Outcome | None:
    """The outcome for an answer whose cell reaches for what it should replace; None for any other."""
    foreign = find_foreign(source, question.replaces) if question.replaces else ""
    return Outcome("foreign", text=shorten(foreign, _LONGEST_TEXT)) if foreign else None


def outcome_of(error: BaseException, seconds: float) -> Outcome:
    """The outcome for an exception that an answer raised."""
    if isinstance(error, RankError):
        return _rank_outcome(error)
    if isinstance(error, ForeignError):
        return Outcome("foreign", text=_message(error))
    line = learners_line(error.__traceback__)
    if isinstance(error, OutOfTime):
        return Outcome("timeout", text=f"{seconds:g} s", line=line)
    if isinstance(error, UnansweredError):
        return Outcome("untouched", text=_message(error))
    if type(error) is NotImplementedError and UNTOUCHED in _message(error):
        return Outcome("untouched")
    if isinstance(error, UnfitError):
        return Outcome("unsafe", text=_message(error))
    if isinstance(error, TypeError) and not line and _REFUSED_CALL.search(_message(error)):
        return Outcome("signature", text=_message(error))
    name = type(error).__name__
    message = _message(error).rstrip(".")
    return Outcome("exception", text=f"{name}: {message}" if message else name, line=line)


def _rank_outcome(error: RankError) -> Outcome:
    """The outcome for an error on a rank, as if the answer had raised it in this process."""
    is_learners = error.place and not error.place[0].startswith("<question")
    line = _line_in_words(*error.place) if is_learners else ""
    if error.kind == "NotImplementedError" and UNTOUCHED in error.text:
        return Outcome("untouched")
    kinds = {"ForeignError": "foreign", "UnfitError": "unsafe", "UnansweredError": "untouched"}
    if error.kind in kinds:
        return Outcome(kinds[error.kind], text=shorten(error.text, _LONGEST_TEXT))
    if error.kind == "UnknownCollectiveError":
        unknown = error.text.partition(";")[0].rstrip(".")
        return Outcome("unsafe", text=f"{unknown}. Use one of those that can be: {_COUNTED}.")
    if error.kind == "TypeError" and not line:
        return Outcome("signature", text=shorten(error.text, _LONGEST_TEXT))
    if not error.kind:
        return Outcome("died", text=f"rank {error.rank} {error.text}")
    text = f"{error.kind}: {error.text}" if error.text else error.kind
    kind = "stuck" if error.kind == "TimeoutError" else "exception"
    return Outcome(kind, text=f"{shorten(text, _LONGEST_TEXT)} (on rank {error.rank})", line=line)


def learners_line(trace: TracebackType | None) -> str:
    """The notebook's deepest line in the trace: ``'line 3: `return m / v`'``; empty if it has none."""
    lines = [
        (frame.f_code.co_filename, number)
        for frame, number in traceback.walk_tb(trace)
        if frame.f_globals.get("__name__") == "__main__" and not _is_installed(frame.f_code.co_filename)
    ]
    return _line_in_words(*lines[-1]) if lines else ""


def _line_in_words(file: str, number: int) -> str:
    source = linecache.getline(file, number).strip()
    if not source or "`" in source:  # code between back-ticks cannot contain one
        return f"line {number}"
    return f"line {number}: `{shorten(source, _LONGEST_LINE)}`"


def is_untouched(source: str, stub: str) -> bool:
    """Whether a cell's `source` is still the `stub` that was handed out, spaces and blank lines aside."""
    return source.split() == stub.split()


def imported_from(answer: object) -> str:
    """The installed module that a function or class comes from; empty for what the notebook defines itself."""
    if not isinstance(answer, type) and not inspect.isroutine(answer):
        return ""
    name = getattr(answer, "__module__", None)
    module = sys.modules.get(name) if isinstance(name, str) else None
    file = getattr(module, "__file__", None)
    return f"{name}" if name != "__main__" and isinstance(file, str) and _is_installed(file) else ""


def _copy(inputs: dict) -> dict:
    """A deep copy that clones plain tensors which share no memory, because torch's own deep copy takes far longer."""
    tensors = [t for t in tree_leaves(inputs) if isinstance(t, torch.Tensor) and t.layout is torch.strided]
    uses = Counter(t.untyped_storage().data_ptr() for t in tensors)
    leaves = [t for t in tensors if type(t) is torch.Tensor and not t.requires_grad and t.grad is None]
    unshared = [t for t in leaves if uses[t.untyped_storage().data_ptr()] == 1]
    unsliced = [t for t in unshared if t.is_contiguous() and t.untyped_storage().nbytes() == t.nbytes]
    return copy.deepcopy(inputs, {id(t): t.clone() for t in unsliced})


@contextmanager
def _seed_generators() -> Iterator[None]:
    """Seeds `random` and torch's CPU generator (`torch.manual_seed` would look for every kind of device), and restores both."""
    python_state = random.getstate()
    torch_state = torch.get_rng_state()
    random.seed(0)
    torch.default_generator.manual_seed(0)
    try:
        yield
    finally:
        random.setstate(python_state)
        torch.set_rng_state(torch_state)


def _is_installed(file: str) -> bool:
    return not file.startswith("<") and any(Path(file).resolve().is_relative_to(folder) for folder in _INSTALLED)


def _message(error: BaseException) -> str:
    """The exception's message in one line, cut to a readable length; empty if it has none, or raises when asked."""
    with suppress(Exception):
        return shorten(" ".join(str(error).split()), _LONGEST_TEXT)
    return ""
