"""Fingerprints: a mistaken answer's values on the public cases, short enough to be handed out with the exercise.

They name a mistake on a learner's machine, which has neither the mistaken code nor the solution.
"""

from collections.abc import Collection, Mapping
from math import inf, isfinite
from typing import TYPE_CHECKING

import torch

from course_utils.grading.values import EXACT_WHOLE, int_if_whole

if TYPE_CHECKING:
    from course_utils.grading.judge import Outcome
    from course_utils.grading.loading import SetEntry

WEIGHTS = "weights"
"""A dict of this name holds trained weights. Their numbers differ between machines, so that only their forms count."""
DIGITS = 6
MOST_NUMBERS = 8
MOST_ENTRIES = 3
# By how much, besides the rounding, two programs with the same mistake may differ.
_RELATIVE, _ABSOLUTE = 5e-5, 1e-6


def fingerprint(values: object) -> object:
    """Plain values, thinned and rounded, as JSON holds them.

    Whole numbers stay, others keep 6 significant digits; a tensor becomes its dtype, shape and at most 8 evenly spread
    elements; a list of more than 3 containers keeps 3, the first and last among them.
    """
    if isinstance(values, torch.Tensor):
        return _thin_tensor(values)
    if isinstance(values, dict):
        return {name: _summarize(value) if name == WEIGHTS else fingerprint(value) for name, value in values.items()}
    if isinstance(values, list):
        is_simple = all(type(value) in (bool, int, float, str, type(None)) for value in values)
        indices = _spread_indices(len(values), MOST_NUMBERS if is_simple else MOST_ENTRIES)
        return {"length": len(values), "entries": [fingerprint(values[i]) for i in indices]}
    return _round_number(values) if type(values) in (int, float) else values


def outcome_fingerprint(outcome: "Outcome") -> dict:
    """The fingerprint of an `Outcome`: its kind, the type of its exception, and its values."""
    exception = outcome.text.partition(":")[0] if outcome.kind == "exception" else ""
    return {
        "kind": outcome.kind,
        "ending": exception,
        "mutated": list(outcome.mutated),
        "values": fingerprint(outcome.values),
    }


def diagnose(
    entry: "SetEntry", outcomes: Mapping[str, "Outcome"], failed_cases: Collection[str] | None = None
) -> str | None:
    """The name of the known mistake in a set's `entry` that has these `outcomes` (by public case), or None.

    If `failed_cases` are given, a mistake that fails on other cases does not match. Of several that match, the one with the most
    prints counts, and of these the nearest.
    """
    actual = {case: outcome_fingerprint(outcome) for case, outcome in outcomes.items()}
    matches = []
    for name, mistake in entry.get("mistakes", {}).items():
        if failed_cases is not None and "fails" in mistake and actual.keys() & mistake["fails"] != set(failed_cases):
            continue
        prints = mistake["prints"]
        distance = distance_between(prints, {case: actual[case] for case in prints if case in actual})
        if distance <= 1:
            matches.append((-len(prints), distance, name))
    return min(matches)[2] if matches else None


def distance_between(a: object, b: object) -> float:
    """The largest difference between two fingerprints in units of what is allowed; infinite if forms or whole numbers differ."""
    if type(a) is int and type(b) is int:
        return 0.0 if a == b else inf
    if type(a) in (int, float) and type(b) in (int, float):
        return 0.0 if a == b or (a != a and b != b) else abs(a - b) / (_ABSOLUTE + _RELATIVE * abs(a))
    if type(a) is not type(b):
        return inf
    if isinstance(a, dict):
        return max((distance_between(a[key], b[key]) for key in a), default=0.0) if a.keys() == b.keys() else inf
    if isinstance(a, list):
        return max(map(distance_between, a, b), default=0.0) if len(a) == len(b) else inf
    return 0.0 if a == b else inf


def _thin_tensor(tensor: torch.Tensor) -> dict:
    flat = tensor.detach().flatten()
    if flat.is_complex():
        flat = torch.view_as_real(flat).flatten()
    numbers = [_round_float(flat[i].item()) for i in _spread_indices(len(flat), MOST_NUMBERS)]
    return {"dtype": str(tensor.dtype), "shape": list(tensor.shape), "numbers": numbers}


def _summarize(weights: object) -> str:
    """How many tensors there are, of how many elements, and whether all are finite."""
    values = list(weights.values()) if isinstance(weights, dict) else []
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    finite = all(bool(tensor.isfinite().all()) for tensor in tensors)
    return f"{len(values)} {sum(tensor.numel() for tensor in tensors)} {finite}"


def _spread_indices(length: int, limit: int) -> list[int]:
    """At most `limit` indices below `length`, evenly spread, with the first and the last."""
    if length <= limit:
        return list(range(length))
    return [i * (length - 1) // (limit - 1) for i in range(limit)]


def _round_number(value: float) -> float | str:
    """Whole numbers in full, as far as floats hold them, because a count that is off by one is another mistake."""
    number = int_if_whole(value)
    return number if type(number) is int and abs(number) <= EXACT_WHOLE else _round_float(value)


def _round_float(value: float) -> float | str:
    """A float with six significant digits, or a string for what JSON has no number for."""
    if type(value) is bool:
        return value
    try:
        return float(f"{value:.{DIGITS - 1}e}") if isfinite(value) else str(float(value))
    except OverflowError:  # a whole number beyond every float
        return f"{value.bit_length()} bits"
