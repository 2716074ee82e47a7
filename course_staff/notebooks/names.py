"""The names by which cells depend on each other: those that a piece of code uses, and those that it binds."""

import ast
import builtins
import symtable
from functools import lru_cache


def statements_of(source: str) -> list[ast.stmt]:
    """The statements of a cell; none where it holds IPython's own syntax, as the set-up cell does."""
    try:
        return ast.parse(source).body
    except SyntaxError:
        return []


@lru_cache(maxsize=1024)
def uses_and_binds(source: str) -> tuple[frozenset[str], frozenset[str]]:
    """The names that a cell takes from elsewhere, and those that it gives to others; none of both for IPython's own syntax."""
    used, bound = set(), set()
    for statement in statements_of(source):
        uses, binds = of_statement(statement)
        used |= uses - bound
        bound |= binds
    return frozenset(used - set(dir(builtins))), frozenset(bound)


def of_statement(statement: ast.stmt) -> tuple[set[str], set[str]]:
    """The names that one statement takes from elsewhere, built-in ones too, and those that it gives to what follows."""
    table = symtable.symtable(ast.unparse(statement), "cell", "exec")
    uses = {s.get_name() for s in table.get_symbols() if s.is_referenced()}
    inside = table.get_children()
    for inner in inside:
        inside += inner.get_children()
        uses |= {s.get_name() for s in inner.get_symbols() if s.is_global() and s.is_referenced()}
    binds = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported() or s.is_namespace()}
    # A loop or a definition binds its own names before it uses them.
    if not isinstance(statement, ast.Assign | ast.AnnAssign):
        uses -= binds
    changed = {
        n.target.id for n in ast.walk(statement) if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)
    }
    return uses | changed, binds
