"""Functions of the standard library of the Python that runs, labeled with their package and split by file.

This module needs nothing but the standard library, so that any Python can run it:
`python -m course_utils.data.corpus` prints what that Python's corpus holds.

The rules, in the order in which they apply:

1. A row is one function or method. A function inside a function belongs to the outer one and is no row of its own.
2. The text is the source as it stands, decorators, comments and docstring included, less its common indentation. A
   method comes under the first line of its class: `class Queue(mixins._LoopBoundMixin):`.
3. A function that names its own package as a word (`import asyncio`, `asyncio.run`) is left out: it gives the
   label away.
4. A function of fewer than `MIN_LINES` lines or `MIN_TOKENS` tokens, its class line not counted, is left out.
5. Of two *near-duplicates*, the one that comes later in (label, file, line) order is left out. Near-duplicates are
   functions whose sets of three consecutive tokens, class line not counted, have a Jaccard similarity of at least
   `NEAR_DUPLICATE`. They are sought in the whole corpus, so none is left across splits either.
6. Whole files go to a split, so that no file is in two; see `assign_files`.
"""

import ast
import hashlib
import re
import sys
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from course_utils.errors import CourseError

VERSION = 1
"""Raise it with any change to the rules: cached copies of the corpus are kept by this number."""

PACKAGES = (
    "asyncio", "ctypes", "email", "encodings", "importlib", "multiprocessing", "unittest", "urllib", "wsgiref", "xml",
)  # fmt: skip
"""The labels: packages with functions in many files that every ordinary CPython from 3.11 has, Debian's included."""

SPLITS = {"train": Fraction(8, 10), "validation": Fraction(1, 10), "test": Fraction(1, 10)}
FEWEST_PACKAGES = 5
MIN_LINES = 2
MIN_TOKENS = 12
NEAR_DUPLICATE = Fraction(7, 10)
SHINGLE = 3

_TEST_FOLDERS = {"test", "tests", "testmock", "idle_test", "__pycache__"}
_TOKEN = re.compile(r"\w+|[^\w\s]")


class Function(NamedTuple):
    """One row: `file` is relative to the standard library, with forward slashes; `line` is its first line there."""

    label: str
    file: str
    line: int
    name: str
    text: str


def standard_library() -> Path:
    """The folder that holds the standard library of this Python."""
    return Path(sysconfig.get_path("stdlib"))


def read_functions(library: Path | None = None) -> list[Function]:
    """Every function that rules 1 to 5 keep, in (label, file, line) order.

    Raises `CourseError` where fewer than `FEWEST_PACKAGES` packages have source files.
    """
    library = library or standard_library()
    rows = [row for label in present_packages(library) for row in _package_functions(library, label)]
    return drop_near_duplicates(sorted(rows, key=lambda row: row[:3]))


def present_packages(library: Path) -> list[str]:
    """The `PACKAGES` with source for all splits; raises `CourseError` where they are fewer than `FEWEST_PACKAGES`."""
    present = [label for label in PACKAGES if len(source_files(library, label)) >= len(SPLITS)]
    if len(present) < FEWEST_PACKAGES:
        raise CourseError(
            f"Only {len(present)} of the {len(PACKAGES)} packages of the corpus have source files in {library}; "
            "use a Python installed with its library as .py files, such as one from python.org."
        )
    return present


def source_files(library: Path, label: str) -> list[Path]:
    """The `.py` files of a package, less its test folders, which only some versions have."""
    files = (library / label).rglob("*.py")
    return sorted(file for file in files if _TEST_FOLDERS.isdisjoint(file.relative_to(library).parts))


def functions_in(source: str, label: str, file: str) -> Iterator[Function]:
    """The functions of one file by rules 1 and 2; `label` and `file` are written into the rows."""
    lines = source.splitlines()
    for function, owner, name in _definitions(ast.parse(source)):
        first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
        yield Function(label, file, first, name, _text(lines[first - 1 : function.end_lineno], owner))


def is_worth_keeping(row: Function) -> bool:
    """Whether rules 3 and 4 keep the row."""
    body = without_class_line(row.text)
    long_enough = len(tokens_of(body)) >= MIN_TOKENS and body.count("\n") + 1 >= MIN_LINES
    return long_enough and row.label not in tokens_of(row.text)


def without_class_line(text: str) -> str:
    """The function alone: `text` less the line of its class, where it has one."""
    return text.partition("\n")[2] if text.startswith("class ") else text


def tokens_of(text: str) -> list[str]:
    """Words and single signs: what near-duplicates are compared by."""
    return _TOKEN.findall(text)


def shingles(text: str) -> frozenset[tuple[str, ...]]:
    """The set of `SHINGLE` consecutive tokens of a text."""
    tokens = tokens_of(text)
    return frozenset(zip(*(tokens[start:] for start in range(SHINGLE)), strict=False))


def drop_near_duplicates(rows: list[Function]) -> list[Function]:
    """The rows less each one that is a near-duplicate of an earlier kept row; exact, not a sketch.

    Two sets with Jaccard similarity t share an element among the rarest |A| - ceil(t |A|) + 1 of each, so only rows
    that meet there are compared (prefix filtering; Chaudhuri, Ganti and Kaushik, 2006).
    """
    sets = [shingles(without_class_line(row.text)) for row in rows]
    frequency = Counter(shingle for group in sets for shingle in group)
    seen_at: dict[tuple, list[int]] = defaultdict(list)
    kept = []
    for index, group in enumerate(sets):
        prefix = _rarest(group, frequency)
        candidates = {other for shingle in prefix for other in seen_at[shingle]}
        if not any(_similar(group, sets[other]) for other in candidates):
            kept.append(index)
            for shingle in prefix:
                seen_at[shingle].append(index)
    return [rows[index] for index in kept]


def assign_files(rows: Iterable[Function]) -> dict[str, str]:
    """The split of every file: `{"asyncio/events.py": "train", ...}`.

    For each package, files go from the one with most functions down to the split that is furthest below its share
    of functions. While a split is empty and no file is to spare, it gets the file. Files of equal size are taken in
    the order of the SHA-256 of their path.
    """
    by_package: dict[str, Counter] = defaultdict(Counter)
    for row in rows:
        by_package[row.label][row.file] += 1
    return {file: split for counts in by_package.values() for file, split in _assign(counts).items()}


def _package_functions(library: Path, label: str) -> Iterator[Function]:
    for path in source_files(library, label):
        file = path.relative_to(library).as_posix()
        rows = functions_in(path.read_text(encoding="utf-8"), label, file)
        yield from filter(is_worth_keeping, rows)


def _definitions(
    node: ast.AST, owner: ast.ClassDef | None = None, scope: tuple[str, ...] = ()
) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, ast.ClassDef | None, str]]:
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
    return "\n".join([_class_line(owner), *("    " + line if line else "" for line in flush)])


def _class_line(owner: ast.ClassDef) -> str:
    bases = ", ".join(ast.unparse(base) for base in owner.bases)
    return f"class {owner.name}({bases}):" if bases else f"class {owner.name}:"


def _rarest(group: frozenset, frequency: Counter) -> list[tuple]:
    most_shared = -(-len(group) * NEAR_DUPLICATE.numerator // NEAR_DUPLICATE.denominator)
    return sorted(group, key=lambda shingle: (frequency[shingle], shingle))[: len(group) - most_shared + 1]


def _similar(one: frozenset, other: frozenset) -> bool:
    shared = len(one & other)
    return shared * NEAR_DUPLICATE.denominator >= (len(one) + len(other) - shared) * NEAR_DUPLICATE.numerator


def _assign(counts: Counter) -> dict[str, str]:
    missing = {split: share * counts.total() for split, share in SPLITS.items()}
    empty = set(SPLITS)
    files = sorted(counts, key=lambda file: (-counts[file], hashlib.sha256(file.encode()).hexdigest()))
    assigned = {}
    for position, file in enumerate(files):
        open_splits = empty if len(files) - position <= len(empty) else SPLITS
        split = max((split for split in SPLITS if split in open_splits), key=missing.__getitem__)
        assigned[file] = split
        missing[split] -= counts[file]
        empty.discard(split)
    return assigned


def _report() -> None:
    rows = read_functions()
    splits = assign_files(rows)
    counts = Counter((row.label, splits[row.file]) for row in rows)
    print(sys.version.split()[0], len(rows), "functions")
    for label in sorted({row.label for row in rows}):
        print(label, *(counts[label, split] for split in SPLITS))


if __name__ == "__main__":
    _report()
