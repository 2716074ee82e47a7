"""What an answer's outcomes are worth, and what to tell its author. Only values come here; no learner's code runs.

Nothing of a learner's decides: every value is of an exact built-in type or a tensor (see `values.plain`).
"""

import builtins
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from course_utils.errors import shorten
from course_utils.grading.compare import Difference, compare
from course_utils.grading.fingerprints import diagnose
from course_utils.grading.question import Case, Question, Values
from course_utils.grading.values import conform

ENDINGS = {
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
"""How a case may end, each in a few words for those who do not see it."""
ENDLESS = ("timeout", "stuck")
"""Kinds that the next case would end in too, after as long a time."""
_UNENDED = (*ENDLESS, "died")
"""Kinds that say nothing about the idea of an answer, so that no hint goes with them."""
_LONGEST_SENTENCE = 600  # characters
_HINT_FROM_TRY = (2, 4, 6)
"""A failure without a diagnosis shows the nudge from the second try on, the outline from the fourth, near-code from the sixth.

A mistake that is recognized comes with a hint from the first try on, and not before the second and third with a further one.
"""


@dataclass(frozen=True)
class Outcome:
    """What running an answer on one case gave.

    `kind` is one of `ENDINGS`; only `"values"` has `values`. `text` says what happened, `line` is the learner's own line where
    an exception passed, `mutated` names the inputs that were changed.
    """

    kind: str
    values: dict = field(default_factory=dict)
    text: str = ""
    line: str = ""
    mutated: tuple[str, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """One case's verdict; `sentence` says why it failed and is empty where it passed.

    `brief` is the sentence without what an exception of the answer's own says: its type and its line alone.
    """

    case: str
    passed: bool
    sentence: str = ""
    difference: Difference | None = None
    kind: str = "values"
    brief: str = ""


@dataclass(frozen=True)
class Result:
    """One question's result. `points` of `of` were reached; `diagnosis` names the mistake, where it is known.

    `mistake` is its name in the set. `public_only`: hidden cases exist and were not run.
    """

    question: str
    verdicts: tuple[Verdict, ...]
    points: float
    of: int
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
    """A case, what is expected of it, what the answer gave, in the form of what is expected, and the verdict."""

    case: Case
    expected: Values
    outcome: Outcome
    verdict: Verdict


def judge_case(question: Question, case: Case, outcome: Outcome) -> CaseResult:
    """Compare what the answer gave on one case with what is expected."""
    expected = question.expected(case.inputs)
    outcome = replace(outcome, values=conform(expected, outcome.values))
    if outcome.kind != "values":
        versions = outcome, _without_words(outcome)
        sentences = [shorten(explain(question, version), _LONGEST_SENTENCE) for version in versions]
        verdict = Verdict(case.name, False, sentences[0], kind=outcome.kind, brief=sentences[1])
        return CaseResult(case, expected, outcome, verdict)
    difference = compare(expected, outcome.values, question.tolerance)
    sentences = [difference.sentence(question.reveal)] if difference else []
    if outcome.mutated:
        names = ", ".join(f"`{name}`" for name in outcome.mutated)
        sentences.append(f"`{question.answer}` changed its input {names}: work on a copy, or out of place.")
    sentence = shorten(" ".join(sentences), _LONGEST_SENTENCE)
    verdict = Verdict(case.name, not sentences, sentence, difference, brief=sentence)
    return CaseResult(case, expected, outcome, verdict)


def explain(question: Question, outcome: Outcome) -> str:
    """One sentence on an outcome without values."""
    name, text = f"`{question.answer}`", outcome.text
    where = f" at your {outcome.line}" if outcome.line else ""
    if outcome.kind == "exception" and not where:
        return f"The check of {name} stopped with {text}: compare what it takes and what it returns with the statement."
    return {
        "untouched": text or f"{name} is as it was handed out: write your answer in its cell, and run that cell.",
        "missing": f"There is no {name} yet: define it in its cell, keep its name, and run the cell.",
        "foreign": f"{name} uses {text}, which it should replace: write your own.",
        "signature": f"{name} cannot be called as the exercise requires ({text}): compare its arguments with the statement.",
        "exception": f"{name} stopped with {text}{where}.",
        "stuck": f"{name} stopped with {text}{where}.",
        "timeout": f"{name} had not ended after {text} and was stopped{where}. Look for a loop that never ends.",
        "died": f"Python itself ended while {name} ran{': ' + text if text else ''}. "
        "Look for `exit`, and for what takes too much memory.",
        "unsafe": text or f"{name} gave something that cannot be judged.",
    }[outcome.kind]


def judge_answer(
    question: Question,
    cases: Sequence[Case],
    outcomes: Sequence[Outcome],
    entry: Mapping | None = None,
    *,
    public_only: bool = False,
    tries: int | None = None,
) -> Result:
    """All verdicts together, the diagnosis and a hint.

    `cases` and `outcomes` go together; `entry` is the question's part of the released set, whose fingerprints name mistakes
    on the public cases. `tries` counts the failed checks up to this one; None if no other will follow.
    """
    results = [judge_case(question, case, outcome) for case, outcome in zip(cases, outcomes, strict=True)]
    verdicts = tuple(result.verdict for result in results)
    failed = [result for result in results if not result.verdict.passed]
    name = _name_mistake(results, entry or {}) if failed else ""
    recognized = _recognize(question, failed)
    if name and recognized and _loses_elsewhere(question, entry, name, results):
        name = ""
    sentence, hint = _choose_advice(question, name, entry or {}, verdicts, tries)
    reached = points(question, [result.expected for result in results], [verdict.passed for verdict in verdicts])
    sentence = shorten(sentence or recognized, _LONGEST_SENTENCE)
    return Result(question.id, verdicts, reached, question.points, sentence, hint, public_only, name)


def points(question: Question, expected: Sequence[Values], passed: Sequence[bool]) -> float:
    """What the cases are worth, of which these passed; `expected` is what is right on them."""
    if question.share:
        return round(question.points * question.share(expected, passed), 2)
    share = sum(passed) / len(passed) if passed else 0.0
    return round(question.points * (share if question.parts else float(share == 1)), 2)


def _without_words(outcome: Outcome) -> Outcome:
    """The outcome without what the answer says in its own words, by which it could tell anything."""
    if outcome.kind not in ("exception", "stuck"):
        return outcome
    name = outcome.text.partition(":")[0]
    number = re.match(r"line \d{1,6}", outcome.line)
    is_builtin = isinstance(getattr(builtins, name, None), type)
    return replace(outcome, text=name if is_builtin else "an exception", line=number[0] if number else "")


def _name_mistake(results: Sequence[CaseResult], entry: Mapping) -> str:
    """The mistake by its fingerprints; where a hidden case has a public one's name, the public one comes first and counts."""
    public = {
        *entry.get("cases", ()),
        *(name for mistake in entry.get("mistakes", {}).values() for name in mistake["prints"]),
    }
    outcome_of, failed = {}, set()
    for result in results:
        if result.case.name in public and result.case.name not in outcome_of:
            outcome_of[result.case.name] = result.outcome
            if not result.verdict.passed:
                failed.add(result.case.name)
    return diagnose(entry, outcome_of, failed) or ""


def _loses_elsewhere(question: Question, entry: Mapping, name: str, results: Sequence[CaseResult]) -> bool:
    """Whether something else costs all the points, so that mending this mistake alone would gain nothing.

    A test that misses one wrong answer of three, and refuses a right one, has 0 of 3: the mistake of missing would leave 2.
    """
    if not question.share:
        return False
    fails = entry["mistakes"][name]["prints"]  # of a question in parts, the public cases that the mistake fails
    expected = [result.expected for result in results]
    public = [result for result in results if result.case.name in entry.get("cases", (result.case.name,))]
    earned = points(question, expected, [result.verdict.passed for result in results])
    others_mended = [result.verdict.passed or result.case.name not in fails for result in results]
    mended = [result.verdict.passed or result.case.name in fails for result in public]
    without_it = points(question, [result.expected for result in public], mended)
    return earned == 0 and (points(question, expected, others_mended) > 0 or without_it == 0)


def _choose_advice(
    question: Question, name: str, entry: Mapping, verdicts: Sequence[Verdict], tries: int | None
) -> tuple[str, str]:
    """The named mistake's sentence and hint, or the hint that this many tries have earned."""
    if name:
        mistake = entry["mistakes"][name]
        number = mistake["hint"] if tries is None else min(mistake["hint"], tries - 1)
        return mistake["sentence"], question.hints[number]
    if all(v.passed or v.kind in ("untouched", "missing", *_UNENDED) for v in verdicts):
        return "", ""
    earned = sum((tries or 1) >= needed for needed in _HINT_FROM_TRY)
    return "", question.hints[earned - 1] if earned else ""


def _recognize(question: Question, failed: Sequence[CaseResult]) -> str:
    """What `question.recognize` says of the first failed case that it knows."""
    for result in failed:
        if question.recognize and result.outcome.kind == "values":
            try:
                sentence = question.recognize(result.expected, result.outcome.values)
            except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
                continue  # values of another form than the question's own: nothing that its author knows
            if sentence:
                return sentence
    return ""
