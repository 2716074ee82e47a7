"""What the README shows: its pictures, the address to clone, and badges where Colab can open the chapters."""

import re
from functools import partial
from pathlib import Path

from course_staff.notebooks.files import edit_text
from course_staff.notebooks.stored import stored_rows
from course_utils.files import atomic_write

PICTURES = {
    name: {"light": f"docs/{name}.png", "dark": f"docs/{name}_dark.png"} for name in ("one_step", "predicted_measured")
}
"""The paths of each picture, by name and theme."""
_BRANCH = "main"
_GITHUB = re.compile(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?$")
_BADGE = re.compile(r" \[!\[Open in Colab\]\([^)]*\)\]\([^)]*\)")
_CLONE = re.compile(r"^git clone \S+", re.MULTILINE)
_UNKNOWN = "ADDRESS-OF-THIS-REPOSITORY"
_CHAPTER = re.compile(r"^(\|[^|]*\| *\[[^\]]*\]\((notebooks/[^)]+\.ipynb)\))", re.MULTILINE)
_ALT_KEY = "Description"


def with_address(text: str, address: str) -> str:
    """`text` with the line that clones from `address`, and with a badge behind each chapter where Colab can open it.

    Colab opens notebooks of GitHub alone: beside any other address a badge would lead nowhere.
    """
    plain = _CLONE.sub(lambda _: f"git clone {address or _UNKNOWN}", _BADGE.sub("", text))
    prefix = colab_place(address)
    picture = "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
    return _CHAPTER.sub(lambda match: f"{match[1]} {picture}({prefix}{match[2]})", plain) if prefix else plain


def colab_place(address: str) -> str:
    """What a notebook's name is put behind to open it in Colab; empty where `address` is not GitHub's."""
    return files_place(address).replace("https://github.com/", "https://colab.research.google.com/github/")


def files_place(address: str) -> str:
    """What a file's name is put behind to see it there; empty where `address` is not GitHub's."""
    on_github = _GITHUB.match(address)
    return f"https://github.com/{on_github[1]}/blob/{_BRANCH}/" if on_github else ""


def stamp_address(path: Path, address: str) -> bool:
    """Write what follows from `address` into the README at `path`; True where that changed it."""
    return edit_text(path, lambda text: with_address(text, address))


def picture_text(path: Path) -> str:
    """What the picture at `path` says that it shows; empty where there is none."""
    from PIL import Image

    if not path.is_file():
        return ""
    with Image.open(path) as picture:
        return picture.text.get(_ALT_KEY, "")


def stamp_pictures(root: Path) -> list[Path]:
    """Redraw a picture, light and dark, if a step or the stored rows say something else today; returns what changed."""
    from course_staff.documents.ledger_picture import ledger_figure
    from course_staff.documents.one_step import one_step_figure

    draw = {"one_step": one_step_figure, "predicted_measured": partial(ledger_figure, stored_rows(root))}
    redrawn = []
    for name, places in PICTURES.items():
        for theme, path in places.items():
            figure, alt = draw[name](theme=theme)
            if picture_text(root / path) != alt:
                with atomic_write(root / path) as draft:
                    figure.savefig(draft, format="png", dpi=144, metadata={"Software": None, _ALT_KEY: alt})
                redrawn.append(root / path)
    return redrawn
