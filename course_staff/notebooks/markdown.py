"""What the chapter checker wants to know of a text in Markdown: headings, links, pictures, words."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from markdown_it import MarkdownIt

_PARSER = MarkdownIt("commonmark").enable("table")
_PARSER.normalizeLink = lambda target: target  # as it is written
_PICTURE = re.compile(r"<img\b[^>]*>", re.IGNORECASE)
_LINK = re.compile(r"<a\b[^>]*\bhref=[\"']([^\"']+)[\"']", re.IGNORECASE)
_ANCHOR = re.compile(r"\b(?:id|name)=[\"']([^\"']+)[\"']", re.IGNORECASE)


@dataclass(frozen=True)
class Heading:
    """A heading; `level` is 1 for the title."""

    level: int
    text: str


@dataclass(frozen=True)
class Link:
    """A link or picture: its text, or alternative text, and where it leads."""

    text: str
    target: str


def headings(text: str) -> list[Heading]:
    """The headings of `text` in order."""
    pairs = pairwise(_PARSER.parse(text))
    return [Heading(int(one.tag[1]), words.content) for one, words in pairs if one.type == "heading_open"]


def links(text: str) -> list[Link]:
    """The links of `text`, in Markdown and in HTML."""
    found, tokens = [], list(_tokens(text))
    for at, token in enumerate(tokens):
        if token.type == "link_open":
            end = next(place for place in range(at, len(tokens)) if tokens[place].type == "link_close")
            found.append(Link("".join(inner.content for inner in tokens[at:end]), token.attrs["href"]))
    return [*found, *(Link("", target) for target in _LINK.findall(_html(text)))]


def pictures(text: str) -> list[Link]:
    """The pictures of `text` with their alternative texts, in Markdown and in HTML."""
    found = [Link(token.content, token.attrs["src"]) for token in _tokens(text) if token.type == "image"]
    tags = _PICTURE.findall(_html(text))
    return [*found, *(Link(_attribute(tag, "alt"), _attribute(tag, "src")) for tag in tags)]


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


def is_external(target: str) -> bool:
    """Whether a link leads out of the course, to the web or to a mail address."""
    return re.match(r"(?:https?|mailto):", target) is not None


def _tokens(text: str) -> Iterator:
    """The tokens of `text` in order, those within a line too."""
    for token in _PARSER.parse(text):
        yield token
        yield from token.children or ()


def _html(text: str) -> str:
    return "\n".join(token.content for token in _tokens(text) if token.type in ("html_block", "html_inline"))


def _attribute(tag: str, name: str) -> str:
    found = re.search(rf"\b{name}=[\"']([^\"']*)[\"']", tag, re.IGNORECASE)
    return found.group(1) if found else ""
