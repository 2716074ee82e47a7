"""A notebook as a stranger runs it: alone in an empty folder, from there, and all its cells again in the same kernel."""

from copy import deepcopy
from pathlib import Path

from course_staff.notebooks.execute import execute_chapter
from course_staff.notebooks.files import read_notebook, write_notebook

ROOT = Path(__file__).parents[1]


def notebooks(folder: str) -> list[Path]:
    return sorted((ROOT / folder).glob("*.ipynb"))


def name(path: Path) -> str:
    return path.stem


def run_twice(path: Path, elsewhere: Path) -> None:
    """What is the same at every scale is the same the second time; and nothing is left beside the notebook."""
    elsewhere.mkdir()
    twice = read_notebook(path)
    first = twice.cells
    twice.cells = first + copies_of(first)
    write_notebook(twice, elsewhere / path.name)
    cells = execute_chapter(elsewhere / path.name, scale="smoke").cells
    halves = zip(cells[: len(first)], cells[len(first) :], strict=True)
    differing = [before.id for before, after in halves if is_exact(before) and contents(before) != contents(after)]
    assert differing == [], f"these cells put out something else the second time: {differing}"
    left = {entry.name for entry in elsewhere.iterdir()} - {path.name}
    assert left == set(), f"the notebook left {left} beside itself"


def copies_of(cells: list) -> list:
    """The cells once more, under other ids."""
    copies = deepcopy(cells)
    for cell in copies:
        cell.id = f"again-{cell.id}"[:64]
    return copies


def is_exact(cell) -> bool:
    return "nbval-check-output" in cell.metadata.get("tags", [])


def contents(cell) -> list:
    """What a cell put out, without its count; a stream is one text however many pieces it came in."""
    streams = {}
    for output in cell.outputs:
        if output.output_type == "stream":
            streams[output.name] = streams.get(output.name, "") + output.text
    return [streams, *(output.data for output in cell.outputs if "data" in output and not is_live(output))]


def is_live(output) -> bool:
    """Whether it only tells how long ranks were at work."""
    return output.metadata.get("course") == "live"
