"""Which small changes of a solution does no case notice? Automatic mutants of every answer of a set, and those that survive.

`python -m benchmarks.mutation 03_adamw`. A mutant changes one thing: an operator, a comparison, a constant, the order of two
statements, a dropped line, a name for another, a method for its neighbor. It survives where the public cases and the hidden ones
of three seeds all pass; it is then the same thing written differently, or the question wants a new case. `survivors.json` in
`solutions/` says of each why it may live, and `make test-all` compares. Questions whose answer is a test of others are left out:
what finds the same mistakes is as right. So are those whose answer trains: many changes reach the target all the same.
"""

import argparse
import ast
import copy
import json
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

from course_staff.release.case_runner import outcomes
from course_staff.release.source import AuthoredQuestion, load_solutions
from course_utils.grading.compare import compare
from course_utils.grading.values import conform

ROOT = Path(__file__).parents[1]
SEEDS = (1, 2, 3)
SECONDS = 5.0
EXPLAINED = ROOT / "solutions" / "survivors.json"
"""{set: {question: {why they may survive: [mutants]}}}."""

_OPERATORS = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div, ast.Add),
    ast.Div: (ast.Mult,),
    ast.Pow: (ast.Mult,),
    ast.BitOr: (ast.BitAnd,),
}
_COMPARISONS = {
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Lt: (ast.LtE, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt),
}
_NEIGHBOURS = {
    "mul_": ("mul", "add_", "div_"),
    "add_": ("add", "sub_"),
    "addcmul_": ("addcmul", "addcdiv_"),
    "addcdiv_": ("addcdiv", "addcmul_"),
    "sqrt": ("square", "abs"),
    "zeros_like": ("ones_like",),
    "deepcopy": ("copy",),
}


def mutants(source: str) -> Iterator[tuple[str, str]]:
    """(what was changed, the changed source) for every mutant of `source`, each different from it and from the others."""
    tree = ast.parse(source)
    seen = {ast.unparse(tree)}
    for position, node in enumerate(ast.walk(tree)):
        for description, change in _changes(node, tree):
            mutant = copy.deepcopy(tree)
            target = next(other for i, other in enumerate(ast.walk(mutant)) if i == position)
            change(target)
            text = ast.unparse(ast.fix_missing_locations(mutant))
            if text not in seen:
                seen.add(text)
                yield description or _describe(source, text), text


def explained(name: str) -> dict[str, set[str]]:
    """The mutants of which `EXPLAINED` says why they survive, by question of that set."""
    groups = json.loads(EXPLAINED.read_text("utf-8")).get(name, {})
    return {
        question: {mutant for group in reasons.values() for mutant in group} for question, reasons in groups.items()
    }


def survivors(authored: AuthoredQuestion) -> tuple[int, list[str]]:
    """The number of mutants of a question's solution, and descriptions of those that pass every case."""
    if authored.question.share or authored.question.figures:
        return 0, []
    cases = authored.question.cases() + [case for seed in SEEDS for case in authored.question.cases(seed)]
    expected = [authored.question.expected(case.inputs) for case in cases]
    all_mutants = list(mutants(authored.solution))
    return len(all_mutants), [
        description for description, source in all_mutants if _survives(authored, source, cases, expected)
    ]


def main() -> None:
    """Print a line per question and one per survivor; a mark stands before those that nobody has explained."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("set", help="a notebook of solutions/, such as 03_adamw")
    parser.add_argument("questions", nargs="*", help="ids; by default every question")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    total = left = 0
    accepted = explained(arguments.set)
    for authored in load_solutions(ROOT / "solutions" / f"{arguments.set}.ipynb"):
        if not arguments.questions or authored.question.id in arguments.questions:
            count, alive = survivors(authored)
            total, left = total + count, left + len(alive)
            print(f"{authored.question.id}: {count} mutants, {len(alive)} survive", flush=True)
            for description in alive:
                print(
                    f"    {description}"
                    if description in accepted.get(authored.question.id, ())
                    else f"  ! {description}"
                )
    print(f"{total} mutants, {left} survive")


def _survives(authored: AuthoredQuestion, source: str, cases, expected) -> bool:
    """One case after the other, so that the first that fails ends it."""
    for case, right in zip(cases, expected, strict=True):
        (outcome,) = outcomes(authored, source, [case], SECONDS)
        if outcome.kind != "values" or outcome.mutated:
            return False
        if compare(right, conform(right, outcome.values), authored.question.tolerance):
            return False
    return True


def _changes(node: ast.AST, tree: ast.AST) -> Iterator:
    """(What it does, a function that does it to a copy of `node`, in place) for each change; what may be left empty."""
    yield from (("", change) for change in _changes_in_place(node, tree))
    for field in ("body", "orelse"):
        block = getattr(node, field, None)
        if isinstance(block, list) and block:
            yield from _changes_of_block(field, block)


def _changes_in_place(node: ast.AST, tree: ast.AST) -> Iterator:
    if isinstance(node, ast.BinOp | ast.AugAssign):
        yield from (_setting("op", kind()) for kind in _OPERATORS.get(type(node.op), ()))
    if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.Add | ast.Mult | ast.BitOr):
        yield _exchange_operands
    if isinstance(node, ast.Compare):
        yield from (_setting("ops", [kind()]) for kind in _COMPARISONS.get(type(node.ops[0]), ()))
    if isinstance(node, ast.BoolOp):
        yield _setting("op", ast.And() if isinstance(node.op, ast.Or) else ast.Or())
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield _setting("op", ast.UAdd())
    if isinstance(node, ast.Constant):
        yield from (_setting("value", value) for value in _other_constants(node.value))
    if isinstance(node, ast.Attribute):
        yield from (_setting("attr", name) for name in _NEIGHBOURS.get(node.attr, ()))
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield from (_setting("id", name) for name in _names_like(node.id, tree))


def _changes_of_block(field: str, block: list[ast.stmt]) -> Iterator:
    first = 1 if _is_docstring(block[0]) else 0
    for i, statement in enumerate(block[first:], start=first):
        text = ast.unparse(statement).partition("\n")[0]
        yield f"line {statement.lineno}: without {text}", _dropping(field, i)
        if isinstance(statement, ast.Continue):
            yield f"line {statement.lineno}: break for continue", _replacing(field, i, ast.Break)
        if i + 1 < len(block):
            following = ast.unparse(block[i + 1]).partition("\n")[0]
            yield f"line {statement.lineno}: {text} ⇄ {following}", _exchanging(field, i)


def _setting(name: str, value):
    return lambda node: setattr(node, name, value)


def _exchange_operands(node: ast.BinOp) -> None:
    node.left, node.right = node.right, node.left


def _dropping(field: str, i: int):
    def change(node):
        block = getattr(node, field)
        block[i : i + 1] = [] if len(block) > 1 else [ast.Pass()]

    return change


def _exchanging(field: str, i: int):
    def change(node):
        block = getattr(node, field)
        block[i], block[i + 1] = block[i + 1], block[i]

    return change


def _replacing(field: str, i: int, kind: type):
    return lambda node: getattr(node, field).__setitem__(i, kind())


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _other_constants(value) -> tuple:
    if type(value) is bool:
        return (not value,)
    if type(value) is int:
        return (value + 1, value - 1, 2 * value)
    if type(value) is float:
        return (2 * value, value / 2, 0.0)
    return ()


def _names_like(name: str, tree: ast.AST) -> list[str]:
    """Other names that the answer assigns: what one may have meant to type."""
    assigned = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return sorted(assigned - {name}) if name in assigned else []


def _describe(source: str, mutant: str) -> str:
    """The lines that differ, before and after."""
    before, after = ast.unparse(ast.parse(source)).splitlines(), mutant.splitlines()
    pairs = [(a.strip(), b.strip()) for a, b in zip(before, after, strict=False) if a != b]
    return " / ".join(f"{a} → {b}" for a, b in pairs)


if __name__ == "__main__":
    main()
