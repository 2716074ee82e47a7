"""The figures to play with, as their chapters have them: what their cells need, what they are drawn from, their controls."""

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from course_staff.demos.needs import uses_and_binds

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
CHAPTERS = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))


class Play(NamedTuple):
    """What `viz.play` was given: the functions that draw, and the controls by argument."""

    draw: Callable
    also: Callable | None
    controls: dict


def stored(chapter: str) -> dict:
    """The chapter's notebook as plain JSON, each cell's source in one piece."""
    notebook = json.loads((NOTEBOOKS / f"{chapter}.ipynb").read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        cell["source"] = "".join(cell["source"])
    return notebook


def play_cells(cells: list[dict]) -> list[dict]:
    """The code cells of the section Play."""
    inside, found = False, []
    for cell in cells:
        if cell["cell_type"] == "markdown":
            titles = re.findall(r"^## (.+)$", cell["source"], re.MULTILINE)
            inside = titles[-1] == "Play" if titles else inside
        elif inside:
            found.append(cell)
    return found


def needed(cells: list[dict]) -> list[str]:
    """Sources of the set-up cell, of what gives the section Play its names, a cell's needed statements in one piece, and
    of that section.

    From the last statement up, one is taken where it binds a name that is still missing; what it uses is then missing too.
    """
    playing, missing, taken = play_cells(cells), set(), []
    for cell in reversed([cell for cell in cells if cell["cell_type"] == "code"]):
        if "setup" in cell["metadata"].get("tags", []):
            return [cell["source"], *taken[::-1]]
        kept = []
        for statement in reversed(_statements(cell["source"])):
            used, bound = uses_and_binds(statement)
            if cell in playing or bound & missing:
                kept.append(statement)
                missing = missing - bound | used
        if kept:
            taken.append(cell["source"] if cell in playing else "\n".join(kept[::-1]))
    raise AssertionError("a chapter has a set-up cell")


def _statements(source: str) -> list[str]:
    return [ast.get_source_segment(source, statement) for statement in ast.parse(source).body]
