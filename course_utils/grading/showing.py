"""A check's result for the learner. Plain text and HTML are made from the same lines, so that they say the same."""

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from course_utils.grading.judge import Result, Verdict
from course_utils.grading.progress import Record
from course_utils.grading.question import Question

SIGNS = {"passed": "✓ ", "failed": "✗ "}
_EDGES = {"passed": "#009E73", "failed": "#D55E00", "open": "#999999"}
_STYLES = {"head": "font-weight:bold", "fact": "opacity:.75", "diagnosis": "margin-top:.4em", "hint": "margin-top:.4em"}

_TOLD_IN_FULL = 5  # failures; a learner mends the first ones first


@dataclass(frozen=True)
class Line:
    """One line; `kind` is `head`, `fact`, `passed`, `failed`, `diagnosis` or `hint`. Code stands between back-ticks."""

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
        style = f"border-left:4px solid {_EDGES[self.state]};padding:.2em .8em;line-height:1.5"
        return f'<div style="{style}">{"".join(map(_html, self.lines))}</div>'


def shown(result: Result, question: Question, graded: str, records: Mapping[str, Record], total: int) -> Shown:
    """What a check says: the result, what was graded, the diagnosis, a hint, every case, and the progress in the set."""
    lines = [Line("head", f"{question.id} · {question.title}: {_status(result)}")]
    lines += [Line("fact", graded)] if graded else []
    lines += [Line("diagnosis", f"Diagnosis: {result.diagnosis}")] if result.diagnosis else []
    lines += _hint(result)
    lines += _verdicts(result)
    if question.counted and result.passed:
        names = ", ".join(f"`{name}`" for name in question.counted)
        lines.append(Line("fact", f"{names}: counted where your code runs."))
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
        kind = "passed" if entry["id"] in done else "fact"
        lines.append(Line(kind, f"{entry['id']} · {entry['title']} · {_points(entry['points'])}"))
    return Shown(tuple(lines), "passed" if len(done) == len(entries) else "open")


def _status(result: Result) -> str:
    passed, cases = sum(verdict.passed for verdict in result.verdicts), len(result.verdicts)
    if result.untouched:
        return "not written yet"
    if result.passed and result.public_only:
        return f"public checks passed; hidden ones, run by your instructor, decide on {_points(result.of)}"
    if result.passed:
        return f"passed, {_points(result.of)}"
    gained = f", {result.points:g} of {_points(result.of)}" if result.points else ""
    return f"not right yet, {passed} of {cases} checks passed{gained}"


def _points(count: float) -> str:
    return f"{count:g} point{'' if count == 1 else 's'}"


def _verdicts(result: Result) -> list[Line]:
    """A line per case, the first failures in full; one line where every case ended in the same way."""
    sentences = {verdict.sentence for verdict in result.verdicts}
    if len(sentences) == 1 and (len(result.verdicts) > 1 or result.untouched) and not result.passed:
        return [Line("fact" if result.untouched else "failed", sentences.pop())]
    failed = [verdict for verdict in result.verdicts if not verdict.passed]
    return [_verdict(verdict, in_full=verdict in failed[:_TOLD_IN_FULL]) for verdict in result.verdicts]


def _verdict(verdict: Verdict, in_full: bool) -> Line:
    if verdict.passed:
        return Line("passed", verdict.case)
    kind = "fact" if verdict.kind == "untouched" else "failed"
    return Line(kind, f"{verdict.case}: {verdict.sentence}" if in_full else verdict.case)


def _hint(result: Result) -> list[Line]:
    if result.hint:
        return [Line("hint", f"Hint: {result.hint}")]
    return [] if result.passed else [Line("fact", f'For a hint: `check("{result.question}", hint=1)`.')]


def _html(line: Line) -> str:
    text = html.escape(SIGNS.get(line.kind, "") + line.text)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    return f'<div style="white-space:pre-wrap;{_STYLES.get(line.kind, "")}">{text}</div>'
