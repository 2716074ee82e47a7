"""The figures to play with, as their chapters have them: which statements they need, what they are drawn from, their controls."""

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import NamedTuple

from course_staff.notebooks.cell_names import find_needs
from course_staff.notebooks.files import read_notebook
from course_staff.notebooks.setup_cell import is_setup
from course_utils.chapters import begin
from course_utils.errors import CourseError


class Play(NamedTuple):
    """What `viz.play` was given: the functions that draw the picture and what is below it, and the controls by argument."""

    draw: Callable
    draw_below: Callable | None
    controls: dict


def play_cells(cells: Sequence[Mapping]) -> list[Mapping]:
    """The code cells of the section Play."""
    in_play, playing = False, []
    for cell in cells:
        if cell["cell_type"] == "markdown":
            titles = re.findall(r"^## (.+)$", cell["source"], re.MULTILINE)
            in_play = titles[-1] == "Play" if titles else in_play
        elif in_play:
            playing.append(cell)
    return playing


def select_needed(cells: Sequence[Mapping]) -> list[str]:
    """Sources of the set-up cell, of what gives the section Play its names, a cell's needed statements in one piece, and
    of that section.

    Raises `CourseError` if no cell is tagged `setup`.
    """
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    while code and not is_setup(code[0]):
        code.pop(0)
    if not code:
        raise CourseError("The notebook has no set-up cell; tag its first code cell 'setup'.")
    setup, *code = code
    playing, sources = play_cells(cells), [setup["source"]]
    pieces = [(cell, node) for cell in code for node in ast.parse(cell["source"]).body]
    statements = [ast.get_source_segment(cell["source"], node) for cell, node in pieces]
    positions = find_needs([position for position, (cell, _) in enumerate(pieces) if cell in playing], statements)
    owned_statements = [(pieces[position][0], statements[position]) for position in sorted(positions)]
    for cell in code:
        lines = [statement for owner, statement in owned_statements if owner is cell]
        if cell in playing:
            sources.append(cell["source"])
        elif lines:
            sources.append("\n".join(lines))
    return sources


def catch(path: Path) -> Play:
    """The last call of `viz.play` in the chapter at `path`; its needed statements are run in this process, and nothing is shown.

    Opens the chapter as its set-up cell does, so that settings are read again and seeds are set. Raises `CourseError` if the
    section Play has no figure to play with.
    """
    sources = select_needed(read_notebook(path).cells)[1:]
    names = {}
    with _catching() as plays, redirect_stdout(StringIO()):
        begin()
        for source in sources:
            exec(source, names)
    if not plays:
        raise CourseError(f"{path.name} plays no figure in its section Play; call viz.play(...) in its last cell.")
    return plays[-1]


@contextmanager
def _catching() -> Iterator[list[Play]]:
    # The planner has a name of its own for the same function, and `viz.planner` is not that module.
    rooms = [import_module(name) for name in ("course_utils.viz", "course_utils.viz.planner")]
    play, plays = rooms[0].play, []

    def keep(draw: Callable, draw_below: Callable | None = None, /, **controls) -> None:
        plays.append(Play(draw, draw_below, controls))

    try:
        for room in rooms:
            room.play = keep
        yield plays
    finally:
        for room in rooms:
            room.play = play
