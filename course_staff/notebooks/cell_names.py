"""The names by which cells depend on each other: those that code takes from elsewhere, and those that it binds for others."""

import ast
import builtins
import symtable
from collections.abc import Iterable, Sequence
from functools import lru_cache


def statements_of(source: str) -> list[ast.stmt]:
    """The statements of a cell; none where it holds IPython's own syntax, as the set-up cell does."""
    try:
        return ast.parse(source).body
    except SyntaxError:
        return []


@lru_cache(maxsize=1024)
def uses_and_binds(source: str) -> tuple[frozenset[str], frozenset[str]]:
    """The names that a cell uses from elsewhere, and those that it binds; none of both for IPython's own syntax."""
    free, bound = set(), set()
    for statement in statements_of(source):
        uses, binds = names_in_statement(statement)
        free |= uses - bound
        bound |= binds
    return frozenset(free - set(dir(builtins))), frozenset(bound)


def names_in_statement(statement: ast.stmt) -> tuple[set[str], set[str]]:
    """The names that one statement uses from elsewhere, built-in ones too, and those that it binds."""
    uses, binds = names_in_table(symtable.symtable(ast.unparse(statement), "cell", "exec"))
    # A loop or a definition binds its own names before it uses them.
    if not isinstance(statement, ast.Assign | ast.AnnAssign):
        uses -= binds
    targets = [node.target for node in ast.walk(statement) if isinstance(node, ast.AugAssign)]
    augmented = {target.id for target in targets if isinstance(target, ast.Name)}
    return uses | augmented, binds


def names_in_table(table: symtable.SymbolTable) -> tuple[set[str], set[str]]:
    """The names that code uses at its top level and, in functions and classes, from there; and those that it binds there."""
    uses, binds = set(), set()
    stack = [table]
    while stack:
        inner = stack.pop()
        stack += inner.get_children()
        for symbol in inner.get_symbols():
            if inner is table or symbol.is_global():
                if symbol.is_assigned() or symbol.is_imported():
                    binds.add(symbol.get_name())
                if symbol.is_referenced():
                    uses.add(symbol.get_name())
    return uses, binds


def find_needs(targets: Iterable[int], sources: Sequence[str]) -> set[int]:
    """The positions of those `sources` that bind what the ones at `targets` use, and of what these need in turn.

    Of several that bind a name, the last one before its use is needed.
    """
    positions, stack = set(), list(targets)
    while stack:
        position = stack.pop()
        for name in uses_and_binds(sources[position])[0]:
            binding = [earlier for earlier in range(position) if name in uses_and_binds(sources[earlier])[1]]
            if binding and binding[-1] not in positions:
                positions.add(binding[-1])
                stack.append(binding[-1])
    return positions
