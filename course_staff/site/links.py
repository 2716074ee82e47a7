"""Where the links of a page lead on the site."""

import posixpath
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from docutils.nodes import make_id

from course_staff.notebooks import links, markdown

_ANCHORED = re.compile(r'^(#+ )<a id="([\w-]+)"></a>', re.MULTILINE)
# Code is passed over, but a link's text may hold some; a picture begins with "!".
_LINK = re.compile(
    r"^(?P<fence>```|~~~).*?^(?P=fence)[ \t]*$"
    r"|(?<!!)\[(?P<text>(?:`[^`\n]+`|[^\[\]`]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)(?P<title>\s+\"[^\"]*\")?\)"
    r"|<(?P<tag>(?:a|img)\b[^>]*?\b(?:href|src))=\"(?P<place>[^\"]+)\""
    r"|`[^`\n]+`",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Rewriter:
    """Makes of a link to one of the course's files one to its page; `files` are handed out beside the pages, as they are.

    Names are relative to `root`, in POSIX form, as in `notebooks/03_adamw.ipynb`. A link to any other file of the course leads to
    the repository, at `source` (an address that ends in "/"), or where that is empty it becomes plain text.
    """

    root: Path
    pages: Collection[str]
    files: Collection[str]
    source: str = ""

    def rewrite(self, text: str, page: str) -> str:
        """The Markdown of `page` with its links as they are on the site; code stays as it is."""
        text = _ANCHORED.sub(r"(\2)=\n\1", text)  # Sphinx's way to name a heading

        def lead(found: re.Match) -> str:
            if found["place"]:
                return f'<{found["tag"]}="{self.target(found["place"], page)}"'
            if not found["target"]:
                return found[0]
            target = self.target(found["target"], page)
            return f"[{found['text']}]({target}{found['title'] or ''})" if target else found["text"]

        return _LINK.sub(lead, text)

    def target(self, target: str, page: str) -> str:
        """Where a link from `page` to `target` leads on the site; empty where it leads nowhere there."""
        if re.match(r"[a-z]+:", target):
            return target
        file, _, anchor = target.partition("#")
        name = posixpath.normpath(posixpath.join(posixpath.dirname(page), file)) if file else page
        if name not in self.pages:
            return (
                posixpath.relpath(name, posixpath.dirname(page))
                if name in self.files
                else f"{self.source}{name}" * bool(self.source)
            )
        fragment = f"#{self._id(name, anchor)}" if anchor else ""
        there = posixpath.relpath(PurePosixPath(name).with_suffix(".html"), posixpath.dirname(page))
        return f"{there}{fragment}" if file else fragment

    def _id(self, name: str, anchor: str) -> str:
        """The page's own name for an anchor: Sphinx names headings in its own way."""
        names = markdown.anchors if name.endswith(".ipynb") else markdown.slugs
        for _, text in links.prose(self.root / name):
            for heading in markdown.headings(text):
                if anchor in names(f"# {heading.text}"):
                    given = f'id="{anchor}"' in heading.text
                    return make_id(anchor if given else re.sub(r"[`*]", "", heading.text))
        return anchor
