"""While ranks work, a notebook says so; nothing of it is stored, and elsewhere nothing is said."""

from types import SimpleNamespace

import IPython
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from course_staff.notebooks.clean import clean
from course_utils.distributed import waiting


@pytest.fixture
def displays(monkeypatch):
    """What is displayed or updated, as (bundle, metadata)."""
    seen = []
    handle = SimpleNamespace(update=lambda bundle, metadata, raw: seen.append((bundle, metadata)))

    def display(bundle, metadata, raw, display_id):
        seen.append((bundle, metadata))
        return handle

    monkeypatch.setattr("IPython.display.display", display)
    return seen


def in_a_notebook(monkeypatch, strict=False):
    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setattr(waiting, "settings", lambda: SimpleNamespace(strict=strict))


def test_a_notebook_shows_a_line_before_and_another_after(monkeypatch, displays):
    in_a_notebook(monkeypatch)
    with waiting.sign_of_life(2):
        assert [bundle["text/plain"] for bundle, _ in displays] == ["2 ranks at work …"]
    assert displays[-1][0]["text/plain"].startswith("2 ranks, ")


def test_the_line_says_how_long_also_where_a_rank_failed(monkeypatch, displays):
    in_a_notebook(monkeypatch)
    with pytest.raises(ValueError, match="rank"), waiting.sign_of_life(1):
        raise ValueError("rank")
    assert displays[-1][0]["text/plain"].startswith("1 rank, ")


def test_it_is_not_stored(monkeypatch, displays):
    in_a_notebook(monkeypatch)
    with waiting.sign_of_life(2):
        pass
    outputs = [new_output("display_data", bundle, metadata=metadata) for bundle, metadata in displays]
    notebook = clean(new_notebook(cells=[new_code_cell("x", outputs=outputs)]), "a", "smoke")
    assert notebook.cells[0].outputs == []


def test_nothing_is_said_in_a_strict_run_or_outside_of_notebooks(monkeypatch, displays):
    with waiting.sign_of_life(2):
        pass
    in_a_notebook(monkeypatch, strict=True)
    with waiting.sign_of_life(2):
        pass
    assert displays == []
