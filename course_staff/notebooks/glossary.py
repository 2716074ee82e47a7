"""The glossary: docs/glossary.md is its one source, read here, and the chapters link to it where they first use a term.

A link carries the term's first sentence as its title, so that it helps where the file cannot be opened, as in Colab.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from course_staff.notebooks.files import edit_notebook
from course_utils.errors import CourseError

if TYPE_CHECKING:
    from nbformat import NotebookNode

GLOSSARY = "docs/glossary.md"
_TERM = re.compile(
    r'^### <a id="(?P<id>[\w-]+)"></a>(?P<name>.+)\n\n(?P<text>.+)\n\n'
    r"\*First in \[chapter (?P<first>\w+)\]\([^)]+\)(?: · also: (?P<also>[^·*\n]+))?[^*\n]*\*$",
    re.MULTILINE,
)
_LINK = re.compile(r'\[([^\[\]]*)\]\(\.\./docs/glossary\.md#[\w-]+(?: "[^"]*")?\)')
# What is not prose: code, headings, links and pictures, tags, formulas.
_ASIDE = re.compile(
    r"^(?:```|~~~).*?^(?:```|~~~)\s*?$|`[^`\n]+`|^#{1,6} [^\n]*$|!?\[(?:[^\[\]]|\[[^\]]*\])*\]\([^)]*\)|<[^>\n]+>|\$[^$\n]+\$",
    re.MULTILINE | re.DOTALL,
)
_SOURCES = re.compile(r"^### Sources$.*\Z", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Term:
    """A term: its anchor, its name, what it means, the number of the chapter where it comes first, and what else it is called."""

    id: str
    name: str
    text: str
    first: str
    synonyms: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The first sentence, fit for a link's title."""
        return re.split(r"(?<=\.) ", self.text)[0].replace('"', "'").replace("|", "/")


def read_glossary(path: Path) -> list[Term]:
    """The terms in the file at `path`; raises `CourseError` if an entry cannot be read, or an anchor is used twice."""
    terms = []
    for entry in re.split(r"^(?=### )", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        match = _TERM.match(entry)
        if match is None:
            head = entry.partition("\n")[0]
            raise CourseError(f"{path.name}: the entry {head!r} is not written like the others; see the one before it.")
        if match["id"] in [term.id for term in terms]:
            raise CourseError(f"{path.name}: the anchor {match['id']!r} stands twice; give each entry its own.")
        synonyms = tuple(name.strip() for name in match["also"].split(",")) if match["also"] else ()
        terms.append(Term(match["id"], match["name"], match["text"], match["first"], synonyms))
    return terms


def add_links(texts: Sequence[str], terms: Sequence[Term]) -> list[str]:
    """The Markdown of a chapter's cells, in order, with the first use of each term linked, and no other use."""
    pattern, by_spelling = _spellings(terms)
    pending = {term.id: term for term in terms}

    def link(match: re.Match) -> str:
        term = pending.pop(by_spelling[_lower_first(match[1])].id, None)
        return f'[{match[0]}](../{GLOSSARY}#{term.id} "{term.title}")' if term else match[0]

    return ["".join(pattern.sub(link, part) if prose else part for part, prose in _parts(text)) for text in texts]


def strip_links(text: str) -> str:
    """The Markdown of a cell without links into the glossary."""
    return _LINK.sub(r"\1", text)


def with_links(notebook: Mapping, stem: str, terms: Sequence[Term]) -> list[str]:
    """The Markdown of the chapter called `stem`, cell by cell, with today's links.

    Before the chapter where a term comes first, its word means something else, as a matrix's rank does: there it is not linked.
    Neither is a term whose anchor is listed in the metadata's `"course": {"unlinked": ["rank"]}`.
    """
    unlinked = notebook["metadata"].get("course", {}).get("unlinked", [])
    usable = [term for term in terms if term.first <= stem.partition("_")[0] and term.id not in unlinked]
    texts = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "markdown"]
    return add_links([strip_links(text) for text in texts], usable)


def stamp_links(path: Path, terms: Sequence[Term]) -> bool:
    """Write today's links into the notebook at `path`; True where that changed the file."""

    def edit(notebook: "NotebookNode") -> None:
        cells = [cell for cell in notebook.cells if cell.cell_type == "markdown"]
        for cell, source in zip(cells, with_links(notebook, path.stem, terms), strict=True):
            cell.source = source

    return edit_notebook(path, edit)


def _spellings(terms: Sequence[Term]) -> tuple[re.Pattern, dict[str, Term]]:
    """What finds any term, the longest first so that a term inside another's name is not taken for it."""
    by_spelling = {_lower_first(name): term for term in terms for name in (term.name, *term.synonyms)}
    names = sorted((name for term in terms for name in (term.name, *term.synonyms)), key=len, reverse=True)
    either_case = (f"[{name[0].upper()}{name[0].lower()}]{re.escape(name[1:])}" for name in names)
    return re.compile(rf"(?<![\w-])({'|'.join(either_case)})(?:e?s)?(?![\w-])"), by_spelling


def _lower_first(name: str) -> str:
    return name[0].lower() + name[1:]


def _parts(text: str) -> Iterator[tuple[str, bool]]:
    """`text` in pieces, and whether each is prose."""
    end = len(text) - len(sources[0]) if (sources := _SOURCES.search(text)) else len(text)
    position = 0
    for aside in _ASIDE.finditer(text, 0, end):
        yield text[position : aside.start()], True
        yield aside[0], False
        position = aside.end()
    yield text[position:end], True
    yield text[end:], False
