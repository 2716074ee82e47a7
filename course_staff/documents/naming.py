"""The names in the program's own code: a private helper says what it does, and a value or a class says what it is."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from course_staff.notebooks.files import read_notebook
from course_utils.files import chapters_in

ROOMS = ("benchmarks", "course_staff", "course_utils", "tests")

_VAGUE = """
about again alike alone also among apart around asked begun beside both built changed chosen copied done drawn each
entered failed far filled found fresh given got held here how inside kept known late least lost made many marked
mine more moved named near needed nothing now one otherwise outside over own planned reached repeated said settled
several shown something started stored taken talk there thing things together told trained used usual waiting wanted
way ways what whole written
"""
VAGUE = frozenset(_VAGUE.split())
"""Names that are refused, whatever underscores stand around them, and in capitals too."""
# Renaming these would change questions, and every released set with them.
_IMPORTED_BY_SOLUTIONS = frozenset({"Waiting"})

_IRREGULAR = re.compile(
    r"beaten|begun|bent|born|bound|bought|broken|brought|built|caught|chosen|dealt|done|drawn|driven|fallen|felt|forgotten|"
    r"found|frozen|given|gone|grown|heard|held|hidden|hung|kept|known|laid|left|lent|lost|made|meant|met|paid|said|seen|sent|"
    r"shaken|shown|shrunk|sold|spent|spoken|spun|stolen|stood|struck|stuck|sunk|swept|taken|taught|thought|thrown|told|torn|"
    r"understood|woken|worn|written"
)
_VERBS = re.compile(r"bleed|breed|embed|exceed|feed|need|proceed|seed|shed|shred|speed|succeed|weed")
_ADJECTIVES = re.compile(
    r"alike|alone|bare|big|different|equal|far|fine|foreign|full|good|high|large|local|long|loose|low|near|new|off|older?|"
    r"other|plain|quiet|right|same|sharp|short|similar|small|sound|unsaved|unknown|whole|wrong"
)


def vague_names(root: Path) -> Iterator[str]:
    """A sentence for every name that says too little in the `ROOMS` and chapters below `root`: its file, line or cell."""
    from IPython.core.inputtransformer2 import TransformerManager

    for room in ROOMS:
        for path in sorted((root / room).rglob("*.py")):
            place = path.relative_to(root).as_posix()
            for line, remark in remarks_on(path.read_text(encoding="utf-8")):
                yield f"{place}:{line}: {remark}"
    for path in chapters_in(root / "notebooks"):
        for cell in (cell for cell in read_notebook(path).cells if cell.cell_type == "code"):
            for _, remark in remarks_on(TransformerManager().transform_cell(cell.source)):
                yield f"{path.name}, cell {cell.get('id')}: {remark}"


def remarks_on(source: str) -> list[tuple[int, str]]:
    """What is wrong with the names that Python source defines: line, and a sentence."""
    remarks = []
    tree = ast.parse(source)
    keys = {field for node in ast.walk(tree) if _is_typed_dict(node) for field in ast.walk(node) if field is not node}
    for node in ast.walk(tree):
        name = None if node in keys else _name_of(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _describes(name):
            remarks.append((node.lineno, f"{name} describes; name the helper by a verb that says what it does."))
        elif name and name.strip("_").lower() in VAGUE and name not in _IMPORTED_BY_SOLUTIONS:
            remarks.append((node.lineno, f"{name!r} could be anything; name the value by what it is."))
    return sorted(remarks)


def _name_of(node: ast.AST) -> str | None:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
            return name
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            return name
        case ast.ExceptHandler(name=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name):
            return name
    return None


def _is_typed_dict(node: ast.AST) -> bool:
    """Whether a class only types a dictionary, whose keys may be words that people read."""
    return isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "TypedDict" for base in node.bases)


def _describes(name: str) -> bool:
    """Whether a function's name is private and begins with a participle, or is nothing but an adjective."""
    if not name.startswith("_") or name.startswith("__"):
        return False
    first, *others = name.strip("_").split("_")
    if _IRREGULAR.fullmatch(first) or (first.endswith("ed") and not _VERBS.fullmatch(first)):
        return True
    return not others and _ADJECTIVES.fullmatch(first) is not None
