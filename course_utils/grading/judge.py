"""The points for an answer's outcomes, and what to tell its author. No learner's code runs here.

Every value is of an exact built-in type or a tensor (see `values.plain`), so that no method of a learner's can decide.
"""

import builtins
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from course_utils.errors import shorten
from course_utils.grading.compare import compare
from course_utils.grading.fingerprints import diagnose
from course_utils.grading.loading import SetEntry
from course_utils.grading.question import Case, Question, Values
from course_utils.grading.values import conform

OUTCOME_KINDS = {
    "values": "gave wrong values",
    "untouched": "not written",
    "missing": "no answer found",
    "foreign": "not your own code",
    "signature": "could not be called",
    "exception": "stopped with an exception",
    "timeout": "took too long",
    "stuck": "waited forever",
    "died": "ended the process",
    "unsafe": "returned something that cannot be judged",
}
"""The kinds of `Outcome`, each in a few words for a report."""
ENDLESS = ("timeout", "stuck")
"""The kinds that every further case would have too, after as long a time."""
# No hint follows these: they say nothing about the answer's idea.
_WITHOUT_HINT = ("untouched", "missing", *ENDLESS, "died")
_LONGEST_SENTENCE = 600  # characters
# The tries from which on a failure without a diagnosis shows the nudge, the outline and the near-code. A recognized mistake shows
# the nudge at the first try, at most the outline at the second, and then its own hint.
_HINT_FROM_TRY = (2, 4, 6)


@dataclass(frozen=True)
class Outcome:
    """What running an answer on one case gave.

    `kind` is one of `OUTCOME_KINDS`; only `"values"` has `values`. `text` says what happened, `line` is the learner's own line
    where an exception passed, `mutated` names the inputs that were changed.
    """

    kind: str
    values: dict = field(default_factory=dict)
    text: str = ""
    line: str = ""
    mutated: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """One case's verdict; `sentence` says why it failed, and `brief` says so without the message of an exception."""

    case: str
    passed: bool
    sentence: str = ""
    kind: str = "values"
    brief: str = ""


@dataclass(frozen=True)
class QuestionResult:
    """A question's result. `diagnosis` tells a known mistake, `mistake` is its name; `public_only`: hidden cases were not run."""

    question: str
    verdicts: tuple[Verdict, ...]
    points: float
    max_points: int
    diagnosis: str = ""
    hint: str = ""
    public_only: bool = False
    mistake: str = ""

    @property
    def passed(self) -> bool:
        """Whether every case passed."""
        return all(verdict.passed for verdict in self.verdicts)

    @property
    def unanswered(self) -> bool:
        """Whether the answer was never written, or never run."""
        return bool(self.verdicts) and all(verdict.kind in ("untouched", "missing") for verdict in self.verdicts)


@dataclass(frozen=True)
class CaseResult:
    """A case, its expected values, the answer's outcome in the form of these, and the verdict."""

    case: Case
    expected: Values
    outcome: Outcome
    verdict: Verdict


def judge_case(question: Question, case: Case, outcome: Outcome) -> CaseResult:
    """Compare what the answer gave on one case with what is expected."""
    expected = question.expected(case.inputs)
    outcome = replace(outcome, values=conform(expected, outcome.values))
    if outcome.kind == "values":
        sentence = brief = _find_fault(question, expected, outcome)
    else:
        sentence = explain(question, outcome)
        brief = explain(question, _without_words(outcome))
    sentence, brief = (shorten(text, _LONGEST_SENTENCE) for text in (sentence, brief))
    return CaseResult(case, expected, outcome, Verdict(case.name, not sentence, sentence, outcome.kind, brief))


def _find_fault(question: Question, expected: Values, outcome: Outcome) -> str:
    """What is wrong with the values of an outcome, or with the inputs after it; empty if nothing is."""
    difference = compare(expected, outcome.values, question.tolerance)
    sentences = [difference.sentence(question.reveal)] if difference else []
    if outcome.mutated:
        names = ", ".join(f"`{name}`" for name in outcome.mutated)
        sentences.append(f"`{question.answer}` changed its input {names}: work on a copy, or out of place.")
    return " ".join(sentences)


def explain(question: Question, outcome: Outcome) -> str:
    """One sentence on an outcome without values."""
    name = f"`{question.answer}`"
    text = outcome.text
    location = f" at your {outcome.line}" if outcome.line else ""
    if outcome.kind == "exception" and not location:
        return f"The check of {name} stopped with {text}: compare what it takes and what it returns with the statement."
    return {
        "untouched": text or f"{name} is as it was handed out: write your answer in its cell, and run that cell.",
        "missing": f"There is no {name} yet: define it in its cell, keep its name, and run the cell.",
        "foreign": f"{name} uses {text}, which it should replace: write your own.",
        "signature": f"{name} cannot be called as the exercise requires ({text}): compare its arguments with the statement.",
        "exception": f"{name} stopped with {text}{location}.",
        "stuck": f"{name} stopped with {text}{location}.",
        "timeout": f"{name} had not ended after {text} and was stopped{location}. Look for a loop that never ends.",
        "died": f"Python itself ended while {name} ran{': ' + text if text else ''}. "
        "Look for `exit`, and for what takes too much memory.",
        "unsafe": text or f"{name} gave something that cannot be judged.",
    }[outcome.kind]


def judge_answer(
    question: Question,
    cases: Sequence[Case],
    outcomes: Sequence[Outcome],
    entry: SetEntry | None = None,
    *,
    public_only: bool = False,
    tries: int | None = None,
) -> QuestionResult:
    """Judge the outcomes of `cases`: all verdicts, the points, a diagnosis and a hint.

    `entry` is the question's part of the released set, whose fingerprints name mistakes on the public cases. `tries` counts the
    failed checks up to this one; None if no other will follow.
    """
    entry = entry or {}
    results = [judge_case(question, case, outcome) for case, outcome in zip(cases, outcomes, strict=True)]
    verdicts = tuple(result.verdict for result in results)
    failures = [result for result in results if not result.verdict.passed]
    name = _name_mistake(results, entry) if failures else ""
    recognized = _recognize(question, failures)
    if name and recognized and _loses_elsewhere(question, entry, name, results):
        name = ""
    sentence, hint = _choose_advice(question, name, entry, verdicts, tries)
    earned = points(question, [result.expected for result in results], [verdict.passed for verdict in verdicts])
    sentence = shorten(sentence or recognized, _LONGEST_SENTENCE)
    return QuestionResult(question.id, verdicts, earned, question.points, sentence, hint, public_only, name)


def points(question: Question, expected: Sequence[Values], passed: Sequence[bool]) -> float:
    """The points for cases with these `expected` values, of which some `passed`."""
    if question.share:
        return round(question.points * question.share(expected, passed), 2)
    share = sum(passed) / len(passed) if passed else 0.0
    return round(question.points * (share if question.parts else float(share == 1)), 2)


def _without_words(outcome: Outcome) -> Outcome:
    """The outcome without the answer's own words, which could reveal hidden cases."""
    if outcome.kind not in ("exception", "stuck"):
        return outcome
    name = outcome.text.partition(":")[0]
    number = re.match(r"line \d{1,6}", outcome.line)
    is_builtin = isinstance(getattr(builtins, name, None), type)
    return replace(outcome, text=name if is_builtin else "an exception", line=number[0] if number else "")


def _name_mistake(results: Sequence[CaseResult], entry: SetEntry) -> str:
    """The name of the mistake with these fingerprints; of cases with one name, the first is the public one and counts."""
    public = {*entry.get("cases", ()), *chain.from_iterable(m["prints"] for m in entry.get("mistakes", {}).values())}
    by_name = {result.case.name: result for result in reversed(results) if result.case.name in public}
    failed_cases = {name for name, result in by_name.items() if not result.verdict.passed}
    return diagnose(entry, {name: result.outcome for name, result in by_name.items()}, failed_cases) or ""


def _loses_elsewhere(question: Question, entry: SetEntry, name: str, results: Sequence[CaseResult]) -> bool:
    """Whether something else costs all the points, so that mending this mistake alone would gain nothing.

    A test that misses one wrong answer of three, and refuses a right one, has 0 of 3: the mistake of missing would leave 2.
    """
    if not question.share:
        return False
    fails = entry["mistakes"][name]["prints"]  # of a question in parts, the public cases that the mistake fails
    public = [result for result in results if result.case.name in entry.get("cases", (result.case.name,))]
    others = {result.case.name for result in results} - fails.keys()

    def earned(results: Sequence[CaseResult], mended: Collection[str] = ()) -> float:
        passed = [result.verdict.passed or result.case.name in mended for result in results]
        return points(question, [result.expected for result in results], passed)

    return earned(results) == 0 and (earned(results, others) > 0 or earned(public, fails) == 0)


def _choose_advice(
    question: Question, name: str, entry: SetEntry, verdicts: Sequence[Verdict], tries: int | None
) -> tuple[str, str]:
    """The named mistake's sentence and hint, or the hint that this many tries have earned."""
    if name:
        mistake = entry["mistakes"][name]
        number = mistake["hint"] if tries is None else min(mistake["hint"], tries - 1)
        return mistake["sentence"], question.hints[number]
    if all(verdict.passed or verdict.kind in _WITHOUT_HINT for verdict in verdicts):
        return "", ""
    earned = sum((tries or 1) >= threshold for threshold in _HINT_FROM_TRY)
    return "", question.hints[earned - 1] if earned else ""


def _recognize(question: Question, failures: Sequence[CaseResult]) -> str:
    """The sentence of `question.recognize` on the first failed case that it recognizes."""
    for result in failures:
        if question.recognize and result.outcome.kind == "values":
            try:
                sentence = question.recognize(result.expected, result.outcome.values)
            except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
                continue  # values of a form that the question's author did not expect
            if sentence:
                return sentence
    return ""
