"""The automatic mutants of an answer: each is one change, all are different, and comments and order of text do not count."""

import ast

import pytest

from benchmarks.mutation import ROOT, explained, mutants, survivors
from course_staff.release.source import load_solutions

ANSWER = '''\
def answer(x, y):
    """Twice x, unless it is None."""
    if x is None:
        return 0
    z = 2 * x
    return z - y
'''


def test_mutants_are_valid_and_all_different():
    sources = [source for _, source in mutants(ANSWER)]
    assert len(set(sources)) == len(sources)
    assert ast.unparse(ast.parse(ANSWER)) not in sources
    for source in sources:
        ast.parse(source)


def test_operators_constants_comparisons_order_and_lines_are_changed():
    descriptions = [description for description, _ in mutants(ANSWER)]
    for expected in (
        "if x is None: → if x is not None:",
        "z = 2 * x → z = 2 / x",
        "z = 2 * x → z = 3 * x",
        "return z - y → return z + y",
        "return z - y → return y - z",
        "line 5: z = 2 * x ⇄ return z - y",
        "line 5: without z = 2 * x",
    ):
        assert expected in descriptions, descriptions


def test_the_docstring_is_left_alone():
    functions = [source for _, source in mutants(ANSWER) if source != "pass"]
    assert all('"""Twice x, unless it is None."""' in source for source in functions)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what mutants do to be warned of
@pytest.mark.parametrize("path", sorted((ROOT / "solutions").glob("*.ipynb")), ids=lambda path: path.stem)
def test_of_every_survivor_it_is_said_why(path):
    surviving = {authored.question.id: set(survivors(authored)[1]) for authored in load_solutions(path)}
    assert {question: alive for question, alive in surviving.items() if alive} == explained(path.stem)
