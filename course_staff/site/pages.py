"""From the course's own files to what Sphinx reads: pictures as files, figures to play with as stills, bets marked."""

import base64
import html
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from course_staff.notebooks.files import read_notebook
from course_staff.notebooks.setup_cell import is_setup
from course_staff.site.bets import marks
from course_staff.site.links import STATIC, with_named_headings
from course_utils.errors import CourseError

if TYPE_CHECKING:
    from nbformat import NotebookNode

FIGURES, DOWNLOADS = f"{STATIC}figures", "downloads"
_MINUTES = re.compile(r"^\*\*Time:\*\*", re.MULTILINE)
_STILLS = "In the notebook this figure is interactive. Here are three settings."
_ANSWERS = ' <a href="../cost.md">What will it cost?</a> answers such questions for named models.'
_PLAYS = ("viz.play(", "viz.planner(")


@dataclass(frozen=True)
class Picture:
    """A picture of a page: its file's name under `FIGURES`, what can be seen in it, and its size on the page in pixels."""

    file: str
    alt: str
    width: int
    height: int
    label: str = ""

    def html(self) -> str:
        """An element that a page one folder down can show; a browser loads it when it comes into view."""
        attributes = f'alt="{html.escape(self.alt)}" width="{self.width}" height="{self.height}"'
        path = f"../{FIGURES}/{self.file}"
        image = f'<a class="enlarge" href="{path}"><img class="figure" loading="lazy" src="{path}" {attributes}></a>'
        return f"<figure>{image}<figcaption>{html.escape(self.label)}</figcaption></figure>" if self.label else image


@dataclass(frozen=True)
class Pages:
    """Writes pages of the checkout at `root` into the folder `source`.

    `stills` are the pictures of each chapter's figure to play with, by the notebook's name; `colab` is what such a name is put
    behind to open it there, empty where it cannot be.
    """

    root: Path
    source: Path
    stills: Mapping[str, Sequence[Picture]]
    colab: str = ""

    def write_notebook(self, name: str) -> None:
        """The page of the notebook called `name`, such as `notebooks/03_adamw.ipynb`.

        Raises `CourseError` if a picture does not say what can be seen in it.
        """
        from nbformat import v4

        notebook = read_notebook(self.root / name)
        before, cells = marks(notebook.cells), []
        for place, cell in enumerate(notebook.cells):
            if place in before:
                cells.append(v4.new_markdown_cell(before[place]))
            if cell.cell_type == "code":
                self._set_outputs(cell, name)
                if is_setup(cell):
                    cell.metadata.tags.append("hide-input")  # there is nothing to read in it
            cells.append(cell)
        cells[0].source = _MINUTES.sub(f"{self._buttons(name)}\n\n**Time:**", cells[0].source, count=1)
        notebook.cells = cells
        self.write(name, v4.writes(notebook).encode())

    def write_text(self, name: str) -> None:
        """The page of the Markdown file called `name`, such as `docs/plan.md`."""
        self.write(name, with_named_headings((self.root / name).read_text(encoding="utf-8")).encode())

    def write(self, name: str, content: bytes) -> None:
        """Write any file of the source."""
        write_file(self.source / name, content)

    def _buttons(self, name: str) -> str:
        links = [f'<a href="../{DOWNLOADS}/{name}" download>Download the notebook</a>']
        if self.colab:
            links.append(f'<a href="{self.colab}{name}">Open in Colab</a>')
        return f'<div class="about">{" ".join(links)}</div>'

    def _set_outputs(self, cell: "NotebookNode", name: str) -> None:
        """Pictures become files, and a figure to play with, which has controls beside it, its stills."""
        if name in self.stills and any(play in cell.source for play in _PLAYS):
            first, *others = (picture.html() for picture in self.stills[name])
            of_first = [output for output in cell.outputs if "text/markdown" in output.get("data", {})]
            answers = _ANSWERS * ("viz.planner(" in cell.source)
            first_output = _html_output(f'<div class="stills"><p>{_STILLS}{answers}</p>{first}</div>')
            cell.outputs = [first_output, *of_first, _html_output(f'<div class="stills">{"".join(others)}</div>')]
        for number, output in enumerate(cell.outputs):
            if "image/png" in output.get("data", {}):
                file = f"{Path(name).stem}-{cell.id}-{number}.webp"
                cell.outputs[number] = _html_output(self._picture(output, file, name).html())

    def _picture(self, output: "NotebookNode", file: str, name: str) -> Picture:
        """The same pixels in fewer bytes."""
        from PIL import Image

        metadata = output.metadata.get("image/png", {})
        if not metadata.get("alt"):
            raise CourseError(f"{name} has a picture without a description; show it with viz.show.")
        with Image.open(io.BytesIO(base64.b64decode(output.data["image/png"]))) as image:
            smaller = io.BytesIO()
            image.save(smaller, "webp", lossless=True, method=1)
            height = round(metadata["width"] * image.height / image.width)
        self.write(f"{FIGURES}/{file}", smaller.getvalue())
        return Picture(file, metadata["alt"], metadata["width"], height)


def write_file(path: Path, content: bytes) -> None:
    """Write a file into a folder that is created where it is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _html_output(text: str) -> "NotebookNode":
    from nbformat import v4

    return v4.new_output("display_data", {"text/html": text})
