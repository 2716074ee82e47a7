"""From the course's own files to what Sphinx reads: links as on the site, pictures as files, bets marked."""

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
from course_staff.site.links import Rewriter

if TYPE_CHECKING:
    from nbformat import NotebookNode

FIGURES = "_static/figures"
_MINUTES = re.compile(r"^\*\*Time:\*\* about (?P<time>[^.]+)\.", re.MULTILINE)


@dataclass(frozen=True)
class Picture:
    """A picture of a page: its file's name under `FIGURES`, what can be seen in it, and its size on the page in pixels."""

    file: str
    alt: str
    width: int
    height: int
    label: str = ""

    def html(self) -> str:
        """As an element that a page one folder down can show; a browser loads it when it comes into view."""
        about = f'alt="{html.escape(self.alt)}" width="{self.width}" height="{self.height}"'
        image = f'<img class="figure" loading="lazy" src="../{FIGURES}/{self.file}" {about}>'
        return f"<figure>{image}<figcaption>{html.escape(self.label)}</figcaption></figure>" if self.label else image


@dataclass(frozen=True)
class Pages:
    """Writes pages into the folder `source`; `stills` are the pictures of each chapter's figure to play with."""

    rewriter: Rewriter
    source: Path
    stills: Mapping[str, Sequence[Picture]]
    colab: str = ""

    def write_notebook(self, name: str) -> None:
        """The page of the notebook called `name`, such as `notebooks/03_adamw.ipynb`."""
        from nbformat import v4

        notebook = read_notebook(self.rewriter.root / name)
        before, cells = marks(notebook.cells), []
        for place, cell in enumerate(notebook.cells):
            if place in before:
                cells.append(v4.new_markdown_cell(before[place]))
            if cell.cell_type == "markdown":
                cell.source = self.rewriter.rewrite(cell.source, name)
            else:
                if is_setup(cell):
                    cell.metadata.tags.append("hide-input")  # there is nothing to read in it
                self._set_outputs(cell, name)
            cells.append(cell)
        title = cells[0]
        title.source = _MINUTES.sub(lambda found: f"{self._about(name)}\n\n{found[0]}", title.source, count=1)
        notebook.cells = cells
        self._write(name, v4.writes(notebook))

    def write_text(self, name: str) -> None:
        """The page of the Markdown file called `name`, such as `docs/plan.md`."""
        self._write(name, self.rewriter.rewrite((self.rewriter.root / name).read_text(encoding="utf-8"), name))

    def _write(self, name: str, text: str) -> None:
        path = self.source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def _about(self, name: str) -> str:
        file = Path(name).name
        links = [f'<a href="../downloads/{name}" download="{file}">Download the notebook</a>']
        if self.colab:
            links.append(f'<a href="{self.colab}{name}">Open in Colab</a>')
        return f'<div class="about">{" ".join(links)}</div>'

    def _set_outputs(self, cell: "NotebookNode", name: str) -> None:
        """Pictures become files, and a figure to play with, which has controls beside it, its stills."""
        if "viz.play(" in cell.source or "viz.planner(" in cell.source:
            shown = "".join(picture.html() for picture in self.stills[name])
            tables = [output for output in cell.outputs if "text/markdown" in output.get("data", {})]
            cell.outputs = [_html_output(f'<div class="stills">{shown}</div>'), *tables]
        for number, output in enumerate(cell.outputs):
            data = output.get("data", {})
            if "image/png" in data:
                about, file = output.metadata["image/png"], f"{Path(name).stem}-{cell.id}-{number}.webp"
                picture = self._picture(base64.b64decode(data["image/png"]), file, about["alt"], about["width"])
                cell.outputs[number] = _html_output(picture.html())
            elif "text/html" in data:
                data["text/html"] = self.rewriter.rewrite(data["text/html"], name)

    def _picture(self, png: bytes, file: str, alt: str, width: int) -> Picture:
        """The same pixels in fewer bytes."""
        from PIL import Image

        path = self.source / FIGURES / file
        with Image.open(io.BytesIO(png)) as image:
            image.save(path, lossless=True, method=1)
            return Picture(file, alt, width, round(width * image.height / image.width))


def _html_output(text: str) -> "NotebookNode":
    from nbformat import v4

    return v4.new_output("display_data", {"text/html": text})
