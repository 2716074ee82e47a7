"""Which cells of a chapter a step needs before its own: those that bind the names it uses, and what these need in turn.

Of a cell that is needed for nothing but what it imports or defines, only that is run.
"""

import ast
from collections import Counter
from collections.abc import Iterator

from nbformat import NotebookNode
from nbformat.v4 import new_code_cell

from course_staff.demos.script import Demo, Step
from course_staff.notebooks.cell_names import find_needs, names_in_statement, statements_of
from course_staff.notebooks.files import read_notebook
from course_staff.notebooks.setup_cell import is_setup
from course_utils.errors import CourseError

_DEFINING = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef


def cells_by_step(demo: Demo) -> Iterator[tuple[Step, list[NotebookNode], NotebookNode | None]]:
    """For each step: the cells to run unseen before it, in the chapter's order, and the cell to run and show, or None.

    The demo's own code follows the chapter's cells. No cell is run unseen twice. Raises `CourseError` if a step
    names a cell that the chapter has not, or has none to click in.
    """
    code = [cell for cell in read_notebook(demo.notebook).cells if cell.cell_type == "code"]
    own_names = {number: f"step-{number}" for number, step in enumerate(demo.steps, start=1) if step.code}
    code += [new_code_cell(demo.steps[number - 1].code, id=name) for number, name in own_names.items()]
    # A cell, then its definitions, each by itself: of all that bind a name, the last one before its use is taken.
    pieces = [piece for cell in code for piece in (cell, *_split_off_definitions(cell))]
    positions = {cell.id: pieces.index(cell) for cell in code}
    earlier = set()
    for number, step in enumerate(demo.steps, start=1):
        step_name = f"{demo.path.name}, step {number}"
        shown_name = step.cell or own_names.get(number)
        names = [*step.needs, *([shown_name] if shown_name else [])]
        for name in names:
            if name not in positions:
                raise CourseError(f"{step_name}: {demo.notebook.name} has no code cell {name!r}; name an existing one.")
        if step.click and not shown_name:
            raise CourseError(f"{step_name} clicks, but names no cell; name the figure's cell.")
        required = {*range(is_setup(code[0])), *map(positions.get, step.needs)}
        required |= find_needs(map(positions.get, names), [piece.source for piece in pieces])
        if shown_name:
            earlier.add(positions[shown_name])
        unseen = [
            piece
            for position, piece in enumerate(pieces)
            if position in required - earlier
            # A definition of a cell that runs whole has run with it.
            and (position == positions[piece.id] or positions[piece.id] not in required | earlier)
        ]
        yield step, unseen, pieces[positions[shown_name]] if shown_name else None
        earlier |= required


def _split_off_definitions(cell: NotebookNode) -> list[NotebookNode]:
    """The statements that import or define something which no other statement of the cell binds."""
    statements = [(statement, names_in_statement(statement)[1]) for statement in statements_of(cell.source)]
    count = Counter(name for _, names in statements for name in names)
    return [
        new_code_cell(ast.unparse(statement), id=cell.id)
        for statement, names in statements
        if isinstance(statement, _DEFINING) and max(map(count.get, names)) == 1
    ]
