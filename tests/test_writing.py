"""What people read is spelled in American English, every link is alive, every paper cited alike; planted slips are found."""

import json
import re
from collections import defaultdict
from pathlib import Path

import prose
import pytest
import spelling

from course_staff.notebooks.links import bad_addresses, dead_links
from course_staff.notebooks.links import prose as prose_of

ROOT = prose.ROOT
CHAPTERS = sorted(ROOT.glob("notebooks/*.ipynb"))
EXERCISES = sorted(path for folder in ("solutions", "exercises") for path in ROOT.glob(f"{folder}/*.ipynb"))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", [*prose.DOCUMENTS, *prose.NOTEBOOKS], ids=name)
def test_documents_and_notebooks_are_spelled_right(path):
    assert slips_in(path) == []


def test_docstrings_comments_and_messages_are_spelled_right():
    assert [slip for path in prose.MODULES for slip in slips_in(path)] == []


def slips_in(path: Path) -> list[str]:
    return [f"{place}: {remark}" for place, text in prose.texts(path) for remark in spelling.remarks(text)]


def test_our_own_words_are_sorted():
    listed = spelling.ADDED.read_text(encoding="utf-8").split()
    assert listed == sorted(set(listed), key=lambda word: (word.lower(), word))


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ("The gradeint is zero.", "gradeint: not a word"),
        ("Teh loss falls.", "Teh: write the"),
        ("A colum of the matrix.", "colum: write column"),
        ("The colour of the line.", "colour: write color"),
        ("Optimisers normalise.", "Optimisers: write optimizers"),
        ("as kingma showed", "kingma: not a word"),
        ("Take the the mean.", "the the: once is enough"),
        ("It is factorised.", "factorised: write factorized"),
        ("It ends in\nin the next line.", "in in: once is enough"),
        ("a half-finishd thing", "finishd: write finished"),
    ],
)
def test_a_planted_slip_is_found(text, remark):
    assert any(found.startswith(remark) for found in spelling.remarks(text))


@pytest.mark.parametrize(
    "text",
    [
        "`teh` is code, and so is\n```\ngradeint\n```\n",
        "$colour = \\gama$ is a formula",
        "[A link](teh_gradeint.ipynb), https://example.org/teh",
        "AdamW, GPT-2, fp16, H100 and x_teh are names, and Kingma's is one",
        "a plug-in in use; the N-ths around; **bold** *words*, “quoted”.",
    ],
)
def test_what_is_no_prose_is_left_alone(text):
    assert list(spelling.remarks(text)) == []


def test_slips_are_found_wherever_people_read(tmp_path, monkeypatch):
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    source = (
        '"""Teh module."""\n\nx = 1  # a coment here\nprint(f"{x} gradeints fall")\nraise ValueError("give a numbr")\n'
    )
    cells = [
        {"cell_type": "markdown", "source": ["A headng"]},
        {"cell_type": "code", "source": ["%pip x\n", 'show(alt="a lnie falls")']},
    ]
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "m.py").write_text(source)
    (tmp_path / "notebooks" / "a.ipynb").write_text(json.dumps({"cells": cells}))
    found = [
        remark.split(": ")[1]
        for path in (tmp_path / "m.py", tmp_path / "notebooks" / "a.ipynb")
        for remark in slips_in(path)
    ]
    assert found == ["Teh", "gradeints", "numbr", "coment", "headng", "lnie"]


@pytest.mark.parametrize("path", [*prose.DOCUMENTS, *EXERCISES], ids=name)
def test_every_link_of_documents_and_exercises_leads_somewhere(path):
    """Those of chapters are seen to by the chapter checker; see test_notebooks."""
    assert [f"cell {number}: {remark}" for number, text in prose_of(path) for remark in dead_links(path, text)] == []


def test_the_addresses_in_docstrings_and_messages_are_well_formed():
    texts = [text for path in prose.MODULES for text in prose.texts(path)]
    assert [f"{place}: {remark}" for place, text in texts for remark in bad_addresses(text)] == []


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
        ("https://arxiv.org/pdf/1711.05101", "not a paper's page"),
        ("https://www.arxiv.org/abs/1711.05101", "not a paper's page"),
        ("https://pytorch.org/TODO", "not written out"),
    ],
)
def test_a_planted_dead_link_is_found(link, remark, documents):
    (found,) = dead_links(documents / "README.md", write(documents, f"# Here\n\n[x]({link})."))
    assert remark in found


def write(folder: Path, text: str) -> str:
    (folder / "README.md").write_text(text)
    return text


# A citation as chapters write it: authors, the title in italics, where and when it appeared.
CITATION = re.compile(r"(?:^- |; |\. |: )([^*;\n]+?),? \*([^*]+)\*, ([^:;(\n]*?\d{4})", re.MULTILINE)
SENTENCE = re.compile(r"(?<=[a-z0-9)])[.:] ")


def citations(text: str) -> list[tuple[str, str, str]]:
    """Title, authors and place of every paper cited in `text`; what stands before the authors on their line is cut off."""
    return [(title, SENTENCE.split(authors)[-1], place) for authors, title, place in CITATION.findall(text)]


def sources() -> list[tuple[str, str]]:
    """The chapters' lists of sources."""
    parts = [(path.name, text.partition("### Sources")[2]) for path in CHAPTERS for _, text in prose_of(path)]
    return [(chapter, text) for chapter, text in parts if text]


def cited_differently(texts: list[tuple[str, str]]) -> list[str]:
    """The titles that two texts give different authors, or another place or year."""
    told = defaultdict(set)
    for _, text in texts:
        for title, authors, place in citations(text):
            told[title].add((authors, place))
    return [f"{title}: {sorted(ways)}" for title, ways in told.items() if len(ways) > 1]


def test_a_paper_is_cited_alike_in_every_chapter():
    assert len(sources()) == len(CHAPTERS)
    assert cited_differently(sources()) == []
    assert sum(len(citations(text)) for _, text in sources()) > 2 * len(CHAPTERS)


def test_a_paper_cited_in_two_ways_is_found():
    first = "\n- D. P. Kingma and J. Ba, *Adam: A Method*, ICLR 2015: Algorithm 1."
    assert cited_differently([("a", first), ("b", first.replace(": Algorithm 1", ""))]) == []
    assert cited_differently([("a", first), ("b", first.replace("2015", "2014"))]) != []
    assert cited_differently([("a", first), ("b", first.replace("J. Ba", "J. L. Ba"))]) != []
