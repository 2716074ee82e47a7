"""A bet covers every later cell up to the one that settles it."""

import json
from pathlib import Path

import pytest
from bs4 import BeautifulSoup

from course_staff.site.bets import cover, marks, spans

ROOT = Path(__file__).parents[3]
CHAPTERS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def cells_of(path: Path) -> list[dict]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [{**cell, "source": "".join(cell["source"])} for cell in cells]


def covered(*blocks: str) -> BeautifulSoup:
    soup = BeautifulSoup("".join(blocks), "html.parser")
    cover(soup)
    return soup


def begins(name: str) -> str:
    return f'<div class="bet-mark" data-begins="{name}"></div>'


def ends(name: str) -> str:
    return f'<div class="bet-mark" data-ends="{name}"></div>'


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_every_bet_of_a_chapter_is_settled_later(path):
    found = list(spans(cells_of(path)))
    assert len(found) >= 2
    assert all(bet < settle for _, bet, settle in found)


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_exactly_the_cells_after_the_bet_up_to_its_truth_are_covered(path):
    cells = cells_of(path)
    before = marks(cells)
    blocks = "".join(f"{before.get(place, '')}<p>{place}</p>" for place in range(len(cells) + 1))
    soup = covered(blocks)
    for name, bet, settle in spans(cells):
        under = [
            int(block.string)
            for block in soup.find_all("p", attrs={"data-under": True})
            if name in block["data-under"].split()
        ]
        assert under == list(range(bet + 1, settle + 1))


def test_bets_that_are_asked_together_share_a_button():
    soup = covered(begins("a"), begins("b"), "<p>1</p>", ends("a"), "<p>2</p>", ends("b"), "<p>3</p>")
    assert [button["data-bets"] for button in soup.select(".bet-cover")] == ["a b"]
    assert [block.get("data-under") for block in soup.find_all("p") if block.string in "123"] == ["a b", "b", None]


def test_the_button_of_a_bet_under_another_is_covered_too():
    soup = covered(begins("a"), "<p>1</p>", begins("b"), "<p>2</p>", ends("b"), ends("a"))
    first, second = soup.select(".bet-cover")
    assert "data-under" not in first.attrs
    assert second["data-under"] == "a"


def test_sections_are_opened_and_no_word_is_lost():
    first = f"<section><h2>A</h2>{begins('a')}<p>1</p><section><h3>B</h3><p>2</p></section></section>"
    soup = covered(first, f"<section><p>3</p>{ends('a')}<p>4</p></section>")
    assert [block.string for block in soup.select("[data-under]")] == ["1", "B", "2", "3"]
    for button in soup.select(".bet-cover"):
        button.decompose()
    assert soup.get_text() == "A1B234"


def test_a_page_without_bets_is_as_it_was():
    assert str(covered("<section><p>1</p></section>")) == "<section><p>1</p></section>"
