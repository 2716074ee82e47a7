"""How the course's corpus was made: functions of the standard library of Python 3.11.7, labeled with their package.

`python -m benchmarks.corpus` writes `course_utils/data/functions.jsonl.gz` again, in about a minute. The rules, in the order in
which they apply:

1. A row is one function or method. A function inside a function belongs to the outer one and is no row of its own.
2. The text is the source as it stands, decorators, comments and docstring included, less its common indentation. A method
   comes under the first line of its class: `class Queue(mixins._LoopBoundMixin):`.
3. A function that names its own package as a word (`import asyncio`, `asyncio.run`) is left out: it gives the label away.
4. A function of fewer than 2 lines or 12 tokens, its class line not counted, is left out.
5. Of two near-duplicates, the one that comes later in (label, file, line) order is left out. Near-duplicates are functions whose
   sets of three consecutive tokens, class line not counted, have a Jaccard similarity of at least 0.7.
6. Whole files go to a split, so that no file is in two; see `assign_files`.

Rows are then mixed by a hash, so that the first n of a split are a fair sample of it.
"""

import ast
import gzip
import hashlib
import json
import platform
import re
import sys
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

FILE = Path(__file__).parents[1] / "course_utils" / "data" / "functions.jsonl.gz"
PYTHON = "3.11.7"

# Packages with functions in many files.
PACKAGES = (
    "asyncio", "ctypes", "email", "encodings", "importlib", "multiprocessing", "unittest", "urllib", "wsgiref", "xml",
)  # fmt: skip
SHARES = {"train": 8, "validation": 1, "test": 1}
_TEST_FOLDERS = {"test", "tests", "testmock", "idle_test", "__pycache__"}


class Function(NamedTuple):
    """One row: `file` is relative to the standard library, with forward slashes; `line` is its first line there."""

    label: str
    file: str
    line: int
    name: str
    text: str


def read_functions() -> list[Function]:
    """Every function that rules 1 to 5 keep, in (label, file, line) order."""
    library = Path(sysconfig.get_path("stdlib"))
    rows = []
    for label in PACKAGES:
        for path in (library / label).rglob("*.py"):
            if _TEST_FOLDERS.isdisjoint(path.relative_to(library).parts):
                file = path.relative_to(library).as_posix()
                rows += filter(is_worth_keeping, functions_in(path.read_text(encoding="utf-8"), label, file))
    return drop_near_duplicates(sorted(rows, key=lambda row: row[:3]))


def functions_in(source: str, label: str, file: str) -> Iterator[Function]:
    """The functions of one file by rules 1 and 2; `label` and `file` are written into the rows."""
    lines = source.splitlines()
    for function, owner, name in _definitions(ast.parse(source)):
        first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
        yield Function(label, file, first, name, _text(lines[first - 1 : function.end_lineno], owner))


def _definitions(node: ast.AST, owner: ast.ClassDef | None = None, scope: tuple[str, ...] = ()) -> Iterator[tuple]:
    """Outermost functions with their class and qualified name; classes and `if`, `try`, `with` are looked into."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child, owner, ".".join((*scope, child.name))
        elif isinstance(child, ast.ClassDef):
            yield from _definitions(child, child, (*scope, child.name))
        elif isinstance(child, ast.stmt | ast.excepthandler):
            yield from _definitions(child, owner, scope)


def _text(lines: list[str], owner: ast.ClassDef | None) -> str:
    indentation = lines[0][: len(lines[0]) - len(lines[0].lstrip())]
    flush = [line.removeprefix(indentation).rstrip() for line in lines]
    if owner is None:
        return "\n".join(flush)
    bases = ", ".join(ast.unparse(base) for base in owner.bases)
    first = f"class {owner.name}({bases}):" if bases else f"class {owner.name}:"
    return "\n".join([first, *("    " + line if line else "" for line in flush)])


def is_worth_keeping(row: Function) -> bool:
    """Whether rules 3 and 4 keep the row."""
    body = without_class_line(row.text)
    return len(tokens_of(body)) >= 12 and "\n" in body and row.label not in tokens_of(row.text)


def without_class_line(text: str) -> str:
    """The function alone: `text` less the line of its class, where it has one."""
    return text.partition("\n")[2] if text.startswith("class ") else text


def tokens_of(text: str) -> list[str]:
    """Words and single signs."""
    return re.findall(r"\w+|[^\w\s]", text)


def drop_near_duplicates(rows: list[Function]) -> list[Function]:
    """The rows less each one that is a near-duplicate of an earlier kept row, by comparing all pairs."""
    distinct = []
    for row in rows:
        tokens = tokens_of(without_class_line(row.text))
        trigrams = set(zip(tokens, tokens[1:], tokens[2:], strict=False))
        if not any(_resembles(trigrams, other) for _, other in distinct):
            distinct.append((row, trigrams))
    return [row for row, _ in distinct]


def _resembles(tokens: set, others: set) -> bool:
    if 10 * min(len(tokens), len(others)) < 7 * max(len(tokens), len(others)):
        return False  # even if all of the smaller one were shared
    shared = len(tokens & others)
    return 10 * shared >= 7 * (len(tokens) + len(others) - shared)


def assign_files(rows: Iterable[Function]) -> dict[str, str]:
    """The split of every file: `{"asyncio/events.py": "train", ...}`.

    For each package, files go from the one with most functions down to the split that is furthest below its share of functions.
    While a split is empty and no file is to spare, it gets the file. Files of equal size are taken in the order of the SHA-256
    of their path.
    """
    by_package: dict[str, Counter] = defaultdict(Counter)
    for row in rows:
        by_package[row.label][row.file] += 1
    assigned = {}
    for counts in by_package.values():
        missing = {split: share * counts.total() for split, share in SHARES.items()}  # in tenths of a function
        empty = set(SHARES)
        files = sorted(counts, key=lambda file: (-counts[file], hashlib.sha256(file.encode()).hexdigest()))
        for position, file in enumerate(files):
            open_splits = empty if len(files) - position <= len(empty) else SHARES
            assigned[file] = max((split for split in SHARES if split in open_splits), key=missing.__getitem__)
            missing[assigned[file]] -= 10 * counts[file]
            empty.discard(assigned[file])
    return assigned


def rows_of_the_file() -> list[dict]:
    """The rows of the file, from the standard library of the Python that runs."""
    rows = read_functions()
    split_of = assign_files(rows)
    rows.sort(key=lambda row: hashlib.sha256(repr(row[:4]).encode()).digest())
    return [{"split": split, **row._asdict()} for split in SHARES for row in rows if split_of[row.file] == split]


def main() -> None:
    """Write the file."""
    if platform.python_version() != PYTHON:
        sys.exit(f"The corpus is that of Python {PYTHON}; this is {platform.python_version()}.")
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows_of_the_file())
    FILE.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
