"""As much of Markdown as the chapter checker needs: headings, links, pictures, words."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote

__all__ = [
    "Heading",
    "Link",
    "anchors",
    "count_words",
    "headings",
    "is_external",
    "links",
    "pictures",
    "slugs",
    "unquote",
    "without_code",
]

_FENCED = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_INLINE_CODE = re.compile(r"`[^`\n]+`")
_HEADING = re.compile(r"^(#{1,6})\s+(.+?)\s*#*$", re.MULTILINE)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
_HTML_PICTURE = re.compile(r"<img\b[^>]*>", re.IGNORECASE)
_HTML_LINK = re.compile(r"<a\b[^>]*\bhref=[\"']([^\"']+)[\"']", re.IGNORECASE)
_HTML_ANCHOR = re.compile(r"\b(?:id|name)=[\"']([^\"']+)[\"']", re.IGNORECASE)


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
    """The headings of `text` in order; those inside code are none."""
    return [Heading(len(marks), words) for marks, words in _HEADING.findall(_FENCED.sub("", text))]


def links(text: str) -> list[Link]:
    """The links of `text`, in Markdown and in HTML."""
    plain = without_code(text)
    found = [Link(words, target) for picture, words, target in _LINK.findall(plain) if not picture]
    nested = [link for outer in found for link in links(outer.text)]
    return [*found, *nested, *(Link("", target) for target in _HTML_LINK.findall(plain))]


def pictures(text: str) -> list[Link]:
    """The pictures of `text` with their alternative texts, in Markdown and in HTML."""
    plain = without_code(text)
    found = [Link(words, target) for picture, words, target in _LINK.findall(plain) if picture]
    nested = [link for picture, words, _ in _LINK.findall(plain) if not picture for link in pictures(words)]
    return [*found, *nested, *(_html_picture(tag) for tag in _HTML_PICTURE.findall(plain))]


def anchors(text: str) -> Iterator[str]:
    """The fragments that lead into `text`: Jupyter's for its headings, and those written in HTML."""
    for heading in headings(text):
        yield re.sub(r"[`*]", "", heading.text).replace(" ", "-")
    yield from _HTML_ANCHOR.findall(without_code(text))


def slugs(text: str) -> Iterator[str]:
    """The fragments that lead into `text` on a code host: headings in small letters without punctuation, and those in HTML."""
    seen: dict[str, int] = {}
    for heading in headings(text):
        slug = re.sub(r"[^\w\- ]", "", heading.text.lower()).replace(" ", "-")
        seen[slug] = seen.get(slug, -1) + 1
        yield f"{slug}-{seen[slug]}" if seen[slug] else slug
    yield from _HTML_ANCHOR.findall(without_code(text))


def count_words(text: str) -> int:
    """The words one reads: code blocks, link targets, tags and marks left out."""
    plain = _LINK.sub(r"\2", _FENCED.sub("", text))
    return len(re.findall(r"\w[\w'’.,-]*", re.sub(r"<[^>]+>", "", plain)))


def is_external(target: str) -> bool:
    """Whether a link leads out of the course, to the web or to a mail address."""
    return re.match(r"(?:https?|mailto):", target) is not None


def without_code(text: str) -> str:
    """`text` less its code, in blocks and in lines."""
    return _INLINE_CODE.sub("", _FENCED.sub("", text))


def _html_picture(tag: str) -> Link:
    return Link(_attribute(tag, "alt"), _attribute(tag, "src"))


def _attribute(tag: str, name: str) -> str:
    found = re.search(rf"\b{name}=[\"']([^\"']*)[\"']", tag, re.IGNORECASE)
    return found.group(1) if found else ""
