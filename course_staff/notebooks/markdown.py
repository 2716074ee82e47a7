"""What the chapter checker wants to know of a text in Markdown: headings, links, pictures, words."""

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from markdown_it import MarkdownIt

_PARSER = MarkdownIt("commonmark").enable("table")
_PARSER.normalizeLink = lambda target: target  # as it is written
_PICTURE = re.compile(r"<img\b[^>]*>", re.IGNORECASE)
_LINK = re.compile(r"<a\b[^>]*\bhref=[\"']([^\"']+)[\"']", re.IGNORECASE)
_ANCHOR = re.compile(r"\b(?:id|name)=[\"']([^\"']+)[\"']", re.IGNORECASE)


class Heading(NamedTuple):
    """A heading; `level` is 1 for the title."""

    level: int
    text: str


class Picture(NamedTuple):
    """A picture: its alternative text, and where it is."""

    alt: str
    target: str


def headings(text: str) -> list[Heading]:
    """The headings of `text` in order."""
    pairs = pairwise(_tokens(text))
    return [Heading(int(opening.tag[1]), inline.content) for opening, inline in pairs if opening.type == "heading_open"]


def links(text: str) -> list[str]:
    """Where the links of `text` lead, those in Markdown and those in HTML."""
    targets = [token.attrs["href"] for token in _tokens(text) if token.type == "link_open"]
    return targets + _LINK.findall(_html(text))


def pictures(text: str) -> list[Picture]:
    """The pictures of `text`, those in Markdown and those in HTML."""
    images = [Picture(token.content, token.attrs["src"]) for token in _tokens(text) if token.type == "image"]
    return images + [Picture(_attribute(tag, "alt"), _attribute(tag, "src")) for tag in _PICTURE.findall(_html(text))]


def anchors(text: str) -> Iterator[str]:
    """The fragments that lead into `text`: Jupyter's for its headings, and those written in HTML."""
    for heading in headings(text):
        yield re.sub(r"[`*]", "", heading.text).replace(" ", "-")
    yield from _ANCHOR.findall(_html(text))


def slugs(text: str) -> Iterator[str]:
    """The fragments that lead into `text` on a code host: headings in small letters without punctuation, and those in HTML."""
    seen: dict[str, int] = {}
    for heading in headings(text):
        slug = re.sub(r"[^\w\- ]", "", heading.text.lower()).replace(" ", "-")
        seen[slug] = seen.get(slug, -1) + 1
        yield f"{slug}-{seen[slug]}" if seen[slug] else slug
    yield from _ANCHOR.findall(_html(text))


def count_words(text: str) -> int:
    """The words one reads: code blocks, link targets, tags and marks left out."""
    read = ("text", "code_inline", "image")
    return len(re.findall(r"\w[\w'’.,-]*", " ".join(token.content for token in _tokens(text) if token.type in read)))


def without_code(text: str) -> str:
    """What `text` says, less its code, in blocks and in lines; tags stay."""
    read = ("text", "softbreak", "html_inline", "html_block")
    return "".join(token.content or "\n" for token in _tokens(text) if token.type in read)


@lru_cache(maxsize=4096)
def _tokens(text: str) -> tuple:
    """The tokens of `text` in order, those within a line too; parsed once, as several rules read each cell."""
    return tuple(inner for token in _PARSER.parse(text) for inner in (token, *(token.children or ())))


def _html(text: str) -> str:
    return "\n".join(token.content for token in _tokens(text) if token.type in ("html_block", "html_inline"))


def _attribute(tag: str, name: str) -> str:
    match = re.search(rf"\b{name}=[\"']([^\"']*)[\"']", tag, re.IGNORECASE)
    return match.group(1) if match else ""
