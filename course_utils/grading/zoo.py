"""A question held against its author's own answers: the solution, the stub, every known mistake, every right variant."""

from collections.abc import Iterator

from course_utils.grading.judge import Outcome, Result, grade
from course_utils.grading.prints import outcome_print
from course_utils.grading.question import Case
from course_utils.grading.run import outcome_of, run_case
from course_utils.grading.source import Authored, mistaken

SECONDS = 20.0
"""The time limit of one case, and of the cell that defines the answer."""


def outcomes(authored: Authored, source: str, cases: list[Case], seconds: float = SECONDS) -> list[Outcome]:
    """What the answer's cell `source` gives on each of `cases`, in this process: for sources that are trusted."""
    question = authored.question
    names: dict = {"__name__": "__main__"}
    try:
        exec(compile(authored.preamble, "<cells above>", "exec"), names)
        exec(compile(source, f"<answer {question.id}>", "exec"), names)
    except Exception as error:
        return [outcome_of(error, seconds)] * len(cases)
    if question.answer not in names:
        return [Outcome("missing")] * len(cases)
    return [run_case(question, names[question.answer], case, seconds) for case in cases]


def result(authored: Authored, source: str, entry: dict, seed: int | None = None) -> Result:
    """The result of an answer's cell on the public cases, and with `seed` on the hidden ones too."""
    question = authored.question
    cases = question.cases() + (question.cases(seed) if seed is not None else [])
    return grade(question, cases, outcomes(authored, source, cases), entry)


def prints(authored: Authored, source: str) -> dict[str, dict]:
    """The fingerprints of an answer's cell on the public cases, by case."""
    cases = authored.question.cases()
    found = outcomes(authored, source, cases)
    return {case.name: outcome_print(outcome) for case, outcome in zip(cases, found, strict=True)}


def faults(authored: Authored, entry: dict) -> Iterator[str]:
    """What keeps a question from being handed out, a sentence each: a solution that fails, a mistake that passes or goes by
    another's name, a right variant that fails, a stub that earns points.
    """
    question = authored.question
    right = {"the solution": authored.solution, **{f"the variant {v.name!r}": v.source for v in question.variants}}
    for who, source in right.items():
        found = result(authored, source, entry)
        if not found.passed:
            failed = next(verdict for verdict in found.verdicts if not verdict.passed)
            yield f"{who} fails on the case {failed.case!r}: {failed.sentence}"
    for mistake in question.mistakes:
        found = result(authored, mistaken(authored.solution, mistake), entry)
        if found.passed:
            yield f"the mistake {mistake.name!r} passes; add a case that it fails."
        elif found.mistake != mistake.name:
            taken = found.mistake or "none of them"
            yield f"the mistake {mistake.name!r} is taken for {taken}; add a case that tells them apart."
    if result(authored, authored.stub, entry).points:
        yield "the stub earns points; let it do less."
