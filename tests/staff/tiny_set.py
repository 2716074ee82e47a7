"""Notebooks for a tiny set of two questions, and what the tests of grading do with them."""

import json
import os
from functools import cache

import pytest

from course_staff.grading import sandbox
from course_staff.notebooks.files import read_notebook
from course_staff.release.source import marker

SET, SEED = "99_tiny", 20
Q1 = """# QUESTION q1
import torch
from course_utils.grading import Case, Mistake, Question, function

def product(x, factor):
    return x * factor

def draw(random, numbers):
    return {"x": torch.tensor([random.random() for _ in range(numbers)], dtype=torch.float64), "factor": 2 + random.random()}

def public(random):
    return [Case("two numbers", draw(random, 2)), Case("none", draw(random, 0))]

# HIDDEN
def hidden(random):
    return [Case("two numbers", draw(random, 3))]

mistakes = [Mistake("sum", "Your product is a sum.", (("x * factor", "x + factor"),), 1)]
# END HIDDEN
question = function(product, id="q1", title="Product <b>", points=2, difficulty=1, minutes=1,
    hints=("h1", "h2", "h3"), answer="scale", public=public)
"""
Q2 = """# QUESTION q2
from course_utils.grading import Case, function

question = function(lambda n: n + 1, id="q2", title="Next", points=1, difficulty=1, minutes=1, hints=("h1", "h2", "h3"),
    answer="following", public=lambda random: [Case("three", {"n": 3})], counted=("result",))
"""
Q1_ANSWER = """# EXERCISE q1
def scale(x, factor):
    ### BEGIN SOLUTION
    return x * factor
    ### END SOLUTION
"""
Q2_ANSWER = """# EXERCISE q2
def following(n):
    ### BEGIN SOLUTION
    return n + 1
    ### END SOLUTION
"""
SETUP = f'from course_utils.grading import exercise\n\ncheck = exercise("{SET}")\nshared = 1'


@cache
def best_kind():
    """The safest kind of sandbox that this machine has."""
    return sandbox.best_kind(trust=True)


def need_sandbox(kind="bwrap"):
    """Skip a test where the machine has nothing as safe as `kind`. With `CI` set it fails: a green run would prove nothing."""
    if sandbox.SANDBOX_KINDS.index(kind) < sandbox.SANDBOX_KINDS.index(best_kind()):
        give_up = pytest.fail if os.environ.get("CI") else pytest.skip
        give_up(f"this needs a sandbox of the kind {kind}, and the best that this machine has is {best_kind()}")


def cell(text, kind="code", **fields):
    outputs = {"outputs": [], "execution_count": None} if kind == "code" else {}
    return {"cell_type": kind, "metadata": {}, "source": text, **outputs, **fields}


def notebook(*cells, **fields):
    """The text of a notebook; cells are sources of code, or whole."""
    all_cells = [content if isinstance(content, dict) else cell(content) for content in cells]
    metadata = {"kernelspec": {"language": "python"}}
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": metadata, "cells": all_cells, **fields})


def answered(path, answers):
    """The text of the notebook at `path` with these answers, by question, in the cells for them."""
    exercises = read_notebook(path)
    for hole in exercises["cells"]:
        if (mark := marker(hole)) and mark[1] in answers:
            answer = answers[mark[1]]
            hole["source"] = answer if answer.startswith("# EXERCISE") else f"# EXERCISE {mark[1]}\n{answer}"
    return json.dumps(exercises)


def submission(answer):
    return notebook(SETUP, answer, 'check("q1")', Q2_ANSWER, 'check("q2")')


def answer_with(body, before=""):
    lines = "\n".join(f"    {line}" for line in body.splitlines())
    return submission(f"# EXERCISE q1\n{before}\ndef scale(x, factor):\n{lines}\n")


def points(record):
    return [question["points"] for question in record["questions"]]


def kinds(record):
    return {verdict["kind"] for question in record["questions"] for verdict in question["public"] + question["hidden"]}
