"""A notebook with a check of three questions, and a checkout with our solution of the first."""

import json
import sys

import pytest
from checked_notebook import BUG, CODE, SOLUTION, STUB, VALUE, entry, tripling
from IPython.core.interactiveshell import InteractiveShell

from course_utils import settings
from course_utils.grading.check import Checker


@pytest.fixture
def strict(monkeypatch):
    monkeypatch.setenv("COURSE_STRICT", "1")
    settings.settings.cache_clear()


@pytest.fixture
def entries():
    return [
        entry("q1", CODE, "double", STUB, mistakes=tripling()),
        entry("q2", BUG, "twice", "def twice(x):\n    return x", has_hidden=True),
        entry("q3", VALUE, "size", "size = ..."),
    ]


@pytest.fixture
def notebook(entries):
    """A shell with `check` in it; `checked_notebook.run` runs a cell in it."""
    InteractiveShell.clear_instance()
    main = sys.modules["__main__"]
    shell = InteractiveShell.instance()
    sys.modules["__main__"] = shell.user_module
    shell.user_ns["check"] = Checker("03_test", entries, shell, seconds=0.5)
    yield shell
    InteractiveShell.clear_instance()
    sys.modules["__main__"] = main


@pytest.fixture
def solutions(tmp_path, monkeypatch):
    """A checkout whose `solutions/` hold the test's set; its folder is where the notebook runs."""
    for folder in ("notebooks", "course_utils", "solutions"):
        (tmp_path / folder).mkdir()
    path = tmp_path / "solutions" / "03_test.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": SOLUTION.splitlines(keepends=True)}]}))
    monkeypatch.chdir(tmp_path)
    return path
