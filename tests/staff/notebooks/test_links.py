"""Where links lead, in documents and notebooks alike; planted dead ones are found."""

import json

import pytest

from course_staff.notebooks.links import dead_links
from course_utils.cli import main


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
        ("https://www.arxiv.org/abs/1711.05101", "not a paper's page"),
        ("https://pytorch.org/TODO", "not written out"),
    ],
)
def test_a_planted_dead_link_is_found(link, remark, documents):
    (dead,) = dead_links(documents / "README.md", write(documents, f"# Here\n\n[x]({link})."))
    assert remark in dead


def write(folder, text):
    (folder / "README.md").write_text(text)
    return text


def test_lint_follows_the_links_of_documents_and_of_exercises_notebooks(documents, monkeypatch, capsys):
    for name in ("course_utils", "notebooks", "exercises"):
        (documents / name).mkdir()
    write(documents, "[x](docs/guid.md)")
    notebook = (documents / "a b.ipynb").read_text().replace("## By hand", "[x](99_none.ipynb)")
    (documents / "exercises" / "e.ipynb").write_text(notebook)
    monkeypatch.chdir(documents)
    assert main(["lint"]) == 1
    assert [line for line in capsys.readouterr().out.splitlines() if "leads nowhere" in line] == [
        "README.md: the link to docs/guid.md leads nowhere; correct or remove it.",
        "e.ipynb, cell 1: the link to 99_none.ipynb leads nowhere; correct or remove it.",
    ]
