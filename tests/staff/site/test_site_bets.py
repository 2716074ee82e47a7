"""A bet covers whatever follows it, the cell that settles it above all."""

import json
import re
from pathlib import Path

import pytest
from bs4 import BeautifulSoup

from course_staff.site.bets import cover, marks

ROOT = Path(__file__).parents[3]
CHAPTERS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def cells_of(path: Path) -> list[dict]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [{**cell, "source": "".join(cell["source"])} for cell in cells]


def covered(*blocks: str) -> BeautifulSoup:
    soup = BeautifulSoup("".join(blocks), "html.parser")
    cover(soup)
    return soup


def bet(name: str) -> str:
    return f'<div class="bet-mark" data-bet="{name}"></div>'


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_every_cell_after_a_bet_is_covered_by_it_and_none_before(path):
    cells = cells_of(path)
    before = marks(cells)
    blocks = "".join(f"{before.get(place, '')}<p>{place}</p>" for place in range(len(cells)))
    soup = covered(blocks)
    bets, settlements = (
        {
            name: place
            for place, cell in enumerate(cells)
            for name in re.findall(rf'\b{word}\(\s*"([^"]+)"', cell["source"])
        }
        for word in ("bet", "settle")
    )
    assert bets.keys() == settlements.keys()
    assert len(bets) >= 2
    for name, place in bets.items():
        blocks = soup.find_all("p", attrs={"data-under": True})
        under = [int(block.string) for block in blocks if name in block["data-under"].split()]
        assert settlements[name] in under
        assert under == list(range(place + 1, len(cells)))


def test_bets_that_are_asked_together_share_a_button():
    soup = covered("<p>0</p>", bet("a"), bet("b"), "<p>1</p>", "<p>2</p>")
    assert [button["data-bets"] for button in soup.select(".bet-cover")] == ["a b"]
    assert [block.get("data-under") for block in soup.find_all("p") if block.string in "012"] == [None, "a b", "a b"]


def test_the_button_of_a_later_bet_lies_under_the_earlier_one():
    soup = covered(bet("a"), "<p>1</p>", bet("b"), "<p>2</p>")
    first, second = soup.select(".bet-cover")
    assert "data-under" not in first.attrs
    assert second["data-under"] == "a"
    assert soup.find("p", string="2")["data-under"] == "a b"


def test_sections_are_opened_and_no_word_is_lost():
    soup = covered(f"<section><h2>A</h2>{bet('a')}<p>1</p><section><h3>B</h3><p>2</p></section></section><p>3</p>")
    assert [block.string for block in soup.select("[data-under]")] == ["1", "B", "2", "3"]
    for button in soup.select(".bet-cover"):
        button.decompose()
    assert soup.get_text() == "A1B23"


def test_a_page_without_bets_is_as_it_was():
    assert str(covered("<section><p>1</p></section>")) == "<section><p>1</p></section>"
