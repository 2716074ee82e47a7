"""The glossary: docs/glossary.md is its one source, read here, and the chapters link to it where they first use a term.

A link carries the term's first sentence as its title, so that it helps where the file cannot be opened, as in Colab.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from course_utils.errors import CourseError

GLOSSARY = "docs/glossary.md"
_TERM = re.compile(
    r'^### <a id="(?P<id>[\w-]+)"></a>(?P<name>.+)\n\n(?P<text>.+)\n\n'
    r"\*First in \[chapter (?P<first>\w+)\]\([^)]+\)(?P<facts>[^*\n]*)\*$",
    re.MULTILINE,
)
_SYMBOL = re.compile(r"^\| (?P<symbol>[^|]+?) \| (?P<meaning>[^|]+?) \| (?P<chapters>[\w, ]+) \|$", re.MULTILINE)
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
    also: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The first sentence, fit for a link's title."""
        return re.split(r"(?<=\.) ", self.text)[0].replace('"', "'").replace("|", "/")


@dataclass(frozen=True)
class Symbol:
    """A letter of the course's formulas, what it stands for, and the numbers of the chapters where it does."""

    symbol: str
    meaning: str
    chapters: tuple[str, ...]


@dataclass(frozen=True)
class Glossary:
    """What the file holds."""

    terms: tuple[Term, ...]
    symbols: tuple[Symbol, ...]


def read_glossary(path: Path) -> Glossary:
    """The glossary in the file at `path`; raises `CourseError` where an entry cannot be read, or an anchor stands twice."""
    text = path.read_text(encoding="utf-8")
    terms = tuple(Term(**_fields(found)) for found in _TERM.finditer(text))
    ids = [term.id for term in terms]
    heads = re.findall(r"^### .*$", text, re.MULTILINE)
    if len(heads) != len(terms):
        read = {found[0].partition("\n")[0] for found in _TERM.finditer(text)}
        odd = next(head for head in heads if head not in read)
        raise CourseError(f"{path.name}: the entry {odd!r} is not written like the others; see the one before it.")
    if twice := next((one for one in ids if ids.count(one) > 1), None):
        raise CourseError(f"{path.name}: the anchor {twice!r} stands twice; give each entry its own.")
    symbols = (found.groupdict() for found in _SYMBOL.finditer(text.partition("\n## Symbols\n")[2]))
    return Glossary(
        terms,
        tuple(
            Symbol(s["symbol"], s["meaning"], tuple(s["chapters"].split(", ")))
            for s in symbols
            if s["symbol"] != "symbol"
        ),
    )


def _fields(found: re.Match) -> dict:
    also = re.search(r" · also: ([^·]+)", found["facts"])
    names = tuple(name.strip() for name in also[1].split(",")) if also else ()
    return {name: found[name] for name in ("id", "name", "text", "first")} | {"also": names}


def linked(texts: Sequence[str], terms: Sequence[Term]) -> list[str]:
    """The Markdown of a chapter's cells, in order, with the first use of each term linked, and no other use."""
    pattern, by_spelling = _spellings(terms)
    pending = {term.id: term for term in terms}

    def link(found: re.Match) -> str:
        term = pending.pop(by_spelling[_plain(found[1])].id, None)
        return f'[{found[0]}](../{GLOSSARY}#{term.id} "{term.title}")' if term else found[0]

    return ["".join(pattern.sub(link, part) if prose else part for part, prose in _parts(text)) for text in texts]


def unlinked(text: str) -> str:
    """The Markdown of a cell without links into the glossary."""
    return _LINK.sub(r"\1", text)


def stamp_links(path: Path, terms: Sequence[Term]) -> bool:
    """Write today's links into the notebook at `path`; True where that changed the file.

    Before the chapter where a term comes first, its word means something else, as a matrix's rank does: there it is not linked.
    """
    from course_staff.notebooks.files import read_notebook, write_notebook

    notebook = read_notebook(path)
    cells = [cell for cell in notebook.cells if cell.cell_type == "markdown"]
    known = [term for term in terms if term.first <= path.stem.partition("_")[0]]
    sources = linked([unlinked(cell.source) for cell in cells], known)
    changed = [(cell, source) for cell, source in zip(cells, sources, strict=True) if cell.source != source]
    for cell, source in changed:
        cell.source = source
    if changed:
        write_notebook(notebook, path)
    return bool(changed)


def _spellings(terms: Sequence[Term]) -> tuple[re.Pattern, dict[str, Term]]:
    """What finds any term, the longest first so that a term inside another's name is not taken for it."""
    by_spelling = {_plain(name): term for term in terms for name in (term.name, *term.also)}
    names = sorted((name for term in terms for name in (term.name, *term.also)), key=len, reverse=True)
    either_case = (f"[{name[0].upper()}{name[0].lower()}]{re.escape(name[1:])}" for name in names)
    return re.compile(rf"(?<![\w-])({'|'.join(either_case)})(?:e?s)?(?![\w-])"), by_spelling


def _plain(name: str) -> str:
    return name[0].lower() + name[1:]


def _parts(text: str) -> Iterator[tuple[str, bool]]:
    """`text` in pieces, and whether each is prose."""
    end = len(text) - len(found[0]) if (found := _SOURCES.search(text)) else len(text)
    place = 0
    for aside in _ASIDE.finditer(text, 0, end):
        yield text[place : aside.start()], True
        yield aside[0], False
        place = aside.end()
    yield text[place:end], True
    yield text[end:], False
