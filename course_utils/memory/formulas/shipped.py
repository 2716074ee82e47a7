"""Formulas in all sizes, for the course's own families: found once, shipped with the package, answered in milliseconds.

A step is put together from two logs that do not depend on each other: forward and backward by one recipe, and the update by one
optimizer. `python -m benchmarks.formulas` finds all of them again and writes the file.
"""

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from pathlib import Path

import numpy as np

from course_utils.memory.formulas.depth import Depth
from course_utils.memory.formulas.estimate import Estimate, family
from course_utils.memory.formulas.finder import Finder, finder_of
from course_utils.memory.formulas.letters import Polynomial, sizes_of
from course_utils.memory.step.model import Source, source_of
from course_utils.memory.step.recipe import Recipe
from course_utils.memory.trace.log import Log

FILE = Path(__file__).with_name("shipped.json.gz")
_OF_OPTIMIZER = ("optimizer state", "optimizer temporaries")
_ORDINARY = ("optimizer", "precision", "batch", "sequence", "checkpointing", "device")
_BESIDE = (
    *("rope_parameters", "id2label", "label2id"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "_name_or_path", "transformers_version"),
)


@dataclass(frozen=True)
class Lettered:
    """A log whose sizes are polynomials in all letters, and how it grows with the blocks."""

    polynomials: tuple[Polynomial, ...]
    signs: np.ndarray
    labels: tuple
    depth: Depth
    grain: int

    def log(self, sizes: Mapping[str, int], blocks: int) -> Log:
        """The log at these sizes."""
        values = {one: int(one.value(sizes)) for one in set(self.polynomials)}
        changes = self.signs * np.array([values[one] for one in self.polynomials], dtype=np.int64)
        return self.depth.deepen(Log(changes, self.labels, self.grain), blocks)


@cache
def shipped() -> dict[str, dict]:
    """What the file holds: formulas by `name_of`, the `kinds_of` the families, and the versions they were found with."""
    return json.loads(gzip.decompress(FILE.read_bytes())) if FILE.is_file() else {"families": {}}


@cache
def load(name: str) -> Lettered | None:
    """The formulas of that name."""
    found = shipped().get(name)
    if found is None:
        return None
    terms = (((tuple(map(tuple, key)), Fraction(factor)) for key, factor in one) for one in found["polynomials"])
    texts = [Polynomial(tuple(one)) for one in terms]
    growth = np.zeros(len(found["events"]), dtype=np.int64)
    for place, more in found["growth"].items():
        growth[int(place)] = more
    return Lettered(
        tuple(texts[abs(p) - 1] for p, _ in found["events"]),
        np.sign([p for p, _ in found["events"]]),
        tuple(tuple(found["labels"][place]) for _, place in found["events"]),
        Depth(tuple(map(tuple, found["repeated"])), growth, sure=True),
        found["grain"],
    )


def name_of(family: str, recipe: Recipe) -> str:
    """What the formulas of a family by a recipe are filed under."""
    regime = min(recipe.batch, 2)
    return f"{family} {recipe.optimizer} {recipe.precision} {recipe.checkpointing} {recipe.device} {regime}"


def kind_of(config) -> dict | None:
    """What a configuration says beside its sizes, as plain values; of a fraction, dropout's say, whether it is 0.

    None where its heads together are not as wide as the model, which no formula knows.
    """
    sizes = sizes_of(config)
    if not {"h", "a", "d"} <= sizes.keys() or sizes["h"] != sizes["a"] * sizes["d"]:
        return None
    said = {
        name: value > 0 if isinstance(value, float) else value
        for name, value in config.to_dict().items()
        if name not in _BESIDE and (isinstance(value, bool) or not isinstance(value, int))
    }
    said |= {"class": type(config).__name__, "labels": config.num_labels, "grouped": "k" in sizes}
    return json.loads(json.dumps(said, default=str))


@dataclass(frozen=True)
class _Finder:
    """What an `Estimate` asks its finder, answered by shipped formulas."""

    source: Source
    polynomials: list[Polynomial]
    count: int

    @property
    def sizes(self) -> dict[str, int]:
        return sizes_of(self.source.config)

    def with_recipe(self, recipe: Recipe) -> Finder:
        return finder_of(self.source, recipe)

    def blocks(self, log: Log) -> dict[str, int]:
        return {family(label[2]): self.count for label in log.labels if family(label[2]).endswith(".*")}

    def formulas(self, log: Log, recipe: Recipe) -> Callable[[int], Polynomial]:
        return self.polynomials.__getitem__


def from_formulas(config, recipe: Recipe) -> Estimate | None:
    """The estimate by shipped formulas; None for another model, and for a recipe that is not among them.

    It is that of a dry run to the byte where the length is a multiple of 32, to which some kernels round it up; on a CPU in half
    precision it leaves oneDNN's scratch space out.
    """
    kind = kind_of(config)
    name = next((name for name, known in shipped()["families"].items() if known == kind), None)
    if name is None or recipe != Recipe(**{field: getattr(recipe, field) for field in _ORDINARY}):
        return None
    half = "bf16" if recipe.precision == "bf16" else "fp32"
    forward = load(name_of(name, replace(recipe, optimizer="sgd")))
    update = load(name_of(name, replace(recipe, precision=half, batch=2, checkpointing=False)))
    blocks = config.num_hidden_layers
    if forward is None or update is None or blocks < 3:
        return None
    sizes = {"b": recipe.batch, "s": recipe.sequence, **sizes_of(config)}
    a, b = forward.log(sizes, blocks), update.log(sizes, blocks)
    state = [place for place in range(b.resident) if b.labels[place][1] == "optimizer state"]
    ours = [place for place in range(b.resident, len(b.labels)) if b.labels[place][1] in _OF_OPTIMIZER]
    # Gradients are born in backward, and the allocator has to see the same ones die; they do so once all has been updated.
    births = max((number for number, place in enumerate(ours, start=1) if b.changes[place] > 0), default=0)
    places = range(len(a.labels))
    inputs = next(place for place in places if a.labels[place][0] or a.labels[place][1] == "inputs")
    first = next(place for place in places if a.labels[place][0] == "update")
    taken = [(a, places[:inputs], forward), (b, state, update), (a, places[inputs:first], forward)]
    taken += [(b, ours[:births], update), (a, places[first:], forward), (b, ours[births:], update)]
    log = Log(
        np.concatenate([one.changes[list(places)] for one, places, _ in taken if places]),
        tuple(one.labels[place] for one, places, _ in taken for place in places),
        a.grain,
    )
    orders = {id(one): one.depth.order(blocks) for one in (forward, update)}
    polynomials = [whose.polynomials[orders[id(whose)][place]] for _, places, whose in taken for place in places]
    finder = _Finder(source_of(config), polynomials, blocks)
    scratch = ", without oneDNN's scratch space" * (recipe.device == "cpu" and recipe.precision != "fp32")
    how = f"formulas shipped with the package ({shipped()['versions']}){scratch}"
    return Estimate(finder.source.name, recipe, log, how, finder)
