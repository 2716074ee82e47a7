"""Formulas of named models in batch and length, found once and shipped, so that a plan by them needs no torch.

The archive `named.zip` has a member for each model, which is read when it is asked about. `python -m benchmarks.named` finds all
formulas again.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import ZipFile

import numpy as np

from course_utils.memory.formulas.depth import DepthRule
from course_utils.memory.formulas.estimate import Estimate
from course_utils.memory.formulas.letters import DENOMINATOR, LENGTH_STEP, MONOMIALS, Polynomial
from course_utils.memory.formulas.prediction import Trial
from course_utils.memory.step.recipe import Recipe, plain_recipe
from course_utils.memory.trace.log import Label, Log, block_of

if TYPE_CHECKING:
    from course_utils.memory.formulas.finder import FormulaFinder

ARCHIVE = Path(__file__).with_name("named.zip")


@dataclass(frozen=True)
class NamedModel:
    """What an `Estimate` by shipped formulas has in place of a finder and its `Source`; terms are numbers, without letters."""

    name: str
    remarks: list[str]
    block_count: int
    positions: int | None

    @property
    def source(self) -> "NamedModel":
        """The model itself, which is its own source."""
        return self

    @property
    def sizes(self) -> dict[str, int]:
        """No letters, since the configuration is not read."""
        return {}

    def polynomials_of_events(self, log: Log, recipe: Recipe) -> list[Polynomial]:
        """The size of each event as a number of bytes."""
        return [Polynomial.monomial(abs(change)) for change in log.changes.tolist()]

    def with_recipe(self, recipe: Recipe) -> "FormulaFinder":
        """The finder of this model, which makes dry runs and so needs torch."""
        from course_utils.memory.formulas.finder import finder_of
        from course_utils.memory.step.model import source_of

        return finder_of(source_of(self.name), recipe)

    def count_blocks(self, log: Log) -> dict[str, int]:
        """The number of blocks in each list of them."""
        names_and_numbers = (block_of(label.module) for label in log.labels)
        return {name: self.block_count for name, number in names_and_numbers if number}


@cache
def _member(name: str) -> dict:
    """The archive's member for a model; an empty dictionary if it has none."""
    with ZipFile(ARCHIVE) as archive:
        return json.loads(archive.read(f"{name}.json")) if f"{name}.json" in archive.namelist() else {}


def models() -> Iterator[str]:
    """The names of the models in the archive."""
    with ZipFile(ARCHIVE) as archive:
        yield from (Path(member).stem for member in archive.namelist())


def key_of(recipe: Recipe) -> str:
    """The key of a recipe's formulas. It distinguishes one example, or one micro-batch, from several, and contains no length."""
    sizes = {"batch": min(recipe.batch, 2), "accumulation": min(recipe.accumulation, 2), "sequence": 0}
    return json.dumps(plain_recipe(recipe) | sizes, sort_keys=True)


def bounds_of(name: str, recipe: Recipe) -> tuple[int, int]:
    """The largest batch that formulas know at the length of `recipe`, and the longest sequence that they know for its batch."""
    formulas = _member(name)["formulas"]
    _, length = formulas[key_of(recipe)]["confirmed"][1]
    of_several = formulas.get(key_of(replace(recipe, batch=2)))
    batch, longest = of_several["confirmed"][1] if of_several else (1, 0)
    return batch if recipe.sequence <= longest else recipe.batch, length


def look_up(name: str, recipe: Recipe) -> tuple[Trial, Estimate] | None:
    """The step of a named model by `recipe`; None if no formulas in the archive were confirmed on both sides of its sizes."""
    if callable(recipe.optimizer) or recipe.sequence % LENGTH_STEP:
        return None
    member = _member(name)
    packed = member.get("formulas", {}).get(key_of(recipe))
    if packed is None:
        return None
    (least_b, least_s), (most_b, most_s) = packed["confirmed"]
    if not (least_b <= recipe.batch <= most_b and least_s <= recipe.sequence <= most_s):
        return None
    powers = np.array([recipe.batch**i * recipe.sequence**j for i, j in MONOMIALS], dtype=object)
    rows = np.array(packed["rows"], dtype=object)
    sizes = np.array([int(round(sum(row * powers) / DENOMINATOR)) for row in rows], dtype=np.int64)
    growth = np.zeros(len(packed["events"]), dtype=np.int64)
    for index, size in packed["growth"].items():
        growth[int(index)] = size
    labels = tuple(Label(*member["labels"][label]) for _, label in packed["events"])
    three = Log(sizes[[row for row, _ in packed["events"]]], labels, packed["grain"])
    depth = DepthRule(tuple(map(tuple, packed["repeated"])), growth, is_sure=True)
    log = depth.deepen(three, member["blocks"])
    if recipe.accumulation > 2:
        log = log.with_micro_batches(recipe.accumulation - 2)
    model = NamedModel(name, member["remarks"], member["blocks"], member["positions"])
    basis = f"formulas shipped with the package ({member['versions']})"
    host = Log(np.array([packed["host"]]), Log.empty().labels)
    return Trial(recipe, log, host, {}, {}, basis), Estimate(name, recipe, log, basis, model)
