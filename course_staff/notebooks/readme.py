"""What the README shows of the chapters: its picture, and badges where Colab can open them."""

import re
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
    plain, place = _BADGE.sub("", text), colab_place(address)
    picture = "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
    return _CHAPTER.sub(lambda found: f"{found[1]} {picture}({place}{found[2]})", plain) if place else plain


def colab_place(address: str) -> str:
    """What a notebook's name is put behind to open it in Colab; empty where `address` is not GitHub's."""
    return files_place(address).replace("https://github.com/", "https://colab.research.google.com/github/")


def files_place(address: str) -> str:
    """What a file's name is put behind to see it there; empty where `address` is not GitHub's."""
    on_github = _GITHUB.match(address)
    return f"https://github.com/{on_github[1]}/blob/{_BRANCH}/" if on_github else ""


def stamp_badges(path: Path, address: str) -> bool:
    """Write today's badges into the README at `path`; True where that changed it."""
    before = path.read_text(encoding="utf-8")
    after = with_badges(before, address)
    if after != before:
        with replacing(path) as draft:
            draft.write_text(after, encoding="utf-8")
    return after != before


def picture_text(path: Path) -> str:
    """What the picture at `path` says that it shows; empty where there is none."""
    from PIL import Image

    if not path.is_file():
        return ""
    with Image.open(path) as picture:
        return picture.text.get(_ABOUT, "")


def stamp_pictures(root: Path) -> list[Path]:
    """Draw the picture anew, light and dark, where the stored rows are not those it shows; the files that changed."""
    from course_staff.notebooks.overview import overview_figure

    rows, changed = stored_rows(root), []
    for paper, place in PICTURES.items():
        figure, alt = overview_figure(rows, paper)
        if picture_text(root / place) != alt:
            with replacing(root / place) as draft:
                figure.savefig(draft, format="png", dpi=144, metadata={"Software": None, _ABOUT: alt})
            changed.append(root / place)
    return changed
