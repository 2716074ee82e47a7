"""Where the links of a page lead on the site."""

import posixpath
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from docutils.nodes import make_id

from course_staff.notebooks import links, markdown

_ANCHORED = re.compile(r'^(#+ )<a id="([\w-]+)"></a>', re.MULTILINE)
_HREF = re.compile(r"(<a\b[^>]*?) href=\"([^\"]+)\"")
STATIC = "_static/"
"""The folder of what only the site has."""
_PAGES_BY_FILE = {"README.md": "index.md"}


def with_named_headings(text: str) -> str:
    """Markdown whose headings have their anchors in Sphinx's way; in HTML's, a table of contents would show an empty link."""
    return _ANCHORED.sub(r"(\2)=\n\1", text)


@dataclass(frozen=True)
class Links:
    """Makes of a link to one of the course's files one to its page.

    Names of `pages` and `files` are relative to `root`, in POSIX form, as in `notebooks/03_adamw.ipynb`; `files` are handed out
    beside the pages, as they are. Any other file of the course is at `source`, an address that ends in "/", if that is not empty.
    """

    root: Path
    pages: Collection[str]
    files: Collection[str]
    source: str = ""

    def target(self, target: str, page: str) -> str:
        """Where a link from `page` to `target` leads on the site; empty where it leads nowhere there."""
        if re.match(r"[a-z]+:", target):
            return target
        file, _, anchor = target.partition("#")
        folder = posixpath.dirname(page)
        name = posixpath.normpath(posixpath.join(folder, unquote(file))) if file else page
        name = _PAGES_BY_FILE.get(name) or next((index for index in self.pages if index.startswith(f"{name}/")), name)
        if name in self.files or name.startswith(STATIC):
            return posixpath.relpath(name, folder)
        if name not in self.pages:
            return self.source and f"{self.source}{name}"
        fragment = f"#{self._id(name, unquote(anchor))}" if anchor else ""
        return f"{posixpath.relpath(PurePosixPath(name).with_suffix('.html'), folder)}{fragment}" if file else fragment

    def in_html(self, text: str, page: str) -> str:
        """HTML of `page` whose links lead where they should; those that would lead nowhere are links no longer."""

        def lead(match: re.Match) -> str:
            target = self.target(match[2], page)
            return f'{match[1]} href="{target}"' if target else match[1]

        return _HREF.sub(lead, text)

    def _id(self, name: str, anchor: str) -> str:
        """The page's own name for an anchor: Sphinx names headings in its own way."""
        if not (self.root / name).is_file():  # a page that only the site has
            return anchor
        names = markdown.anchors if name.endswith(".ipynb") else markdown.slugs
        for _, text in links.prose(self.root / name):
            for heading in markdown.headings(text):
                if anchor in names(f"# {heading.text}"):
                    has_anchor = f'id="{anchor}"' in heading.text
                    return make_id(anchor if has_anchor else re.sub(r"[`*]", "", heading.text))
        return anchor
