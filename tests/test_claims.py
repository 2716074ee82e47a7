"""Every claim of the chapters has what it rests on, and those in which chance plays a part hold on a seed of their own."""

import json
from pathlib import Path

import pytest

from benchmarks.claims import SEEDS, load
from course_staff.notebooks.anatomy import Chapter
from course_staff.notebooks.files import read_notebook
from course_staff.notebooks.sentences import CLAIMS, broken_claims

ROOT = Path(__file__).parents[1]
BY_CHAPTER = json.loads((ROOT / CLAIMS).read_text(encoding="utf-8"))


@pytest.mark.parametrize("stem", BY_CHAPTER)
def test_the_chapter_says_it_and_holds_the_evidence(stem):
    path = ROOT / "notebooks" / f"{stem}.ipynb"
    remarks = [remark for _, remark in broken_claims(Chapter(path, read_notebook(path)), BY_CHAPTER[stem])]
    assert not remarks, "\n".join(remarks)


def test_a_claim_is_run_exactly_where_chance_plays_a_part():
    every = [one for claims in BY_CHAPTER.values() for one in claims]
    assert len({one["id"] for one in every}) == len(every)
    assert {one["id"] for one in every if one.get("seeds")} == set(load())


@pytest.mark.slow
@pytest.mark.parametrize("name", load())
def test_it_holds_on_a_seed_that_no_chapter_uses(name):
    assert load()[name](SEEDS[0])
