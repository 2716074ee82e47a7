"""What people read in the repository: the words of notebooks, documents, docstrings, comments, messages and figures."""

import ast
import io
import json
import re
import textwrap
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(path for folder in (".", "docs", "exercises", "solutions") for path in ROOT.glob(f"{folder}/*.md"))
NOTEBOOKS = sorted(path for folder in ("notebooks", "solutions") for path in ROOT.glob(f"{folder}/*.ipynb"))
MODULES = sorted(
    path for folder in ("course_utils", "course_staff", "benchmarks") for path in (ROOT / folder).rglob("*.py")
)

_MATH = re.compile(r"\$\$.+?\$\$|\$[^$\n]+\$", re.DOTALL)
_TARGET = re.compile(r"\]\([^)\s]*\)")
_CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
_ADDRESS = re.compile(r"https?://\S+")
_TAG = re.compile(r"<[^<>]+>")
_TOKEN = re.compile(r"[^\s/…–—−-]+")
_WORD = re.compile(r"[A-Za-z]?[a-z]+(?:['’][a-z]+)?")
_PROGRAM = re.compile(
    r"\\[a-zA-Z.]|\(\?|^ *(?:import|from [\w.]+ import|def \w+\(|return \S+$)|^[\w.]+ = ", re.MULTILINE
)
_EXPRESSION = re.compile(r"\w=\w|\w\(\w*\)")
_LONG = 60  # characters: a sentence, which may well name a call
_PUNCTUATION = ".,;:!?()[]{}\"'“”‘’*|~#>"


def plain(text: str) -> str:
    """`text` less code, formulas, addresses and tags; a mark stands in their place, so that no words meet that did not."""
    for pattern in (_CODE, _MATH, _TARGET, _ADDRESS, _TAG):
        text = pattern.sub(" · ", text)
    return text


def words(text: str) -> Iterator[str]:
    """The words of a text as they are written; names in code, symbols, acronyms and numbers with letters are none."""
    for token in _TOKEN.findall(plain(text)):
        word = token.strip(_PUNCTUATION).removesuffix("'s").removesuffix("’s")
        if len(word) > 2 and _WORD.fullmatch(word):
            yield word


@cache
def texts(path: Path) -> tuple[tuple[str, str], ...]:
    """Each text of a file, with the place that it stands at; read once, as several tests look at it."""
    if path.suffix == ".md":
        return ((path.name, path.read_text(encoding="utf-8")),)
    if path.suffix == ".ipynb":
        return tuple(notebook_texts(path))
    return tuple(python_texts(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix()))


def notebook_texts(path: Path) -> Iterator[tuple[str, str]]:
    """Markdown as it is; of a code cell what a module has too: comments and strings for people."""
    for number, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"], start=1):
        place, text = f"{path.parent.name}/{path.name}, cell {number}", "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield place, text
        else:
            yield from python_texts(re.sub(r"^(\s*)[%!].*$", r"\1pass", text, flags=re.MULTILINE), place)


def python_texts(source: str, place: str) -> Iterator[tuple[str, str]]:
    """Docstrings, comments, and strings that are neither one word nor themselves code."""
    for line, text in strings(ast.parse(source)):
        if not is_code(text):
            yield f"{place}:{line}", text
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = token.string.lstrip("# ")
        if token.type == tokenize.COMMENT and not text.startswith("noqa") and not is_code(text):
            yield f"{place}:{token.start[0]}", text


def strings(node: ast.AST) -> Iterator[tuple[int, str]]:
    """The strings below `node` with their lines; 0 stands for what an f-string fills in, so that no word begins or ends there."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.lineno, node.value
    if isinstance(node, ast.JoinedStr):
        yield node.lineno, "".join(part.value if isinstance(part, ast.Constant) else "0" for part in node.values)
        children = [part for part in node.values if isinstance(part, ast.FormattedValue)]
    else:
        children = ast.iter_child_nodes(node)
    for child in children:
        yield from strings(child)


def is_code(text: str) -> bool:
    """Whether a string is a name, a pattern or a program, and no sentence or part of one."""
    plain = _CODE.sub("", text)
    if " " not in text.strip() or _PROGRAM.search(plain) or (len(text) < _LONG and _EXPRESSION.search(plain)):
        return True
    try:
        ast.parse(textwrap.dedent(text))
    except (SyntaxError, ValueError):
        return False
    return True
