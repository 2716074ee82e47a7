"""What the README shows of the chapters: its picture, and badges where Colab can open them."""

import re
from collections.abc import Iterator
from pathlib import Path

from course_staff.notebooks.stored import stored_rows
from course_utils.files import replacing

PICTURES = {"light": "docs/predicted_measured.png", "dark": "docs/predicted_measured_dark.png"}
_BRANCH = "main"
_GITHUB = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?$")
_BADGE = re.compile(r" \[!\[Open in Colab\]\([^)]*\)\]\([^)]*\)")
_CHAPTER = re.compile(r"^(\|[^|]*\| *\[[^\]]*\]\((notebooks/[^)]+\.ipynb)\))", re.MULTILINE)
_ABOUT = "Description"


def with_badges(text: str, address: str) -> str:
    """`text` with a badge behind each chapter in a table's second column, where `address` is GitHub's, and none elsewhere.

    Colab opens notebooks of GitHub alone: beside any other address a badge would lead nowhere.
    """
    plain = _BADGE.sub("", text)
    on_github = _GITHUB.match(address)
    return _CHAPTER.sub(lambda found: found[1] + _badge(on_github[1], found[2]), plain) if on_github else plain


def stamp_badges(path: Path, address: str) -> bool:
    """Write today's badges into the README at `path`; True where that changed it."""
    before = path.read_text(encoding="utf-8")
    after = with_badges(before, address)
    if after != before:
        with replacing(path) as draft:
            draft.write_text(after, encoding="utf-8")
    return after != before


def described_picture(root: Path) -> str:
    """What the picture of the checkout at `root` should show: all it holds, in words."""
    from course_staff.notebooks.overview import overview_figure

    return overview_figure(stored_rows(root / "notebooks"))[1]


def picture_text(path: Path) -> str:
    """What the picture at `path` says that it shows; empty where there is none."""
    texts = (content for kind, content in _chunks(path) if kind == b"tEXt") if path.is_file() else ()
    named = (text.decode("latin-1").partition("\0") for text in texts)
    return next((text for name, _, text in named if name == _ABOUT), "")


def _chunks(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Kind and content of the parts of a PNG file: each is its length, its kind, its content and a checksum."""
    content, place = path.read_bytes(), 8
    while place < len(content):
        length = int.from_bytes(content[place : place + 4], "big")
        yield content[place + 4 : place + 8], content[place + 8 : place + 8 + length]
        place += 12 + length


def stamp_pictures(root: Path) -> list[Path]:
    """Draw the picture anew, light and dark, where the stored rows are not those it shows; the files that changed."""
    from course_staff.notebooks.overview import overview_figure

    rows, changed = stored_rows(root / "notebooks"), []
    for paper, place in PICTURES.items():
        figure, alt = overview_figure(rows, paper)
        if picture_text(root / place) != alt:
            with replacing(root / place) as draft:
                figure.savefig(draft, format="png", dpi=144, metadata={"Software": None, _ABOUT: alt})
            changed.append(root / place)
    return changed


def _badge(repository: str, notebook: str) -> str:
    picture = "https://colab.research.google.com/assets/colab-badge.svg"
    return f" [![Open in Colab]({picture})](https://colab.research.google.com/github/{repository}/blob/{_BRANCH}/{notebook})"
