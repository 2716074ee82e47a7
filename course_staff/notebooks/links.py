"""Where the links of a text lead: to a file and heading of the course, or by an address that is at least well formed.

Nothing is fetched. Addresses that the course reads by program, or names as examples, are written as code, not as links.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from course_staff.notebooks import markdown
from course_staff.notebooks.files import read_notebook

_ADDRESS = re.compile(r"\bhttps?://[^\s<>\"'`)\]]+")
_SPLIT_LINK = re.compile(r"\]\(([^()\n\"]*?\s[^()\n\"]*)\)")
_HOST = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)+[a-z]{2,}")
_ARXIV = re.compile(r"/abs/\d\d(?:0[1-9]|1[0-2])\.\d{4,5}")
_PLACEHOLDER = ("TODO", "FIXME", "XXX", "...", "…")


def documents_in(root: Path) -> list[Path]:
    """The pages besides the chapters whose links are read: guides, and the notebooks of the exercises."""
    folders = [root, *(root / name for name in ("docs", "solutions", "exercises"))]
    return [path for folder in folders for kind in ("*.md", "*.ipynb") for path in sorted(folder.glob(kind))]


def dead_links(path: Path, text: str, attachments: frozenset[str] = frozenset()) -> Iterator[str]:
    """A sentence for every link in `text`, prose of the document at `path`, that leads nowhere or cannot lead anywhere.

    `attachments` are the names of files that the notebook's cells carry.
    """
    plain = markdown.without_code(text)
    yield from (f"the link to {target!r} has a space in it; write %20." for target in _SPLIT_LINK.findall(plain))
    targets = {*markdown.links(text), *(picture.target for picture in markdown.pictures(text))}
    for target in sorted(targets):
        if not re.match(r"(?:https?|mailto):", target) and not _leads_somewhere(path, target, attachments):
            yield f"the link to {target} leads nowhere; correct or remove it."
    addresses = _ADDRESS.findall("\n".join([plain, *targets]))
    for address in sorted({address.rstrip(".,;:!?") for address in addresses}):
        if reason := _what_is_wrong(address):
            yield f"the address {address} {reason}."


def _what_is_wrong(address: str) -> str | None:
    parts = urlsplit(address)
    if parts.hostname == "127.0.0.1":  # this very machine
        return None
    if parts.scheme != "https":
        return "is not read over https"
    if not _HOST.fullmatch(parts.hostname or ""):
        return "has no host that could answer"
    if any(mark in address for mark in _PLACEHOLDER):
        return "is not written out"
    if parts.hostname.endswith("arxiv.org") and not (parts.netloc == "arxiv.org" and _ARXIV.fullmatch(parts.path)):
        return "is not a paper's page at arXiv, as in https://arxiv.org/abs/1711.05101"
    return None


def prose(path: Path) -> list[tuple[int, str]]:
    """The texts of a document with their numbers: a notebook's Markdown cells, or a whole file of Markdown as number 0."""
    if path.suffix != ".ipynb":
        return [(0, path.read_text(encoding="utf-8"))]
    cells = enumerate(read_notebook(path)["cells"], start=1)
    return [(number, cell["source"]) for number, cell in cells if cell["cell_type"] == "markdown"]


def _leads_somewhere(path: Path, target: str, attachments: frozenset[str]) -> bool:
    if target.startswith("attachment:"):
        return target.removeprefix("attachment:") in attachments
    file, _, anchor = target.partition("#")
    linked_path = path.parent / unquote(file) if file else path
    if not linked_path.exists():
        return False
    if not anchor or linked_path.suffix not in (".ipynb", ".md"):
        return True
    # In JupyterLab a notebook's headings are named otherwise than those of Markdown on a code host.
    anchors = markdown.anchors if linked_path.suffix == ".ipynb" else markdown.slugs
    return any(unquote(anchor) in anchors(text) for _, text in prose(linked_path))
