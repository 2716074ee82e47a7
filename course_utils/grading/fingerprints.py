"""Fingerprints: a mistaken answer's values on the public cases, short enough to be handed out with the exercise.

They name a mistake on a learner's machine, which has neither the mistaken code nor the solution.
"""

from collections.abc import Collection, Mapping
from math import inf, isfinite
from typing import TYPE_CHECKING

import torch

from course_utils.grading.values import EXACT_WHOLE, whole

if TYPE_CHECKING:
    from course_utils.grading.judge import Outcome

WEIGHTS = "weights"
"""A dict of this name holds what a training ended with. Its numbers differ between machines, so that only their forms count."""
DIGITS = 6
MOST_NUMBERS = 8
MOST_ENTRIES = 3
_RELATIVE, _ABSOLUTE = 5e-5, 1e-6  # beside the rounding, what two right-minded ways to the same mistake may differ by


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
        chosen = _spread_indices(len(values), MOST_NUMBERS if is_simple else MOST_ENTRIES)
        return {"length": len(values), "entries": [fingerprint(values[i]) for i in chosen]}
    return _round_number(values) if type(values) in (int, float) else values


def outcome_fingerprint(outcome: "Outcome") -> dict:
    """The fingerprint of an `Outcome`: how the run ended, and what it gave."""
    ending = outcome.text.partition(":")[0] if outcome.kind == "exception" else ""
    return {
        "kind": outcome.kind,
        "ending": ending,
        "mutated": list(outcome.mutated),
        "values": fingerprint(outcome.values),
    }


def diagnose(entry: Mapping, outcomes: Mapping[str, object], failed: Collection[str] | None = None) -> str | None:
    """The name of the known mistake in a set's `entry` that ends in `outcomes` (public, by case name), or None.

    `failed` names the cases that failed, where that is known: a mistake that is known to fail on others is not meant. Where
    several match within the rounding, the one with the most prints counts, and of these the nearest.
    """
    ours = {case: outcome_fingerprint(outcome) for case, outcome in outcomes.items()}
    matching = []
    for name, mistake in entry.get("mistakes", {}).items():
        prints, fails = mistake["prints"], mistake.get("fails")
        distance = distance_between(prints, {case: ours[case] for case in prints if case in ours})
        other = failed is not None and fails is not None and {case for case in fails if case in ours} != set(failed)
        if distance <= 1 and not other:
            matching.append((-len(prints), distance, name))
    return min(matching)[2] if matching else None


def distance_between(a: object, b: object) -> float:
    """The largest difference between two fingerprints in units of what may differ: at most 1 where they are the same.

    Infinite where their forms differ, and where two whole numbers do.
    """
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
    chosen = [_round_float(flat[i].item()) for i in _spread_indices(len(flat), MOST_NUMBERS)]
    return {"dtype": str(tensor.dtype), "shape": list(tensor.shape), "numbers": chosen}


def _summarize(weights: object) -> str:
    """How many tensors there are, of how many elements, and whether all are finite."""
    values = list(weights.values()) if isinstance(weights, dict) else []
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    finite = all(bool(tensor.isfinite().all()) for tensor in tensors)
    return f"{len(values)} {sum(tensor.numel() for tensor in tensors)} {finite}"


def _spread_indices(length: int, most: int) -> list[int]:
    """Return at most `most` indices below `length`, evenly spread, with the first and the last."""
    if length <= most:
        return list(range(length))
    return [i * (length - 1) // (most - 1) for i in range(most)]


def _round_number(value: float) -> float | str:
    """Whole numbers in full, as far as floats hold them: a count or an account that is off by one is another mistake."""
    number = whole(value)
    return number if type(number) is int and abs(number) <= EXACT_WHOLE else _round_float(value)


def _round_float(value: float) -> float | str:
    """Six significant digits; what JSON has no number for as a word."""
    if type(value) is bool:
        return value
    try:
        return float(f"{value:.{DIGITS - 1}e}") if isfinite(value) else str(float(value))
    except OverflowError:  # a whole number beyond every float
        return f"{value.bit_length()} bits"
