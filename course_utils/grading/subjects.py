"""Right and wrong answers for a learner's test: each is the source of a cell, run in the same process as the test.

A case holds one source, without comments and docstrings; only the judge knows whether it is right.
"""

import ast
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import torch

from course_utils.errors import CourseError
from course_utils.grading.question import Case, Question, Values
from course_utils.grading.values import UnfitError, plain

ACCEPTED, REFUSED, VERDICT = "accepted", "refused", "verdict"
_FILE = "<the answer under test>"


@dataclass(frozen=True)
class Zoo:
    """The answers in a test's hidden cases: sources by name, `right` ones and `wrong` ones.

    `of` is the id of another question in the same notebook: its solution and variants are right ones too, and its mistakes wrong
    ones, except for the names in `without`, which a test need not find.
    """

    of: str = ""
    without: tuple[str, ...] = ()
    right: Mapping[str, str] = field(default_factory=dict)
    wrong: Mapping[str, str] = field(default_factory=dict)


def cases(right: Mapping[str, str], wrong: Mapping[str, str]) -> list[Case]:
    """A case for each source by name; the input is `source`."""
    sources = {f"right: {name}": source for name, source in right.items()}
    sources |= {f"wrong: {name}": source for name, source in wrong.items()}
    return [Case(name, {"source": _strip_comments(source)}) for name, source in sources.items()]


def verdicts(right: Mapping[str, str], wrong: Mapping[str, str]) -> dict[str, Values]:
    """The expected values by source; raises `CourseError` if a source is right and wrong."""
    accepted = {_strip_comments(source): {VERDICT: ACCEPTED} for source in right.values()}
    refused = {_strip_comments(source): {VERDICT: REFUSED} for source in wrong.values()}
    if accepted.keys() & refused.keys():
        raise CourseError("An answer of the zoo is said to be right and to be wrong; leave out one of the two.")
    return accepted | refused


def with_subjects(question: Question, right: Mapping[str, str], wrong: Mapping[str, str]) -> Question:
    """The question with these answers as hidden cases, in an order drawn from the seed."""
    right_verdicts = verdicts(right, wrong)

    def hidden(random: Random) -> list[Case]:
        subjects = cases(right, wrong)
        return random.sample(subjects, len(subjects))

    def expected(inputs: dict) -> Values:
        return right_verdicts.get(inputs["source"]) or question.expected(inputs)

    return replace(question, hidden=hidden, expected=expected)


def verdict_of(test: Callable, subject: object) -> str:
    """The verdict of `test(subject)`: a failed assertion or False refuses, True or None accepts.

    Any other exception propagates; raises `UnfitError` for any other result.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # those of the subject, which the test's author did not write
            verdict = test(subject)
    except AssertionError:
        return REFUSED
    verdict = plain(verdict.item() if type(verdict) is torch.Tensor and verdict.numel() == 1 else verdict)
    if verdict not in (True, False, None) or type(verdict) not in (bool, type(None)):
        raise UnfitError(
            f"The test returned {type(verdict).__name__}: give True or False, or use `assert` and return nothing."
        )
    return REFUSED if verdict is False else ACCEPTED


def define(source: str, name: str) -> object:
    """The object that the cell `source` defines as `name`."""
    names: dict = {"__name__": "subject"}
    exec(compile(source, _FILE, "exec"), names)
    return names[name]


def share_killed(expected: Sequence[Values], passed: Sequence[bool]) -> float:
    """The share of wrong answers that are refused; 0 where a right one is refused too."""
    judged = [(values[VERDICT], is_right) for values, is_right in zip(expected, passed, strict=True)]
    killed = [is_right for verdict, is_right in judged if verdict == REFUSED]
    spared = all(is_right for verdict, is_right in judged if verdict == ACCEPTED)
    return sum(killed) / len(killed) if spared and killed else 0.0


def _strip_comments(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)
