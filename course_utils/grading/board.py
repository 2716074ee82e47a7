"""How far a learner is in all exercise sets: as a table in a terminal, and with bars in a notebook."""

import html
import re
from dataclasses import dataclass
from functools import cached_property

from course_utils.grading.progress import Record, recall
from course_utils.grading.released import SETS, load_set

FRESH = "No question passed yet"
"""How the table of somebody who has not begun starts; what the repository stores must start so."""
_BLOCKS = 20  # of a bar in a terminal
_BEGIN = "Begin where you like; the first exercises show how they work."


@dataclass(frozen=True)
class Standing:
    """One set: questions passed, the best points, and the first question that is not passed, as `q2 · Title`."""

    name: str
    passed: int
    questions: int
    points: float
    of: float
    next: str

    @property
    def share(self) -> float:
        """The share of its questions that are passed."""
        return self.passed / self.questions


@dataclass(frozen=True, repr=False)
class Board:
    """All sets in their order. Text and HTML say the same; a bar stands beside the number it shows."""

    standings: tuple[Standing, ...]

    @cached_property
    def head(self) -> str:
        """The sum in a sentence."""
        passed, questions = sum(one.passed for one in self.standings), sum(one.questions for one in self.standings)
        points, of = sum(one.points for one in self.standings), sum(one.of for one in self.standings)
        if not passed:
            return f"{FRESH}, of {questions} in {len(self.standings)} sets. {_BEGIN}"
        return f"{passed} of {questions} questions passed, {points:g} of {of:g} points."

    @cached_property
    def advice(self) -> str:
        """What to do next: the first open question of a set that is begun, else of the first one not begun."""
        todo = sorted((one for one in self.standings if one.next), key=lambda one: (not one.passed, one.name))
        if not todo:
            return "Next: nothing is left; every question is passed."
        return f"Next: {todo[0].next}, in exercises/{todo[0].name}.ipynb."

    def __str__(self):
        width = max(len(one.name) for one in self.standings)
        lines = [f"{one.name:{width}}  {_bar(one.share)}  {_counted(one)}" for one in self.standings]
        return "\n".join([self.head, "", *lines, "", self.advice])

    __repr__ = __str__

    def _repr_html_(self):
        rows = "".join(map(_row, self.standings))
        head = "".join(
            f'<th scope="col" style="text-align:left">{name}</th>' for name in ("set", "passed", "", "points")
        )
        table = f'<table style="color:inherit;font:inherit"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
        return f"<div><p>{html.escape(self.head)}</p>{table}<p>{_linked(html.escape(self.advice))}</p></div>"


def my_progress() -> Board:
    """The board of the learner at the settings' home, over all released sets."""
    return Board(tuple(_standing(path.stem) for path in sorted(SETS.glob("*.json"), key=lambda path: path.stem)))


def _standing(name: str) -> Standing:
    entries, records = load_set(name)["questions"], recall(name)
    reached = {entry["id"]: records.get(entry["id"], Record()) for entry in entries}
    left = [entry for entry in entries if not reached[entry["id"]].passed]
    return Standing(
        name,
        passed=len(entries) - len(left),
        questions=len(entries),
        points=sum(min(reached[entry["id"]].points, entry["points"]) for entry in entries),
        of=sum(entry["points"] for entry in entries),
        next=f"{left[0]['id']} · {left[0]['title']}" if left else "",
    )


def _bar(share: float) -> str:
    """A bar is full, or empty, only where all, or nothing, is done."""
    full = min(_BLOCKS - (share < 1), max(int(share > 0), round(share * _BLOCKS)))
    return "█" * full + "·" * (_BLOCKS - full)


def _counted(one: Standing) -> str:
    return f"{one.passed:2} of {one.questions:2} questions  {one.points:4g} of {one.of:2g} points"


def _linked(text: str) -> str:
    """`text` with a link for each notebook of exercises; chapters and exercises lie in folders beside each other."""
    return re.sub(r"exercises/\w+\.ipynb", r'<a href="../\g<0>">\g<0></a>', text)


def _row(one: Standing) -> str:
    said = f"{one.passed} of {one.questions} questions passed"
    # The edge is the text's own color, and the bar is readable on white and on black.
    inner = f'<div style="width:{one.share:.0%};height:100%;background:#009E73"></div>'
    outer = "width:12em;height:.8em;border:1px solid currentColor;border-radius:2px"
    bar = f'<div role="img" aria-label="{said}" style="{outer}">{inner}</div>'
    cells = f"<td>{one.passed} of {one.questions}</td><td>{bar}</td><td>{one.points:g} of {one.of:g}</td>"
    return f'<tr><th scope="row" style="text-align:left">{html.escape(one.name)}</th>{cells}</tr>'
