"""Spelling in American English, held to two lists that need no network.

A word must be in pyspellchecker's list of 160,000 or in `words.txt`, which has what this course adds to English; so a slip is
found whatever it looks like. codespell's lists then take out what the large one wrongly has (`colum`), and what is British.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import codespell_lib
import prose
from spellchecker import SpellChecker

ADDED = Path(__file__).with_name("words.txt")
_SLIPS = Path(codespell_lib.__file__).with_name("data")
_TWICE = re.compile(r"(?<![\w-])([a-z]{2,})(?: +|\n *)\1(?![\w-])")
_BRITISH = re.compile(r"(\w{3,})is(e[drs]?|ers|ing|ations?)")
_MAY_STAND_TWICE = {"had", "that"}


def remarks(text: str) -> Iterator[str]:
    """A remark for every word of `text` that is misspelled, British, or there twice in a row."""
    for word in prose.words(text):
        if (better := _slips().get(word.lower()) or american(word)) and word not in added():
            yield f"{word}: write {better}"
        elif not is_known(word):
            yield f"{word}: not a word; correct it, or add it to tests/{ADDED.name}"
    for word in _TWICE.findall(prose.plain(text)):
        if word not in _MAY_STAND_TWICE:
            yield f"{word} {word}: once is enough"


def is_known(word: str) -> bool:
    """Whether it is English or ours; a name, which is in our list with a capital letter, must be written with one."""
    return bool(_english().known([word.lower()])) or bool({word, word.lower()} & added())


def american(word: str) -> str | None:
    """The word with a z, where it has a British s for it: where the list, which is mostly American, has the z more often."""
    found = _BRITISH.fullmatch(word.lower())
    other = f"{found[1]}iz{found[2]}" if found else ""
    counts = _english().word_frequency
    return other if found and counts[other] > counts[word.lower()] else None


@cache
def added() -> frozenset[str]:
    """The words that this course adds, as they are written."""
    return frozenset(ADDED.read_text(encoding="utf-8").split())


@cache
def _english() -> SpellChecker:
    return SpellChecker(distance=1)


@cache
def _slips() -> dict[str, str]:
    """Misspelling, or British spelling, to what is right; the last comma or remark of an entry left out."""
    names = ("dictionary.txt", "dictionary_en-GB_to_en-US.txt")
    lines = [line for name in names for line in (_SLIPS / name).read_text(encoding="utf-8").splitlines()]
    return {wrong: right.strip(", ") for wrong, _, right in (line.partition("->") for line in lines)}
