"""What a chapter's sentences claim: what `course lint` notes for the author, and what it refuses.

`docs/claims.json` holds, for each chapter, the sentences that say why, or that something always holds, with what they rest on:

    {"07_gradient_checkpointing": [{"id": "07-root", "says": "The best number of segments is about √(r·n)",
                                    "evidence": "derivation root-text"}]}

`says` is the sentence or its beginning, as one reads it. `evidence` is `cell <id>` (it removes the cause), `derivation <id>`
or `source <as in Sources>`. With `"seeds": true` chance plays a part, and `benchmarks/claims` holds what runs it.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import shorten

from course_staff.notebooks.anatomy import Chapter, Remarks

CLAIMS = "docs/claims.json"
_CLAIM = re.compile(
    r"\b(because|causes?|caused|best|always|never)\b|\bso\b(?! (?:that|far|many|much|few|little|often|on)\b)",
    re.IGNORECASE,
)
_END = re.compile(r"(?<=[.!?:])[\"”’)*_]*\s+(?=[\"“‘(*_]*[A-Z0-9α-ωΑ-Ω√`])")


def claims_of(root: Path, stem: str) -> list[dict]:
    """The entries of the chapter called `stem` in `docs/claims.json` below `root`; none where there is no such file."""
    path = root / CLAIMS
    return json.loads(path.read_text(encoding="utf-8")).get(stem, []) if path.is_file() else []


def broken_claims(chapter: Chapter, claims: list[dict]) -> Remarks:
    """Entries that are out of date: their sentence or the cell with their evidence no longer exists."""
    prose, ids = " ".join(text for _, text in _sentences(chapter)), {cell["id"] for _, cell in chapter.cells}
    for claim in claims:
        kind, _, source = claim["evidence"].partition(" ")
        if _strip_marks(claim["says"]) not in prose:
            yield 0, f"{CLAIMS}: {claim['id']} says {claim['says']!r}, which the chapter does not; correct one of them."
        if kind not in ("cell", "derivation", "source") or not source:
            yield 0, f"{CLAIMS}: the evidence of {claim['id']} must be 'cell ID', 'derivation ID' or 'source NAME'."
        elif kind != "source" and source not in ids:
            yield 0, f"{CLAIMS}: the evidence of {claim['id']} is in a cell {source!r}, which is not there."


def notes(chapter: Chapter, claims: list[dict]) -> Remarks:
    """Sentences that claim something, and have no evidence."""
    claimed = [_strip_marks(claim["says"]) for claim in claims]
    for number, sentence in _sentences(chapter):
        if (match := _CLAIM.search(sentence)) and not any(text in sentence or sentence in text for text in claimed):
            excerpt = shorten(sentence, 90, placeholder="…")
            yield number, f"'{match[0]}' without evidence in {CLAIMS}: {excerpt}"


def _sentences(chapter: Chapter) -> Iterator[tuple[int, str]]:
    """Sentences as one reads them, with their cells; without headings, tables, code, quoted output and sources."""
    for number, text in chapter.prose:
        for paragraph in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )", text.partition("### Sources")[0]):
            if not re.match(r"\s*(?:#|\||```|<|\$\$)", paragraph):
                yield from ((number, sentence) for sentence in _END.split(_strip_marks(paragraph)) if sentence)


def _strip_marks(text: str) -> str:
    """The text as one reads it: links as their words, no marks of emphasis, single spaces."""
    text = re.sub(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^()]*(?:\([^()]*\)[^()]*)*\)", r"\1", text)
    return " ".join(re.sub(r"\*+|^\s*(?:[-*]|\d+\.) ", "", text).split())
