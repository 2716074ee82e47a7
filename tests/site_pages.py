"""What the pages of a built site are made of."""

import re
from functools import cached_property
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from bs4 import BeautifulSoup

ROOT = Path(__file__).parents[1]
_URL = re.compile(r"url\(\s*[\"']?([^\"')]+)[\"']?\s*\)")


class Link(NamedTuple):
    """Something that a page asks for or leads to; `path` is the file, `anchor` the place in it."""

    page: Path
    target: str
    path: Path | None
    anchor: str


class Page:
    """One page of the built site."""

    def __init__(self, path: Path):
        self.path = path

    @cached_property
    def soup(self) -> BeautifulSoup:
        return BeautifulSoup(self.path.read_text(encoding="utf-8"), "html.parser")

    def links(self) -> list[Link]:
        return [self._link(link["href"]) for link in self.soup.select("a[href]")]

    def assets(self) -> list[Link]:
        """Scripts, styles and pictures, which a browser fetches by itself; those that carry their bytes are left out."""
        addresses = [tag["src"] for tag in self.soup.select("script[src], img[src], iframe[src], source[src]")]
        kinds = {"stylesheet", "icon", "preload"}
        addresses += [link["href"] for link in self.soup.select("link[href]") if kinds & {*link["rel"]}]
        return [self._link(address) for address in addresses if not address.startswith("data:")]

    def ids(self) -> set[str]:
        return {tag.get("id") or tag.get("name") for tag in self.soup.select("[id], a[name]")}

    def _link(self, target: str) -> Link:
        parts = urlsplit(target)
        if parts.scheme or parts.netloc:
            return Link(self.path, target, None, parts.fragment)
        path = (self.path.parent / unquote(parts.path)).resolve() if parts.path else self.path
        return Link(self.path, target, path, unquote(parts.fragment))


def pages_in(site: Path) -> list[Page]:
    return [Page(path) for path in sorted(site.rglob("*.html")) if "_static" not in path.parts]


def addresses_in(style: Path) -> list[str]:
    return [address for address in _URL.findall(style.read_text(encoding="utf-8")) if not address.startswith("data:")]
