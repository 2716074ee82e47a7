"""Building the site."""

import io
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from course_staff.notebooks.readme import BRANCH, PICTURES, colab_place, picture_text
from course_staff.site import planner
from course_staff.site.cards import draw_card
from course_staff.site.links import Rewriter
from course_staff.site.pages import FIGURES, Pages
from course_staff.site.stills import FOLDER, KEPT, stored
from course_utils.chapters import Place
from course_utils.errors import CourseError
from course_utils.hardware import MACHINES
from course_utils.workspace import without_outputs

_HERE = Path(__file__).parent
_GUIDES = (
    *("plan", "accuracy", "package", "train", "nodes", "died", "glossary", "commands"),
    *("instructors", "demos", "authors"),
)
_FILES = (
    *("docs/decision_guide.pdf", "docs/decision_guide.svg"),
    *("docs/teaching/Containerfile", "docs/teaching/classroom.yml"),
)
_ROW = re.compile(
    r"^\| (?P<number>\S+) \| \[(?P<title>[^\]]+)\]\((?P<name>notebooks/[^)]+)\)[^|]*\| (?P<will>[^|]+) \|", re.MULTILINE
)
_OURS = ".buildinfo"
"""A file that Sphinx writes into whatever it has built."""
_ICONS = re.compile(r"<script[^>]*fontawesome\.js[^>]*></script>|<link[^>]*fontawesome\.js[^>]*>")
_PLANNER = "Will it fit? The planner"
_PLANNER_ASKS = (
    "Will your training fit on the card that you have? Choose a model, a card and a recipe. This page works the answer out from "
    "formulas that `course plan` found by dry runs; nothing is sent anywhere. The address holds your question, so you can share "
    "the answer."
)
_TITLE = "Efficient model training with PyTorch"
_IDEA = "Predict the bytes and the seconds, measure them on your own machine, explain the difference."


def pages_of(root: Path) -> list[str]:
    """The course's files that become pages, in the order in which they are read; names relative to `root`."""
    folders = ("notebooks", "exercises")
    notebooks = [f"{folder}/{path.name}" for folder in folders for path in sorted((root / folder).glob("*.ipynb"))]
    return [*notebooks, *(f"docs/{name}.md" for name in _GUIDES)]


def build(place: Place, output: Path, repository: str = "", address: str = "") -> list[str]:
    """Build the site of the checkout at `place` into the folder `output`; what Sphinx warns of, a line each.

    `repository` is the course's address on a code host, for links to its files and to Colab; `address` that of the site itself,
    ending in "/", for the pictures that others show with a link to it. Either may be empty.
    """
    from sphinx.application import Sphinx

    if output.exists() and any(output.iterdir()) and not (output / _OURS).is_file():
        raise CourseError(f"{output} holds other things than a site, which would be lost; name a new or empty folder.")
    root, between = place.root, place.root / "build" / "site-source"
    for folder in (between, output):
        shutil.rmtree(folder, ignore_errors=True)
    cards = _write_sources(root, between, repository)
    warnings = io.StringIO()
    given = {"html_baseurl": address, "html_static_path": [str(between / "_static")], "course_cards": cards}
    Sphinx(between, _HERE, output, root / "build" / "site-doctrees", "html", given, None, warnings, parallel=2).build()
    for name in pages_of(root):
        if name.endswith(".ipynb"):
            _write(output / "downloads" / name, without_outputs(root / name))
    for name in _FILES:
        _write(output / name, (root / name).read_bytes())
    _lighten(output)
    return [re.sub(r"\x1b\[[\d;]*m", "", line) for line in warnings.getvalue().splitlines()]


def _lighten(output: Path) -> None:
    """Drop what no reader needs: maps for the theme's authors, and a script that draws the icons which its fonts draw too."""
    for surplus in {*output.rglob("*.map"), *output.rglob("fontawesome.js*")}:
        surplus.unlink()
    for page in output.rglob("*.html"):
        page.write_text(_ICONS.sub("", page.read_text(encoding="utf-8")), encoding="utf-8")


def _write_sources(root: Path, source: Path, repository: str) -> dict[str, tuple[str, str]]:
    """All that Sphinx reads, in the folder `source`; of some pages a preview picture of their own and what it says."""
    names = pages_of(root)
    elsewhere = f"{repository}/blob/{BRANCH}/" if repository else ""
    rewriter = Rewriter(root, frozenset(names), frozenset(_FILES), elsewhere)
    shutil.copytree(_HERE / "static", source / "_static")
    stills = {name: stored(Path(name).stem) for name in names if name.startswith("notebooks/")}
    shutil.copytree(FOLDER, source / FIGURES, ignore=shutil.ignore_patterns(KEPT))
    pages = Pages(rewriter, source, stills, colab_place(repository))
    for name in names:
        (pages.write_notebook if name.endswith(".ipynb") else pages.write_text)(name)
    for picture in PICTURES.values():
        _write(source / "_static" / Path(picture).name, (root / picture).read_bytes())
    planner.write(source / "_static")
    readme = (root / "README.md").read_text(encoding="utf-8")
    _write(source / "planner.md", _planner_page().encode())
    _write(source / "index.md", _first_page(root, names, rewriter, readme).encode())
    return dict(_draw_cards(readme, source / "_static"))


def _planner_page() -> str:
    body = (_HERE / "pages" / "planner.html").read_text(encoding="utf-8")
    return f"# {_PLANNER}\n\n{_PLANNER_ASKS}\n\n```{{raw}} html\n{body}\n```\n"


def _first_page(root: Path, names: list[str], rewriter: Rewriter, readme: str) -> str:
    from jinja2 import Template
    from PIL import Image

    with Image.open(root / PICTURES["light"]) as picture:
        size = {"width": picture.width // 2, "height": picture.height // 2}
    template = Template((_HERE / "pages" / "index.md.j2").read_text(encoding="utf-8"), keep_trailing_newline=True)
    return template.render(
        models=list(planner.MODELS),
        cards=list(MACHINES),
        model="llama-3.1-8b",
        card="RTX 4090",
        chapters=rewriter.rewrite(re.search(r"^\|.*?(?=\n\n)", readme, re.MULTILINE | re.DOTALL)[0], "README.md"),
        pictures={theme: Path(name).name for theme, name in PICTURES.items()},
        alt=picture_text(root / PICTURES["light"]).replace('"', "'"),
        titles={page: f"{row['number']} {row['title']}" for page, row in _rows(readme)},
        pages=[name.rpartition(".")[0] for name in names],
        **size,
    )


def _rows(readme: str) -> Iterator[tuple[str, re.Match]]:
    """The chapters' rows in the README, by their pages."""
    return ((row["name"].removesuffix(".ipynb"), row) for row in _ROW.finditer(readme))


def _draw_cards(readme: str, static: Path) -> Iterator[tuple[str, tuple[str, str]]]:
    yield "index", ("cards/course.png", _IDEA)
    draw_card(_TITLE, _IDEA, static / "cards" / "course.png")
    for page, row in _rows(readme):
        file = f"cards/{Path(page).name}.png"
        line = f"You will {row['will']}."
        draw_card(row["title"], line, static / file)
        yield page, (file, line)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
