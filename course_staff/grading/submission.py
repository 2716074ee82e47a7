"""Reads a notebook that a learner handed in: finds what can be graded, whatever happened to the file, and notes the rest."""

import ast
import json
import re
import stat
import symtable
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from course_staff.notebooks.cell_names import names_in_table
from course_utils.files import exercises_of
from course_utils.grading.loading import SetEntry
from course_utils.grading.run import is_untouched

LARGEST = 50 * 2**20
"""Bytes of a notebook file."""
LONGEST_CODE = 500_000
"""Characters of all its code: for as much as a file may hold, Python's parser takes minutes and gigabytes."""
# How many cells' numbers a note lists.
_MOST_NUMBERS = 20
# These can bind or change a name without the parser seeing it.
_UNSEEN = {"exec", "eval", "globals", "locals", "vars", "setattr"}
# More lenient than the marker of a released notebook (`source.py`): it finds one that was edited, too.
_ANSWER = re.compile(r"^[ \t]*#+[ \t]*EXERCISE[ \t:]+(\w+)[ \t:]*$", re.MULTILINE | re.IGNORECASE)
_QUESTION = re.compile(r"\s*# QUESTION \w+\s*$", re.MULTILINE)
_SET = re.compile(r"\bexercise\(\s*[\"'](\w+)[\"']\s*\)")
_CONFLICT = re.compile(r"^(<<<<<<<|>>>>>>>) ", re.MULTILINE)


class UnreadableError(Exception):
    """Why a file holds no submission, as a sentence."""


@dataclass(frozen=True)
class ParsedCell:
    """What Python's parser says of a cell."""

    is_valid: bool = False  # whether it can be parsed
    is_check: bool = False  # whether it does nothing but call `check(...)`
    defines: frozenset[str] = frozenset()  # names by `def`, `class` or an assignment
    binds: frozenset[str] = frozenset()  # names in any way
    uses: frozenset[str] = frozenset()  # names from elsewhere
    changes: frozenset[str] = frozenset()  # names of what is changed in place
    opaque: bool = False  # whether it may bind any name


@dataclass(frozen=True)
class Cell:
    """A code cell: its number among all cells, from 1, its source, the questions that it answers, and how it parses."""

    number: int
    source: str
    answers: tuple[str, ...] = ()
    parsed: ParsedCell = ParsedCell()


@dataclass(frozen=True)
class Submission:
    """What was found in a file."""

    cells: tuple[Cell, ...] = ()  # the code cells in order, without checks
    notes: tuple[str, ...] = ()  # sentences on what was odd
    texts: Mapping[str, int] = field(default_factory=dict)  # by question, the number of the text cell with its marker


@dataclass(frozen=True)
class Answer:
    """What is to be run for one question: pairs of a cell, and whether it is the answer's."""

    state: Literal["written", "untouched", "missing"]
    cells: tuple[tuple[Cell, bool], ...] = ()  # only those that the answer needs
    all_cells: tuple[tuple[Cell, bool], ...] = ()  # also every cell that answers no question
    notes: tuple[str, ...] = ()


def read_submission(path: Path, parse: Callable[[list[str]], list[ParsedCell]]) -> Submission:
    """The submission in the file at `path`. Never raises: a file that cannot be read has no cells, and a note says why.

    `parse` returns for each source what `parse_cell` does, within a time limit: a stranger's text may keep the parser busy for
    minutes.
    """
    try:
        raw = _parse_notebook(_decode(content_of(path)))["cells"]
        cells = list(_code_cells(raw))
    except UnreadableError as error:
        return Submission(notes=(str(error),))
    descriptions = parse([cell.source for cell in cells])
    cells = [replace(cell, parsed=description) for cell, description in zip(cells, descriptions, strict=True)]
    numbered = [(number, cell) for number, cell in enumerate(raw, 1) if isinstance(cell, dict)]
    text_cells = [(number, _source(cell)) for number, cell in numbered if cell.get("cell_type") in ("markdown", "raw")]
    texts = {name: number for number, source in text_cells for name in _ANSWER.findall(source)}
    return Submission(tuple(cell for cell in cells if not cell.parsed.is_check), (), texts)


def parse_cell(source: str) -> ParsedCell:
    """What Python's parser says of a cell, once IPython has read its magics; the default if it cannot be parsed."""
    from IPython.core.inputtransformer2 import TransformerManager

    try:
        python = TransformerManager().transform_cell(source)
        tree, table = ast.parse(python), symtable.symtable(python, "cell", "exec")
        nodes = list(ast.walk(tree))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # half-written code, text to break parsers
        return ParsedCell()
    uses, binds = names_in_table(table)
    return ParsedCell(
        is_valid=True,
        is_check=bool(tree.body) and all(map(_is_check, tree.body)),
        defines=frozenset(_definitions_in(tree.body)),
        binds=frozenset(binds),
        uses=frozenset(uses),
        changes=frozenset(filter(None, map(_name_changed_by, nodes))),
        opaque=any(map(_is_opaque, nodes)),
    )


def content_of(path: Path) -> bytes:
    """The bytes of a file; raises `UnreadableError`, without reading it, for one larger than `LARGEST` or not regular."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableError("This is not a regular file (it is a link or a folder); hand in the notebook itself.")
        if status.st_size > LARGEST:
            raise UnreadableError(
                f"The file has {status.st_size:,} bytes, more than the {LARGEST:,} that are read; clear its outputs."
            )
        return path.read_bytes()
    except OSError as error:
        raise UnreadableError(f"The file cannot be read ({error.strerror}); hand it in again.") from None


def answer_to(submission: Submission, entry: SetEntry) -> Answer:
    """The answer to the question of a set's `entry` (its `id`, `stub` and `answer` are used)."""
    marker = f"# EXERCISE {entry['id']}"
    marked_cells = [cell for cell in submission.cells if entry["id"] in cell.answers]
    candidates = [cell for cell in marked_cells if _may_define(cell, entry["answer"])]
    notes = []
    unmarked = [cell for cell in submission.cells if not cell.answers and entry["answer"] in cell.parsed.defines]
    if not candidates and unmarked:
        candidates = unmarked
        problem = f"No cell begins with {marker}"
        if marked_cells:
            problem = f"Cell {marked_cells[-1].number} has {marker} but no answer"
        notes.append(f"{problem}; cell {candidates[-1].number} was graded, which defines the answer.")
    candidates = candidates or marked_cells
    if not candidates and entry["id"] in submission.texts:
        notes.append(f"Cell {submission.texts[entry['id']]} contains the answer as text: turn it into a code cell.")
    elif not candidates and submission.cells:
        notes.append(f"No cell begins with {marker}, and none defines {entry['answer']}: add one.")
    if not candidates:
        return Answer("missing", notes=tuple(notes))
    changed_cells = [cell for cell in candidates if not is_untouched(_unmark(cell.source), _unmark(entry["stub"]))]
    answer_cell = (changed_cells or candidates)[-1]
    if len(candidates) > 1:
        numbers = ", ".join(str(cell.number) for cell in candidates[-_MOST_NUMBERS:])
        last = f"cell {answer_cell.number}, the last one written, was graded"
        notes.append(f"Cells {numbers} all answer {entry['id']}; {last}.")
    if not changed_cells:
        return Answer("untouched", notes=tuple(notes))
    required = _cells_for(submission.cells, answer_cell)
    all_cells = [(cell, cell is answer_cell) for cell in submission.cells if cell in required or not cell.answers]
    cells = [(cell, is_answer) for cell, is_answer in all_cells if cell in required]
    return Answer("written", tuple(cells), tuple(all_cells), tuple(notes))


def notes_on_set(submission: Submission, name: str, ids: Sequence[str]) -> tuple[str, ...]:
    """A note where the notebook belongs to another set than `name`, or has no answers to its questions `ids`."""
    expected = Path(exercises_of(name)).name
    names = {set_name for cell in submission.cells for set_name in _SET.findall(cell.source)}
    if names and name not in names:
        note = f"This is a notebook of the set {sorted(names)[0]} and was graded as one of {name}; hand in {expected}."
        return (note,)
    if submission.cells and not any(set(ids) & set(cell.answers) for cell in submission.cells):
        return (f"No cell has a marker # EXERCISE of {name}: is it {expected}?",)
    return ()


def _decode(content: bytes) -> str:
    if not content.strip():
        raise UnreadableError("The file is empty; hand in the notebook again.")
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _parse_notebook(text: str) -> dict:
    try:
        notebook = json.loads(text)
    except (ValueError, RecursionError):
        cause = ", it contains merge conflict markers" if _CONFLICT.search(text) else ", as when an upload is cut off"
        raise UnreadableError(f"The file is not valid JSON{cause}; hand in the notebook as Jupyter saves it.") from None
    if not isinstance(notebook, dict) or not isinstance(notebook.get("cells"), list):
        raise UnreadableError("The file is JSON, but not a notebook; hand in the notebook itself.")
    return notebook


def _code_cells(raw: list) -> Iterator[Cell]:
    characters_left = LONGEST_CODE
    for number, cell in enumerate(raw, 1):
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = _source(cell)
        characters_left -= len(source)
        if characters_left < 0:
            raise UnreadableError(
                f"The code has more than the {LONGEST_CODE:,} characters that are read; hand in less of it."
            )
        if source.strip() and not _QUESTION.match(source):
            yield Cell(number, source, tuple(dict.fromkeys(_ANSWER.findall(source))))


def _source(cell: dict) -> str:
    """A source is a string or a list of strings."""
    source = cell.get("source", "")
    lines = source if isinstance(source, list) else [source]
    text = "".join(line for line in lines if isinstance(line, str))
    return text.replace("\r\n", "\n").replace("\r", "\n").encode("utf-8", "replace").decode()


def _is_check(node: ast.stmt) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "check"


def _may_define(cell: Cell, name: str) -> bool:
    """Whether a marked cell may be the answer. A cell with only a marker is none (the cell was split); one that does not parse,
    or that uses magics or `exec`, may be one."""
    is_code = any(line.strip() and not line.lstrip().startswith("#") for line in cell.source.splitlines())
    unseen = not cell.parsed.is_valid or cell.parsed.opaque or "get_ipython" in cell.parsed.uses
    return is_code and (unseen or name in cell.parsed.binds)


def _definitions_in(body: list[ast.stmt]) -> set[str]:
    """Names that a cell's statements define by `def`, `class` or an assignment; an import does not count as an answer."""
    names = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
    return names


def _name_changed_by(node: ast.AST) -> str | None:
    """The name of what an assignment to an attribute or an item changes."""
    if not (isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del)):
        return None
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _is_opaque(node: ast.AST) -> bool:
    return (isinstance(node, ast.alias) and node.name == "*") or (isinstance(node, ast.Name) and node.id in _UNSEEN)


def _cells_for(cells: Sequence[Cell], answer_cell: Cell) -> set[Cell]:
    """The answer's cell and those that it needs, which bind or change a name that is used; a cell that answers another question
    only if it alone binds the name."""
    plain = [cell for cell in cells if not cell.answers]
    binds = _by_name(plain, "binds")
    changes = _by_name(plain, "changes")
    elsewhere = _by_name([cell for cell in cells if cell.answers], "binds")
    answer_names = answer_cell.parsed.binds
    required = {answer_cell, *(cell for cell in plain if cell.parsed.opaque)}
    required |= {cell for name in answer_names for cell in changes.get(name, ())}
    stack = list(required)
    seen = set(answer_names)
    while stack:
        for name in stack.pop().parsed.uses - seen:
            seen.add(name)
            suppliers = {*changes.get(name, ()), *(binds.get(name) or elsewhere.get(name, ()))} - required
            required |= suppliers
            stack += suppliers
    return required


def _by_name(cells: Sequence[Cell], relation: Literal["binds", "changes"]) -> dict[str, list[Cell]]:
    """Name to the cells that bind or change it."""
    cells_by_name: dict[str, list[Cell]] = {}
    for cell in cells:
        for name in getattr(cell.parsed, relation):
            cells_by_name.setdefault(name, []).append(cell)
    return cells_by_name


def _unmark(source: str) -> str:
    return _ANSWER.sub("", source)
