"""Every link of documents and exercises leads somewhere, and planted dead ones are found; `course lint` sees to the chapters'."""

import json
from pathlib import Path

import pytest

from course_staff.notebooks.links import dead_links, prose

ROOT = Path(__file__).parents[3]
DOCUMENTS = [path for folder in (".", "docs", "exercises", "solutions") for path in sorted(ROOT.glob(f"{folder}/*.md"))]
EXERCISES = [path for folder in ("solutions", "exercises") for path in sorted(ROOT.glob(f"{folder}/*.ipynb"))]


@pytest.mark.parametrize("path", [*DOCUMENTS, *EXERCISES], ids=lambda path: path.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(path):
    assert [f"cell {number}: {remark}" for number, text in prose(path) for remark in dead_links(path, text)] == []


@pytest.fixture
def documents(tmp_path):
    """Two documents to link between."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "guide.md").write_text("# The guide\n\n## What's *new* in 2.0?\n\n## Use\n\n## Use\n")
    cells = [{"cell_type": "markdown", "source": "## By hand", "metadata": {}, "id": "a"}]
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "a b.ipynb").write_text(json.dumps(notebook))
    return tmp_path


@pytest.mark.parametrize(
    "link",
    [
        "docs/guide.md", "docs/", "docs/guide.md#the-guide", "docs/guide.md#whats-new-in-20", "docs/guide.md#use-1",
        "a%20b.ipynb", "a%20b.ipynb#By-hand", "#here", "https://arxiv.org/abs/1711.05101", "mailto:a@example.org",
    ],
)  # fmt: skip
def test_a_good_link_is_let_pass(link, documents):
    assert list(dead_links(documents / "README.md", write(documents, f"# Here\n\n[x]({link})."))) == []


@pytest.mark.parametrize(
    ("link", "remark"),
    [
        ("docs/guid.md", "leads nowhere"),
        ("docs/guide.md#The-guide", "leads nowhere"),
        ("docs/guide.md#use-2", "leads nowhere"),
        ("a%20b.ipynb#by-hand", "leads nowhere"),
        ("#there", "leads nowhere"),
        ("a b.ipynb", "has a space"),
        ("http://pytorch.org", "is not read over https"),
        ("https://pytorch", "no host that could answer"),
        ("https://arxiv.org/abs/1713.05101", "not a paper's page"),
        ("https://pytorch.org/TODO", "not written out"),
    ],
)
def test_a_planted_dead_link_is_found(link, remark, documents):
    (found,) = dead_links(documents / "README.md", write(documents, f"# Here\n\n[x]({link})."))
    assert remark in found


def write(folder: Path, text: str) -> str:
    (folder / "README.md").write_text(text)
    return text
