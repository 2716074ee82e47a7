"""Bets on a page: whatever stands between a bet and its truth is covered until the reader asks for it."""

import ast
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from course_staff.notebooks.setup_cell import is_setup

if TYPE_CHECKING:
    from bs4 import BeautifulSoup, Tag

_MARK = '<div class="bet-mark" data-{}="{}"></div>'
_ASK = "The answer follows. Write down your number first."
_OPEN = "I have my number: show what follows"


def spans(cells: Sequence[dict]) -> Iterator[tuple[str, int, int]]:
    """Of each bet in a chapter its name, the place of its cell, and the place of the cell that settles it."""
    code = [
        (place, cell["source"])
        for place, cell in enumerate(cells)
        if cell["cell_type"] == "code" and not is_setup(cell)
    ]
    settled = {name: place for place, source in code for name in _first_arguments(source, "settle")}
    return ((name, place, settled[name]) for place, source in code for name in _first_arguments(source, "bet"))


def marks(cells: Sequence[dict]) -> dict[int, str]:
    """HTML that goes before the cell at a place, by which `cover` finds what lies between a bet and its truth."""
    found: dict[int, list[str]] = {}
    for name, bet, settle in spans(cells):
        found.setdefault(bet + 1, []).append(_MARK.format("begins", name))
        found.setdefault(settle + 1, []).append(_MARK.format("ends", name))
    return {place: "\n".join(sorted(lines, reverse=True)) for place, lines in found.items()}  # what ends, ends first


def cover(soup: "BeautifulSoup") -> None:
    """Mark every block of a page that lies under a bet, and put a button before the first one of each.

    Bets that are asked together share a button. The style sheet hides what is marked where scripts run; without them all is seen.
    """
    under: list[str] = []
    fresh: list[str] = []
    for block in list(_blocks(soup)):
        if "bet-mark" in block.get("class", []):
            if name := block.get("data-begins"):
                under, fresh = [*under, name], [*fresh, name]
            else:
                under.remove(block["data-ends"])
            block.decompose()
            continue
        if fresh:
            button = _button(soup, fresh)
            if others := [name for name in under if name not in fresh]:
                button["data-under"] = " ".join(others)
            block.insert_before(button)
            fresh = []
        if under:
            block["data-under"] = " ".join(under)


def _first_arguments(source: str, function: str) -> list[str]:
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return [call.args[0].value for call in calls if getattr(call.func, "id", "") == function]


def _blocks(whole: "Tag") -> Iterator["Tag"]:
    """The blocks of a page in order: sections are opened, all else stays whole."""
    for child in whole.find_all(True, recursive=False):
        if child.name == "section":
            yield from _blocks(child)
        else:
            yield child


def _button(soup: "BeautifulSoup", names: Sequence[str]) -> "Tag":
    box = soup.new_tag("div", attrs={"class": "bet-cover", "data-bets": " ".join(names)})
    text, button = soup.new_tag("p"), soup.new_tag("button", attrs={"type": "button"})
    text.string, button.string = _ASK, _OPEN
    box.extend([text, button])
    return box
