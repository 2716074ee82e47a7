"""A check's result for the learner. Plain text and HTML are made from the same lines, so that they say the same."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from course_utils.grading.judge import Result, Verdict
from course_utils.grading.progress import Record
from course_utils.grading.question import Question
from course_utils.units import format_counted

SIGNS = {"passed": "✓ ", "failed": "✗ ", "open": "○ "}
COLORS = {"passed": "#009E73", "failed": "#D55E00", "open": "#888888"}  # of edges, seen on white and on black
SIGN_COLOR = "color-mix(in srgb, currentColor 45%, {})"  # darker on white, lighter on black: letters need more contrast
_HANGING = "padding-left:1.1em;text-indent:-1.1em"
_STYLES = {
    "head": "font-weight:bold",
    "fact": "opacity:.75",
    "diagnosis": "",
    "hint": "",
    **dict.fromkeys(SIGNS, _HANGING),
}
_APART = ("diagnosis", "hint")  # kinds with some space above and below

_TOLD_IN_FULL = 5  # failures; a learner mends the first ones first
_A_LINE_EACH = 5  # cases that passed; more of them share a line
_SEPARATOR = " · "


@dataclass(frozen=True)
class Line:
    """One line; `kind` is `head`, `fact`, `passed`, `failed`, `open`, `diagnosis` or `hint`. Code is between back-ticks."""

    kind: str
    text: str


@dataclass(frozen=True, repr=False)
class Shown:
    """Lines that a notebook shows as HTML and everything else as text; `state` is `passed`, `failed` or `open`."""

    lines: tuple[Line, ...]
    state: str = "open"

    def __str__(self):
        return "\n".join(SIGNS.get(line.kind, "") + line.text for line in self.lines)

    __repr__ = __str__

    def _repr_html_(self):
        from course_utils.grading.pages import render

        looks = {"colors": COLORS, "sign_color": SIGN_COLOR, "styles": _STYLES, "signs": SIGNS, "apart_kinds": _APART}
        return render("check.html.j2", lines=self.lines, state=self.state, **looks)


def shown(result: Result, question: Question, graded: str, records: Mapping[str, Record], total: int) -> Shown:
    """What a check says: the result, what was graded, the diagnosis, a hint, every case, and the progress in the set."""
    lines = [Line("head", f"{question.id} · {question.title}: {_status(result)}")]
    lines += [Line("fact", graded)] if graded and not result.untouched else []
    lines += [Line("diagnosis", f"Diagnosis: {result.diagnosis}")] if result.diagnosis else []
    advice, verdicts = _hint(result), case_lines(result.verdicts)
    lines += [*verdicts, *advice] if result.untouched else [*advice, *verdicts]
    if question.counted and result.passed:
        names = ", ".join(f"`{name}`" for name in question.counted)
        lines.append(Line("fact", f"Counted while your code runs: {names}."))
    lines.append(Line("fact", f"Progress: {sum(r.passed for r in records.values())} of {total} questions passed."))
    state = "passed" if result.passed else "open" if result.untouched else "failed"
    return Shown(tuple(lines), state)


def hint_shown(question: Question, number: int) -> Shown:
    """One of the three hints, counted from 1."""
    head = Line("head", f"{question.id} · {question.title}: hint {number} of {len(question.hints)}")
    return Shown((head, Line("hint", question.hints[number - 1])))


def overview(name: str, entries: Sequence[Mapping], records: Mapping[str, Record]) -> Shown:
    """All questions of a set, with what is passed."""
    done = {entry["id"] for entry in entries if records.get(entry["id"], Record()).passed}
    lines = [Line("head", f"{name}: {len(done)} of {len(entries)} questions passed")]
    for entry in entries:
        kind = "passed" if entry["id"] in done else "open"
        lines.append(Line(kind, f"{entry['id']} · {entry['title']} · {format_counted(entry['points'], 'point')}"))
    return Shown(tuple(lines), "passed" if len(done) == len(entries) else "open")


def _status(result: Result) -> str:
    passed, cases = sum(verdict.passed for verdict in result.verdicts), len(result.verdicts)
    worth = format_counted(result.of, "point")
    if result.untouched:
        return "not written yet"
    if result.passed and result.public_only:
        return f"public checks passed; hidden ones, run by your instructor, decide on {worth}"
    if result.passed:
        return f"passed, {worth}"
    gained = f", {result.points:g} of {worth}" if result.points else ""
    return f"not right yet, {passed} of {cases} checks passed{gained}"


def case_lines(verdicts: Sequence[Verdict]) -> list[Line]:
    """The failures, the first ones in full, then the cases that passed. Cases that failed alike share a line."""
    alike: dict[tuple[str, str], list[str]] = {}
    for verdict in verdicts:
        if not verdict.passed:
            kind = "open" if verdict.kind == "untouched" else "failed"
            alike.setdefault((kind, verdict.sentence), []).append(verdict.case)
    if [len(verdicts)] == list(map(len, alike.values())):
        return [Line(kind, sentence) for kind, sentence in alike]
    told = [Line(kind, f"{_SEPARATOR.join(cases)}: {sentence}") for (kind, sentence), cases in alike.items()]
    others = [case for cases in list(alike.values())[_TOLD_IN_FULL:] for case in cases]
    return told[:_TOLD_IN_FULL] + _named("failed", others) + _passed(verdicts)


def _passed(verdicts: Sequence[Verdict]) -> list[Line]:
    cases = [verdict.case for verdict in verdicts if verdict.passed]
    return [Line("passed", case) for case in cases] if len(cases) <= _A_LINE_EACH else _named("passed", cases)


def _named(kind: str, cases: Sequence[str]) -> list[Line]:
    more = f"{len(cases)} more: " if kind == "failed" and len(cases) > 1 else ""
    return [Line(kind, f"{more}{_SEPARATOR.join(cases)}")] if cases else []


def _hint(result: Result) -> list[Line]:
    if result.hint:
        return [Line("hint", f"Hint: {result.hint}")]
    return [] if result.passed else [Line("fact", f'For a hint: `check("{result.question}", hint=1)`.')]
