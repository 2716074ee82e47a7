"""What a demo showed when it ran last, so that the next start shows it at once, while a kernel runs it again."""

import hashlib
import json
import sys
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING

import course_utils
from course_utils.files import read_json, write_json

if TYPE_CHECKING:
    from nbformat import NotebookNode

_VIEW = "application/vnd.jupyter.widget-view+json"


def digest(notebook: "NotebookNode") -> str:
    """Of all that the outputs follow from: the presentation, the course's code, Python and every package's version."""
    cells = [(cell.cell_type, cell.source, cell.metadata) for cell in notebook.cells]
    packages = sorted((each.name, each.version) for each in distributions())
    made_from = hashlib.sha256(json.dumps([cells, notebook.metadata, packages, sys.version], sort_keys=True).encode())
    for folder in (Path(course_utils.__file__).parent, Path(__file__).parent):
        for path in sorted(folder.rglob("*.py")):
            made_from.update(path.read_bytes())
    return made_from.hexdigest()


def keep(path: Path, made_from: str, cells: Sequence["NotebookNode"]) -> None:
    """Store what `cells` gave; where one of them failed, or nothing can be written, the next start does without."""
    outputs = [[_still(output) for output in cell.get("outputs", ()) if _stays(output)] for cell in cells]
    if not any(output["output_type"] == "error" for of_cell in outputs for output in of_cell):
        write_json(path, {"made_from": made_from, "outputs": outputs})


def recall(path: Path, made_from: str, notebook: "NotebookNode") -> "NotebookNode | None":
    """A copy of `notebook` with the outputs that are kept at `path`; None where there are none, or they were made from
    something else."""
    from nbformat import from_dict

    performance = read_json(path, lambda value: value if value["made_from"] == made_from else {})
    if not performance or len(performance["outputs"]) != len(notebook.cells):
        return None
    filled = from_dict(notebook)
    for cell, outputs in zip(filled.cells, performance["outputs"], strict=True):
        if cell.cell_type == "code":
            cell.outputs = [from_dict(output) for output in outputs]
    return filled


def _stays(output: dict) -> bool:
    """Controls and buttons are nothing without the kernel that they were made by, nor is what names them."""
    metadata = output.get("metadata", {})
    return "demo" in metadata or (_VIEW not in output.get("data", {}) and metadata.get("course") != "live")


def _still(output: dict) -> dict:
    """Without the view of a widget, which names a model of a kernel that will be gone."""
    if "data" not in output:
        return dict(output)
    return {**output, "data": {kind: value for kind, value in output["data"].items() if kind != _VIEW}}
