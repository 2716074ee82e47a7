"""Building the site."""

import io
import re
import shutil
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

from course_staff.documents.readme import PICTURES, colab_place, files_place, picture_text, with_address
from course_staff.site import cost_tables
from course_staff.site.cards import draw_card
from course_staff.site.pages import DOWNLOADS, FIGURES, Pages, write_file
from course_staff.site.stills import FOLDER, PICTURES_FILE, load_stills
from course_utils import models
from course_utils.desk.workspace import without_outputs
from course_utils.errors import CourseError
from course_utils.files import Place
from course_utils.hardware import MACHINES

_FOLDER = Path(__file__).parent
_GUIDES = (
    *("plan", "accuracy", "package", "train", "nodes", "died", "weekend", "glossary", "commands"),
    *("instructors", "demos", "authors", "trial"),
)
_FILES = (
    *("docs/decision_guide.pdf", "docs/decision_guide.svg"),
    *("docs/teaching/Containerfile", "docs/teaching/classroom.yml"),
)
_ROW = re.compile(
    r"^\| (?P<number>\S+) \| \[(?P<title>[^\]]+)\]\((?P<name>notebooks/[^)]+)\)[^|]*\| (?P<will>[^|]+) \|", re.MULTILINE
)
_BUILD_INFO = ".buildinfo"  # a file that Sphinx writes into whatever it has built
# What unfolds a part of the contents has no name for a screen reader, and gets one.
_NAMELESS = '<summary><span class="toctree-toggle"', '<summary aria-label="Pages below it"><span class="toctree-toggle"'
_ICONS = re.compile(r"<script[^>]*fontawesome\.js[^>]*></script>|<link[^>]*fontawesome\.js[^>]*>")
_TITLE = "Efficient model training with PyTorch"
_IDEA = "Predict the bytes and the seconds, measure them on your own machine, explain the difference."


def pages_of(root: Path) -> list[str]:
    """The course's files that become pages, in the order in which they are read; names relative to `root`."""
    folders = ("notebooks", "exercises")
    notebooks = [f"{folder}/{path.name}" for folder in folders for path in sorted((root / folder).glob("*.ipynb"))]
    return [*notebooks, *(f"docs/{name}.md" for name in _GUIDES)]


def build(place: Place, output: Path, repository: str = "", address: str = "") -> list[str]:
    """Build the site of the checkout at `place` into the folder `output`; returns Sphinx's warnings, a line each.

    `repository` is the course's address on a code host, for links to its files and to Colab; `address` that of the site itself,
    ending in "/", for the pictures that others show with a link to it. Either may be empty. A site that is there already is
    replaced once the new one is built. Raises `CourseError` where `output` is a folder with other things in it.
    """
    from sphinx.application import Sphinx

    is_other_folder = output.is_dir() and any(output.iterdir()) and not (output / _BUILD_INFO).is_file()
    if output.is_file() or is_other_folder:
        raise CourseError(f"{output} contains files that are not a site and would be lost; name a new or empty folder.")
    names, warnings = pages_of(place.root), io.StringIO()
    with TemporaryDirectory() as folder:
        source, site = Path(folder, "source"), Path(folder, "site")
        cards = _write_sources(place.root, source, names, repository)
        notebooks = [name for name in names if name.endswith(".ipynb")]
        handed_out = {f"{DOWNLOADS}/{name}": without_outputs(place.root / name) for name in notebooks}
        handed_out |= {name: (place.root / name).read_bytes() for name in _FILES}
        pages = [*names, "index.md", "cost.md", *_cost_pages()]
        links = {"root": str(place.root), "pages": pages, "files": [*handed_out], "source": files_place(repository)}
        static = [str(source / "_static")]
        settings = {"html_baseurl": address, "html_static_path": static, "course_cards": cards, "course_links": links}
        doctrees = str(Path(folder, "doctrees"))
        Sphinx(source, _FOLDER, site, doctrees, "html", settings, status=None, warning=warnings, parallel=3).build()
        for name, content in handed_out.items():
            write_file(site / name, content)
        _lighten(site)
        if output.exists():
            shutil.rmtree(output)
        shutil.copytree(site, output)
    return [re.sub(r"\x1b\[[\d;]*m", "", line) for line in warnings.getvalue().splitlines()]


def _lighten(site: Path) -> None:
    """Drop maps for the theme's authors and a script that draws the icons which its fonts draw too; name what is nameless."""
    for surplus in {*site.rglob("*.map"), *site.rglob("fontawesome.js*")}:
        surplus.unlink()
    for page in site.rglob("*.html"):
        text = _ICONS.sub("", page.read_text(encoding="utf-8"))
        page.write_text(text.replace(*_NAMELESS), encoding="utf-8")


def _write_sources(root: Path, source: Path, names: list[str], repository: str) -> dict[str, tuple[str, str]]:
    """Write all that Sphinx reads into the folder `source`; returns the preview picture and line of each page with its own."""
    shutil.copytree(_FOLDER / "static", source / "_static")
    shutil.copytree(FOLDER, source / FIGURES, ignore=shutil.ignore_patterns(PICTURES_FILE))
    stills = {name: load_stills(Path(name).stem) for name in names if name.startswith("notebooks/")}
    pages = Pages(root, source, stills, colab_place(repository))
    for name in names:
        if name.endswith(".ipynb"):
            pages.write_notebook(name)
        else:
            pages.write_text(name)
    for picture in (place for places in PICTURES.values() for place in places.values()):
        pages.write(f"_static/{Path(picture).name}", (root / picture).read_bytes())
    readme = with_address((root / "README.md").read_text(encoding="utf-8"), "")  # badges are pictures of another's
    pages.write("index.md", _render("index.md.j2", **_first_page(root, names, readme), repository=repository).encode())
    pages.write("cost.md", _render("cost.md.j2", models=cost_tables.MODELS).encode())
    for name, model in _cost_pages().items():
        pages.write(name, _render("cost_of_model.md.j2", **_cost(model)).encode())
    return dict(_draw_cards(readme, source / "_static"))


def _render(template: str, **values) -> str:
    from jinja2 import Environment, FileSystemLoader

    templates = Environment(loader=FileSystemLoader(_FOLDER / "templates"), keep_trailing_newline=True)
    return templates.get_template(template).render(values)


def _first_page(root: Path, names: list[str], readme: str) -> dict:
    """The values that the first page's template shows."""
    chapters = re.search(r"^\|.*?(?=\n\n)", readme, re.MULTILINE | re.DOTALL)[0]
    return {
        "asked": re.search(r"```console\n\$ (course plan .*\n(?:.+\n)+?)```", readme)[1],
        "model": cost_tables.MODELS[0],
        "models": cost_tables.MODELS[1:],
        "chapters": chapters.replace(", without exercises", ""),
        "pictures": {name: _picture_tags(root, places) for name, places in PICTURES.items()},
        "titles": {page: f"{row['number']} {row['title']}" for page, row in _rows(readme)},
        "pages": [name.rpartition(".")[0] for name in names],
    }


def _cost_pages() -> dict[str, str]:
    """The models' pages, and which model each is of."""
    return {f"cost/{model}.md": model for model in cost_tables.MODELS}


def _cost(model: str) -> dict:
    """What the template of a model's page shows."""
    lengths = cost_tables.lengths_of(model)
    return {
        "model": model,
        "lengths": lengths,
        "batches": cost_tables.BATCHES,
        "cards": MACHINES.values(),
        "tables": [(s, b, cost_tables.rows_of(model, b, s)) for s in lengths for b in cost_tables.BATCHES],
        "source": models.PUBLIC[model].source,
    }


def _picture_tags(root: Path, places: Mapping[str, str]) -> str:
    """The picture of each theme, at half its size in pixels; the theme shows its own."""
    from PIL import Image

    with Image.open(root / places["light"]) as picture:
        size = f'width="{picture.width // 2}" height="{picture.height // 2}"'
    alt = escape(picture_text(root / places["light"]))
    tags = (
        f'<img class="only-{theme} wide" src="_static/{Path(place).name}" alt="{alt}" {size}>'
        for theme, place in places.items()
    )
    return "\n".join(tags)


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
