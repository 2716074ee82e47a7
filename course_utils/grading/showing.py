"""A check's result for the learner. Plain text and HTML are made from the same lines, so that they say the same."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from course_utils.grading.judge import QuestionResult, Verdict
from course_utils.grading.loading import SetEntry
from course_utils.grading.progress import Attempts
from course_utils.grading.question import Question
from course_utils.units import format_counted

SIGNS = {"passed": "✓ ", "failed": "✗ ", "open": "○ ", "yours": "− ", "ours": "+ ", "both": "  "}
COLORS = {"passed": "#009E73", "failed": "#D55E00", "open": "#888888"}  # of edges, seen on white and on black
COLORS |= {"yours": COLORS["failed"], "ours": COLORS["passed"], "both": COLORS["open"]}
SIGN_COLOR = "color-mix(in srgb, currentColor 45%, {})"  # darker on white, lighter on black: letters need more contrast
_HANGING = "padding-left:1.1em;text-indent:-1.1em"
_CODE = "font-family:var(--jp-code-font-family,monospace);font-size:90%;padding-left:2ch;text-indent:-2ch"
_TINTED = f"{_CODE};background:color-mix(in srgb, {{}} 14%, transparent)"
_STYLES = {
    "head": "font-weight:bold",
    "fact": "opacity:.75",
    "older": "",
    "diagnosis": "",
    "hint": "",
    **dict.fromkeys(SIGNS, _HANGING),
    "both": _CODE,
    **{kind: _TINTED.format(COLORS[kind]) for kind in ("yours", "ours")},
}

_SEEING, _ANYWAY = "solution=True", 'solution="anyway"'

_MOST_FAILURES = 5  # with a sentence each; a learner mends the first ones first
_MOST_PASSED = 5  # on a line each; more of them share a line
_SEPARATOR = " · "


@dataclass(frozen=True)
class Line:
    """One line; `kind` is a key of `_STYLES`. Code is between back-ticks, where the line is not one of code itself."""

    kind: str
    text: str


@dataclass(frozen=True, repr=False)
class Report:
    """Lines that a notebook shows as HTML and everything else as text; `state` is `passed`, `failed` or `open`."""

    lines: tuple[Line, ...]
    state: str = "open"

    def __str__(self):
        return "\n".join(SIGNS.get(line.kind, "") + line.text for line in self.lines)

    __repr__ = __str__

    def _repr_html_(self):
        from course_utils.grading.rendering import render

        return render("check.html.j2", report=self, colors=COLORS, sign_color=SIGN_COLOR, styles=_STYLES, signs=SIGNS)


def check_report(
    result: QuestionResult,
    question: Question,
    note: str,
    records: Mapping[str, Attempts],
    total: int,
    *,
    newer_failure: str,
    has_solution: bool,
) -> Report:
    """A check's report: the result, a `note` on what was graded, the diagnosis, a hint, every case, and the progress in the set.

    `newer_failure` says why the newest answer is not the one that was checked. With `has_solution`, a learner who passed or saw
    all hints is told how to see our solution.
    """
    record = records.get(question.id, Attempts())
    lines = [Line("head", f"{question.id} · {question.title}: {_status(result, record, newer_failure)}")]
    if note and not result.unanswered:
        lines.append(Line("fact", note))
    if newer_failure:
        lines.append(Line("older", newer_failure))
    if result.diagnosis:
        lines.append(Line("diagnosis", f"Diagnosis: {result.diagnosis}"))
    advice = []
    if result.hint:
        advice = [Line("hint", f"Hint: {result.hint}")]
    elif not result.passed:
        advice = [Line("fact", f'For a hint: `check("{result.question}", hint=1)`.')]
    verdicts = [] if newer_failure and result.unanswered else case_lines(result.verdicts)
    lines += [*verdicts, *advice] if result.unanswered else [*advice, *verdicts]
    if question.counted and result.passed:
        names = ", ".join(f"`{name}`" for name in question.counted)
        lines.append(Line("fact", f"Counted while your code runs: {names}."))
    if has_solution and (result.passed or record.hint == len(question.hints)) and not result.unanswered:
        invitation = "Compare with our solution" if result.passed else "To see our solution beside yours"
        lines.append(_offer(question, invitation))
    seen = sum(record.only_seen for record in records.values())
    seen_note = f", {format_counted(seen, 'solution')} seen" if seen else ""
    earlier_pass = "" if result.passed or not record.passed else f" You passed {question.id} before, and that stays."
    passed_count = sum(record.passed for record in records.values())
    lines.append(Line("fact", f"Progress: {passed_count} of {total} questions passed{seen_note}.{earlier_pass}"))
    state = "passed" if result.passed else "open" if result.unanswered else "failed"
    return Report(tuple(lines), state)


def hint_report(question: Question, number: int, has_solution: bool = False) -> Report:
    """One of the three hints, counted from 1."""
    lines = [Line("head", f"{question.id} · {question.title}: hint {number} of {len(question.hints)}")]
    lines.append(Line("hint", question.hints[number - 1]))
    if has_solution and number == len(question.hints):
        lines.append(_offer(question, "After a try of your own, to see our solution beside yours"))
    return Report(tuple(lines))


def solution_report(question: Question, answer: str, solution: str, passed: bool) -> Report:
    """Our solution beside the learner's answer, as the difference from theirs to ours, line by line."""
    counts = [] if passed else [Line("fact", "The question now counts as seen.")]
    lines = [Line("head", f"{question.id} · {question.title}: your answer and our solution")]
    before, after = (text.rstrip().split("\n") for text in (answer, solution))
    stripped = [[line.rstrip() for line in text] for text in (before, after)]
    changes = SequenceMatcher(None, *stripped, autojunk=False).get_opcodes()
    if [tag for tag, *_ in changes] == ["equal"]:
        return Report((*lines, Line("fact", "They are the same, line by line."), *counts), "passed")
    signs = "Lines with − are in yours alone, lines with + in ours."
    lines.append(Line("fact", f"{signs} Other answers may be just as right: the check decides."))
    for tag, first, last, start, end in changes:
        if tag == "equal":
            lines += [Line("both", line) for line in after[start:end]]
        else:
            lines += [Line("yours", line) for line in before[first:last]]
            lines += [Line("ours", line) for line in after[start:end]]
    return Report((*lines, *counts))


def try_first_report(question: Question) -> Report:
    """The report to a learner who asks for the solution before any try."""
    name = question.id
    condition = f'First check your own answer, right or wrong; then `check("{name}", {_SEEING})` shows ours beside it.'
    shortcut = (
        f'To see it now all the same: `check("{name}", {_ANYWAY})`. The question then counts as seen, not as passed.'
    )
    head = Line("head", f"{name} · {question.title}: our solution comes after a try of yours")
    return Report((head, Line("fact", condition), Line("fact", shortcut)))


def no_solution_report(question: Question, name: str) -> Report:
    """The report to a learner who has no solutions."""
    location = f"It is in `solutions/{name}.ipynb` of the course's repository, and that file is not on this machine."
    return Report((Line("head", f"{question.id} · {question.title}: our solution"), Line("fact", location)))


def _offer(question: Question, invitation: str) -> Line:
    return Line("fact", f'{invitation}: `check("{question.id}", {_SEEING})`.')


def progress_report(name: str, entries: Sequence[SetEntry], records: Mapping[str, Attempts]) -> Report:
    """All questions of a set, with what is passed."""
    passed_ids = {entry["id"] for entry in entries if records.get(entry["id"], Attempts()).passed}
    lines = [Line("head", f"{name}: {len(passed_ids)} of {len(entries)} questions passed")]
    for entry in entries:
        kind = "passed" if entry["id"] in passed_ids else "open"
        seen = " · solution seen" if records.get(entry["id"], Attempts()).only_seen else ""
        lines.append(Line(kind, f"{entry['id']} · {entry['title']} · {format_counted(entry['points'], 'point')}{seen}"))
    return Report(tuple(lines), "passed" if len(passed_ids) == len(entries) else "open")


def _status(result: QuestionResult, record: Attempts, newer_failure: str = "") -> str:
    passed = sum(verdict.passed for verdict in result.verdicts)
    worth = format_counted(result.max_points, "point")
    if result.unanswered:
        return "no verdict yet" if newer_failure else "nothing to check yet"
    if result.passed and record.only_seen:
        return "right, and counted as seen, because our solution was shown before"
    if result.passed and result.public_only:
        return f"passed on these cases; a grade for its {worth} comes from further ones"
    if result.passed:
        return f"passed, {worth}"
    gained = f", {result.points:g} of {worth}" if result.points else ""
    return f"not right yet, {passed} of {len(result.verdicts)} checks passed{gained}"


def case_lines(verdicts: Sequence[Verdict]) -> list[Line]:
    """The failures, the first ones with their sentences, then the cases that passed. Cases that failed alike share a line."""
    cases_by_failure: dict[tuple[str, str], list[str]] = {}
    for verdict in verdicts:
        if not verdict.passed:
            kind = "open" if verdict.kind == "untouched" else "failed"
            cases_by_failure.setdefault((kind, verdict.sentence), []).append(verdict.case)
    if [len(verdicts)] == list(map(len, cases_by_failure.values())):
        return [Line(kind, sentence) for kind, sentence in cases_by_failure]
    lines = [Line(kind, f"{_SEPARATOR.join(cases)}: {text}") for (kind, text), cases in cases_by_failure.items()]
    lines = lines[:_MOST_FAILURES]
    others = [case for cases in list(cases_by_failure.values())[_MOST_FAILURES:] for case in cases]
    if others:
        count = f"{len(others)} more: " if len(others) > 1 else ""
        lines.append(Line("failed", f"{count}{_SEPARATOR.join(others)}"))
    passed = [verdict.case for verdict in verdicts if verdict.passed]
    if len(passed) > _MOST_PASSED:
        passed = [_SEPARATOR.join(passed)]
    return lines + [Line("passed", case) for case in passed]
