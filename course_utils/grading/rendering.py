"""HTML from the templates of this room, and from those of another that build on them."""

import html
import re
import unicodedata
from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from jinja2.filters import do_mark_safe


def render(template: str, extra_folder: Path | None = None, **values) -> str:
    """The text of a template of this room, or of `extra_folder`.

    Every value is escaped. Filters: `code` marks what is between back-ticks, and `printable`.
    """
    folders = [Path(__file__).parent / "templates", *([extra_folder] if extra_folder else [])]
    pages = Environment(loader=FileSystemLoader(folders), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    pages.filters["printable"] = printable
    pages.filters["code"] = lambda text: do_mark_safe(re.sub(r"`([^`\n]+)`", r"<code>\1</code>", html.escape(text)))
    return pages.get_template(template).render(**values)


def printable(text: str) -> str:
    """The text without control characters, which could command a terminal or reverse a line's direction."""
    unprintable = "Cc", "Cf", "Cs"
    return "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in unprintable else c for c in text)
