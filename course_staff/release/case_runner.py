"""Tests a question with its author's own answers: the solution, the stub, every known mistake, every right variant."""

import warnings
from collections.abc import Iterator
from functools import cache

from course_staff.release.source import AuthoredQuestion, apply_mistake
from course_utils.grading.fingerprints import outcome_fingerprint
from course_utils.grading.judge import Outcome, QuestionResult, judge_answer
from course_utils.grading.loading import SetEntry
from course_utils.grading.question import CASE_SECONDS, Case
from course_utils.grading.run import outcome_of, run_cases


def outcomes(
    authored: AuthoredQuestion, source: str, cases: list[Case], seconds: float = CASE_SECONDS
) -> list[Outcome]:
    """The outcomes of the answer's cell `source` on `cases`, in this process: for sources that are trusted."""
    question = authored.question
    names: dict = {"__name__": "__main__"}
    with warnings.catch_warnings():
        # A known mistake may well be worth a warning, which tells its author nothing new.
        warnings.simplefilter("ignore")
        try:
            exec(compile(authored.preamble, "<cells above>", "exec"), names)
            exec(compile(source, f"<answer {question.id}>", "exec"), names)
        except Exception as error:
            return [outcome_of(error, seconds)] * len(cases)
        if question.answer not in names:
            return [Outcome("missing")] * len(cases)
        return run_cases(question, names[question.answer], cases, seconds, source)


class CaseRunner:
    """Runs each answer's cell once on the `cases` of a question, whose expected values are computed once."""

    def __init__(self, authored: AuthoredQuestion, cases: list[Case]):
        self._authored = authored
        self._cases = cases
        self._question = authored.question.with_expected_for(cases)
        self._outcomes = cache(lambda source: outcomes(authored, source, cases))

    def result(self, source: str, entry: SetEntry) -> QuestionResult:
        """How the answer's cell does on all cases; with a released `entry` also which of its mistakes it makes."""
        return judge_answer(self._question, self._cases, self._outcomes(source), entry)

    def fingerprints(self, source: str) -> dict[str, dict]:
        """The fingerprints of an answer's cell, by case."""
        pairs = zip(self._cases, self._outcomes(source), strict=True)
        return {case.name: outcome_fingerprint(outcome) for case, outcome in pairs}

    def failed_cases(self, source: str) -> list[str]:
        """The names of the cases that an answer's cell fails."""
        return [verdict.case for verdict in self.result(source, {}).verdicts if not verdict.passed]

    def faults(self, entry: SetEntry) -> Iterator[str]:
        """What keeps the question from being handed out, a sentence each: a solution that fails, a mistake that passes or goes
        by another's name, a right variant that fails, a stub that earns points.
        """
        authored = self._authored
        question = self._question
        right = {"the solution": authored.solution, **{f"the variant {v.name!r}": v.source for v in question.variants}}
        for who, source in right.items():
            failure = next((verdict for verdict in self.result(source, entry).verdicts if not verdict.passed), None)
            if failure:
                yield f"{who} fails on the case {failure.case!r}: {failure.sentence}"
        for mistake in question.mistakes:
            result = self.result(apply_mistake(authored.solution, mistake), entry)
            if result.passed:
                yield f"the mistake {mistake.name!r} passes; add a case that it fails."
            elif result.mistake != mistake.name:
                diagnosis = result.mistake or "none of them"
                yield f"the mistake {mistake.name!r} is taken for {diagnosis}; add a case that distinguishes them."
        if self.result(authored.stub, entry).points:
            yield "the stub earns points; make it do less."
