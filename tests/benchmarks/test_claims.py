"""Claims in which chance plays a part hold on a seed of their own."""

import json
from pathlib import Path

import pytest

from benchmarks.claims import SEEDS, load
from course_staff.notebooks.sentences import CLAIMS

ROOT = Path(__file__).parents[2]
BY_CHAPTER = json.loads((ROOT / CLAIMS).read_text(encoding="utf-8"))


def test_a_claim_is_run_exactly_where_chance_plays_a_part():
    all_claims = [claim for claims in BY_CHAPTER.values() for claim in claims]
    assert len({claim["id"] for claim in all_claims}) == len(all_claims)
    assert {claim["id"] for claim in all_claims if claim.get("seeds")} == set(load())


@pytest.mark.slow
@pytest.mark.parametrize("name", load())
def test_it_holds_on_a_seed_that_no_chapter_uses(name):
    assert load()[name](SEEDS[0])
