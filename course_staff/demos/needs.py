"""Which cells of a chapter a step needs before its own: those that bind the names it uses, and what these need in turn.

Of a cell that is needed for nothing but what it imports or defines, only that is run.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from course_staff.demos.script import Demo, Step
from course_staff.notebooks.names import of_statement, statements_of, uses_and_binds
from course_staff.notebooks.setup_cell import is_setup
from course_utils.errors import CourseError

if TYPE_CHECKING:
    from nbformat import NotebookNode

_WHOLE = ""  # among the names that are needed of a cell: all that it does
_DEFINING = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef


def plan(demo: Demo) -> Iterator[tuple[Step, list["NotebookNode"], "NotebookNode | None"]]:
    """For each step: the cells to run unseen before it, in the chapter's order, and the cell to run and show, or None.

    Code of the demo's own stands behind the chapter's cells. No cell is run unseen twice. Raises `CourseError` where a step
    names a cell that the chapter has not, or has none to click in.
    """
    from nbformat.v4 import new_code_cell

    from course_staff.notebooks.files import read_notebook

    code = [cell for cell in read_notebook(demo.notebook).cells if cell.cell_type == "code"]
    own = {number: f"step-{number}" for number, step in enumerate(demo.steps, start=1) if step.code}
    code += [new_code_cell(demo.steps[number - 1].code, id=name) for number, name in own.items()]
    places = {cell.id: place for place, cell in enumerate(code)}
    done = {}
    for number, step in enumerate(demo.steps, start=1):
        shown = step.cell or own.get(number)
        wanted = [*step.needs, *([shown] if shown else [])]
        for name in wanted:
            if name not in places:
                raise CourseError(
                    f"{demo.path.name}, step {number}: {demo.notebook.name} has no code cell {name!r}; name one that it has."
                )
        if step.click and not shown:
            raise CourseError(
                f"{demo.path.name}, step {number} clicks, but shows no cell; name the cell of the figure."
            )
        needed = {at: {_WHOLE} for at in (*range(is_setup(code[0])), *map(places.get, step.needs))}
        for name in wanted:
            _add_needs(places[name], code, needed)
        if shown:
            done.setdefault(places[shown], set()).add(_WHOLE)
        parts = [_part(code[at], needed[at], done.setdefault(at, set())) for at in sorted(needed)]
        for at, names in needed.items():
            done[at] |= names
        yield step, [cell for cell in parts if cell is not None], code[places[shown]] if shown else None


def _add_needs(place: int, code: list, needed: dict[int, set]) -> None:
    """Add to `needed` what the cell at `place` needs, however far back: by place, names it defines, or `_WHOLE`."""
    todo = [(place, code[place].source)]
    while todo:
        end, source = todo.pop()
        for name in uses_and_binds(source)[0]:
            bound = [back for back in range(end) if name in uses_and_binds(code[back].source)[1]]
            if not bound:
                continue
            back = bound[-1]
            definition = _definitions(code[back].source).get(name)
            what = name if definition else _WHOLE
            if not {what, _WHOLE} & needed.setdefault(back, set()):
                needed[back].add(what)
                todo.append((back + 1, definition) if definition else (back, code[back].source))


def _part(cell: "NotebookNode", needed: set, done: set) -> "NotebookNode | None":
    """Of `cell` what is needed and not yet done: all of it, definitions in their order, or None."""
    from nbformat.v4 import new_code_cell

    if _WHOLE in done or needed <= done:
        return None
    if _WHOLE in needed:
        return cell
    chosen = {source: None for name, source in _definitions(cell.source).items() if name in needed}
    return new_code_cell("\n".join(chosen), id=cell.id)


@lru_cache(maxsize=1024)
def _definitions(source: str) -> dict[str, str]:
    """By name: the statement that imports or defines it, where no other statement of the cell binds it."""
    binds = [(statement, name) for statement in statements_of(source) for name in of_statement(statement)[1]]
    count = Counter(name for _, name in binds)
    return {name: ast.unparse(made) for made, name in binds if count[name] == 1 and isinstance(made, _DEFINING)}
