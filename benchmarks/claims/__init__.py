"""Claims in which chance plays a part, each in a small form for one seed. `python -m benchmarks.claims` says which hold.

A file for each chapter, `c02.py`, holds a function for every entry of `docs/claims.json` that says `"seeds": true`:

    @claim("02-start")
    def the_missing_correction_costs(seed):
        return loss_of(corrected, seed) < loss_of(uncorrected, seed)

It returns whether the claim held. The seeds from 100 to 104 are for these alone: no chapter uses them.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

SEEDS = (100, 101, 102, 103, 104)
CLAIMS: dict[str, Callable[[int], bool]] = {}


def claim(name: str):
    """Register what runs the claim called `name` in `docs/claims.json`."""

    def register(function):
        if name in CLAIMS:
            raise ValueError(f"two functions run the claim {name!r}")
        CLAIMS[name] = function
        return function

    return register


def load() -> dict[str, Callable[[int], bool]]:
    """Every claim of every chapter by its name."""
    for path in sorted(Path(__file__).parent.glob("c*.py")):
        import_module(f"benchmarks.claims.{path.stem}")
    return CLAIMS
