"""Known mistakes, recognized by what is left of their values."""

import json
import math

import torch

from course_utils.grading.fingerprints import diagnose, fingerprint, outcome_fingerprint
from course_utils.grading.judge import Outcome


def test_how_a_run_ends_is_part_of_a_fingerprint():
    ending = outcome_fingerprint(Outcome("exception", text="KeyError: 'a'", line="line 1"))
    entry = {"mistakes": {"fails": {"prints": {"c": ending}}}}
    assert diagnose(entry, {"c": Outcome("exception", text="KeyError: 'b'")}) == "fails"
    assert diagnose(entry, {"c": Outcome("exception", text="TypeError: b")}) is None
    assert diagnose(entry, {}) is None


def test_a_fingerprint_is_small_plain_and_stable():
    values = {
        "steps": [{"w": torch.arange(1000.0) / 3, "n": math.nan, "big": 10**5000} for _ in range(100)],
        "z": torch.ones(2, dtype=torch.complex64),
    }
    text = json.dumps(fingerprint(values), allow_nan=False)
    assert len(text) < 2000
    assert json.loads(text) == fingerprint(values)
    first = fingerprint(values)["steps"]["entries"][0]["w"]
    assert first["numbers"][:2] == [0.0, 47.3333]
    assert (first["numbers"][-1], first["shape"], first["dtype"]) == (333.0, [1000], "torch.float32")


def test_whole_numbers_of_a_fingerprint_are_exact():
    """An account that is off by less than the rounding of floats is not the known mistake beside it."""
    prints = {"c": outcome_fingerprint(Outcome("values", {"bytes": 497_759_528}))}
    entry = {"mistakes": {"one too few": {"prints": prints}}}
    for number in (497_759_528, 497_759_528.0):
        assert diagnose(entry, {"c": Outcome("values", {"bytes": number})}) == "one too few"
    for number in (497_759_824, 497_759_824.0, 497_759_527):
        assert diagnose(entry, {"c": Outcome("values", {"bytes": number})}) is None
