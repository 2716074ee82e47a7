"""What `course lint` notes of sentences, and the claims that it holds to what they rest on."""

import pytest
from nbformat.v4 import new_markdown_cell, new_notebook

from course_staff.notebooks.anatomy import Chapter
from course_staff.notebooks.sentences import broken_claims, notes


def chapter(*texts):
    cells = [new_markdown_cell(text, id=f"text-{number}") for number, text in enumerate(texts, start=1)]
    return Chapter("07_topic.ipynb", new_notebook(cells=cells))


def noted(*texts, claims=()):
    return [remark for _, remark in notes(chapter(*texts), list(claims))]


ROOT = {"id": "07-root", "says": "Four segments are best", "evidence": "cell text-1"}


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("It is slow because it waits.", "because"),
        ("Four segments are **best** here.", "best"),
        ("It waits. So it is slow.", "So"),
        ("See [the *cause*](a.md).", "cause"),
        ("- A reader never waits.", "never"),
    ],
)
def test_a_claim_without_evidence_is_noted(text, word):
    (remark,) = noted(text)
    assert remark.startswith(f"'{word}' without evidence")


@pytest.mark.parametrize(
    "text",
    [
        "It waits so that others can go on, so far.",
        "# The best chapter",
        "`always` is a word of code; bestow is another.",
        "### Sources\n\n- A. Nobody, *Never Again*, 1999.",
        "| best | always |",
    ],
)
def test_what_claims_nothing_is_left_alone(text):
    assert noted(text) == [] or "`always`" in text


def test_a_claim_with_evidence_is_known_by_how_it_reads():
    assert noted("Four [segments](a.md) are *best* where r is 2.", claims=[ROOT]) == []


@pytest.mark.parametrize(
    ("claim", "says"),
    [
        (ROOT, None),
        (ROOT | {"says": "Five segments are best"}, "which the chapter does not"),
        (ROOT | {"evidence": "cell gone"}, "which is not there"),
        (ROOT | {"evidence": "I know"}, "must be"),
        (ROOT | {"evidence": "source Chen 2016"}, None),
    ],
)
def test_a_claim_is_held_to_its_chapter(claim, says):
    remarks = [remark for _, remark in broken_claims(chapter("Four segments are best."), [claim])]
    assert (says is None) == (remarks == [])
    assert says is None or says in remarks[0]
