"""Bets on a page: whatever follows a bet is covered until the reader asks for it."""

import ast
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from course_staff.notebooks.cell_names import statements_of

if TYPE_CHECKING:
    from bs4 import BeautifulSoup, Tag

_MARK = '<div class="bet-mark" data-bet="{}"></div>'
_ASK = "Write down your number first. Below, “your bet” is the notebook's own guess."
_OPEN = "I have my number: show the rest"


def marks(cells: Sequence[dict]) -> dict[int, str]:
    """HTML that goes before the cell at a place, by which `cover` finds where something is bet."""
    code = [(place, cell["source"]) for place, cell in enumerate(cells) if cell["cell_type"] == "code"]
    html_at = {place + 1: "\n".join(_MARK.format(name) for name in _bets_in(source)) for place, source in code}
    return {place: text for place, text in html_at.items() if text}


def cover(soup: "BeautifulSoup") -> None:
    """Mark every block of a page that follows a bet, and put a button before the first one of each.

    The cover reaches past the cell that settles the bet to the page's end, as figures and summaries tell the answer again.
    Bets that are asked together share a button. The style sheet hides what is marked where scripts run; without them all is seen.
    """
    under: list[str] = []
    new_bets: list[str] = []
    for block in list(_blocks(soup)):
        if "bet-mark" in block.get("class", []):
            new_bets.append(block["data-bet"])
            block.decompose()
            continue
        if new_bets:
            block.insert_before(_button(soup, new_bets, under))
            under, new_bets = [*under, *new_bets], []
        if under:
            block["data-under"] = " ".join(under)


def _bets_in(source: str) -> list[str]:
    nodes = (node for statement in statements_of(source) for node in ast.walk(statement))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    return [call.args[0].value for call in calls if ast.unparse(call.func) in ("bet", "bets.bet")]


def _blocks(element: "Tag") -> Iterator["Tag"]:
    """The blocks of a page in order: sections are opened, all else stays in one piece."""
    for child in element.find_all(True, recursive=False):
        if child.name == "section":
            yield from _blocks(child)
        else:
            yield child


def _button(soup: "BeautifulSoup", names: Sequence[str], under: Sequence[str]) -> "Tag":
    box = soup.new_tag("div", attrs={"class": "bet-cover", "data-bets": " ".join(names)})
    if under:
        box["data-under"] = " ".join(under)
    text, button = soup.new_tag("p"), soup.new_tag("button", attrs={"type": "button"})
    text.string, button.string = _ASK, _OPEN
    box.extend([text, button])
    return box
