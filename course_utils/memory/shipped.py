"""Formulas in all sizes, for the course's own families: found once, shipped with the package, answered in milliseconds.

A step is put together from two logs that do not depend on each other: forward and backward by one recipe, and the update by one
optimizer. `python -m course_utils.memory.shipped` finds all of them again and writes the file.
"""

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from importlib.metadata import version
from itertools import product
from pathlib import Path

import numpy as np

from course_utils import models
from course_utils.errors import CourseError
from course_utils.memory.estimate import Estimate
from course_utils.memory.finder import Finder, finder_of
from course_utils.memory.found import Depth, Log
from course_utils.memory.letters import Polynomial, sizes_of
from course_utils.memory.model import Source, source_of
from course_utils.memory.recipe import Recipe

FILE = Path(__file__).with_name("shipped.json.gz")
OPTIMIZERS = ("sgd", "momentum", "adamw", "adamw-foreach", "adamw-fused", "adafactor")
_OF_UPDATE = ("optimizer state", "optimizer temporaries", "gradients")
_SMALL = {"max_position_embeddings": 1024, "vocab_size": 5000}
FAMILIES: dict[str, Callable[[], object]] = {
    "llama": lambda: models.configuration("llama-7b", **_llama(8, 8)),
    "llama, grouped heads": lambda: models.configuration("llama-7b", **_llama(8, 2)),
    "gpt2": lambda: models.configuration("gpt2-large", n_embd=256, n_layer=6, n_head=8, **_SMALL),
    "distilbert": lambda: models.configuration("distilbert-base-cased", labels=2, **_distilbert()),
}


def _llama(heads: int, of_keys: int) -> dict:
    sizes = {"hidden_size": 256, "intermediate_size": 700, "num_hidden_layers": 6, "num_attention_heads": heads}
    return {**sizes, "num_key_value_heads": of_keys, "head_dim": 256 // heads, **_SMALL}


def _distilbert() -> dict:
    return {"dim": 256, "hidden_dim": 700, "n_layers": 6, "n_heads": 8, **_SMALL}


@dataclass(frozen=True)
class Lettered:
    """A log whose sizes are polynomials in all letters, and how it grows with the blocks."""

    polynomials: tuple[Polynomial, ...]
    signs: np.ndarray
    labels: tuple
    depth: Depth
    grain: int

    def places(self, blocks: int) -> np.ndarray:
        """Of the events of a model of so many blocks."""
        return self.depth.order(blocks)

    def log(self, sizes: Mapping[str, int], blocks: int) -> Log:
        """The log at these sizes."""
        values = {one: int(one.value(sizes)) for one in set(self.polynomials)}
        changes = self.signs * np.array([values[one] for one in self.polynomials], dtype=np.int64)
        return self.depth.deepened(changes, self.labels, blocks, self.grain)

    def packed(self) -> dict:
        """As plain values."""
        texts, labels = list(dict.fromkeys(self.polynomials)), list(dict.fromkeys(self.labels))
        return {
            "polynomials": [[[list(map(list, key)), str(factor)] for key, factor in one.terms] for one in texts],
            "labels": labels,
            "events": [
                [int(sign) * (texts.index(polynomial) + 1), labels.index(label)]
                for polynomial, sign, label in zip(self.polynomials, self.signs, self.labels, strict=True)
            ],
            "blocks": self.depth.blocks,
            "repeated": self.depth.repeated,
            "growth": {int(place): int(self.depth.growth[place]) for place in np.flatnonzero(self.depth.growth)},
            "grain": self.grain,
        }

    @classmethod
    def unpacked(cls, found: dict) -> "Lettered":
        """From what `packed` gave."""
        terms = (((tuple(map(tuple, key)), Fraction(factor)) for key, factor in one) for one in found["polynomials"])
        texts = [Polynomial(tuple(one)) for one in terms]
        growth = np.zeros(len(found["events"]), dtype=np.int64)
        for place, more in found["growth"].items():
            growth[int(place)] = more
        return cls(
            tuple(texts[abs(p) - 1] for p, _ in found["events"]),
            np.sign([p for p, _ in found["events"]]),
            tuple(tuple(found["labels"][place]) for _, place in found["events"]),
            Depth(found["blocks"], tuple(map(tuple, found["repeated"])), growth),
            found["grain"],
        )


def lettered(source: Source, recipe: Recipe) -> Lettered:
    """Found anew: every size of the step in letters. Raises `CourseError` where one has none."""
    finder = Finder(source, replace(recipe, batch=1, sequence=1))
    b, s = (1 if recipe.batch == 1 else 4), 96
    finder.log(b, s)
    formulas = finder.formulas_for(b, s + 1)
    if formulas is None or formulas.depth is None:
        raise CourseError(f"No formulas were found for {source.name} by {recipe}.")
    read, regime = finder.read(formulas, min(b, 2)), min(b, 2)
    in_primes, primes = finder.in_primes(formulas, regime)
    changes, sizes = formulas.found.changes(b, s), {"b": b, "s": s, **finder.sizes}
    for place, one in enumerate(read):
        if (one.value(sizes), one.value(primes)) != (abs(changes[place]), abs(in_primes[place])):
            raise CourseError(f"No letters for {formulas.found.labels[place]} of {source.name} by {recipe}.")
    return Lettered(tuple(read), np.sign(changes), formulas.found.labels, formulas.depth, formulas.found.grain)


def family_of(config) -> str | None:
    """The family in whose formulas a configuration's sizes may be put: its heads together are as wide as the model."""
    sizes = sizes_of(config)
    if not {"h", "a", "d"} <= sizes.keys() or sizes["h"] != sizes["a"] * sizes["d"]:
        return None
    for name, small in FAMILIES.items():
        known = small()
        same = type(config) is type(known) and config.architectures == known.architectures
        if same and ("k" in sizes) == ("grouped" in name) and _otherwise(config) == _otherwise(known):
            return name
    return None


_BESIDE = (
    *("rope_parameters", "id2label", "label2id"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "_name_or_path"),
)


def _otherwise(config) -> dict:
    """What a configuration says beside its sizes; of a fraction, dropout's say, whether it is 0."""
    said = {
        name: value > 0 if isinstance(value, float) else value
        for name, value in config.to_dict().items()
        if name not in _BESIDE and (isinstance(value, bool) or not isinstance(value, int))
    }
    return {**said, "num_labels": config.num_labels}


def _keys() -> list[tuple[str, Recipe]]:
    ways = product(FAMILIES, ("fp32", "bf16", "autocast"), (False, True), ("cpu", "cuda"), (1, 2))
    forward = [(f, Recipe("sgd", p, batch=b, checkpointing=c, device=d)) for f, p, c, d, b in ways]
    updates = product(FAMILIES, ("fp32", "bf16"), OPTIMIZERS, ("cpu", "cuda"))
    return forward + [(f, Recipe(o, p, batch=2, device=d)) for f, p, o, d in updates]


def _name(family: str, recipe: Recipe) -> str:
    regime = min(recipe.batch, 2)
    return f"{family} {recipe.optimizer} {recipe.precision} {recipe.checkpointing} {recipe.device} {regime}"


@cache
def _all() -> dict[str, dict]:
    return json.loads(gzip.decompress(FILE.read_bytes())) if FILE.is_file() else {}


@cache
def _one(name: str) -> Lettered | None:
    found = _all().get(name)
    return None if found is None else Lettered.unpacked(found)


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
        from course_utils.memory.estimate import family

        return {family(label[2]): self.count for label in log.labels if family(label[2]).endswith(".*")}

    def formulas(self, log: Log, recipe: Recipe) -> Callable[[int], Polynomial]:
        return self.polynomials.__getitem__


def from_formulas(config, recipe: Recipe) -> Estimate | None:
    """The estimate by shipped formulas; None for another model, and for a recipe that is not among them.

    It is that of a dry run to the byte where the length is a multiple of 32, to which some kernels round it up; on a CPU in half
    precision it leaves oneDNN's scratch space out.
    """
    family = family_of(config)
    asked = ("optimizer", "precision", "batch", "sequence", "checkpointing", "device")
    ordinary = Recipe(**{name: getattr(recipe, name) for name in asked})
    if family is None or recipe != ordinary:
        return None
    half = "bf16" if recipe.precision == "bf16" else "fp32"
    forward = _one(_name(family, replace(recipe, optimizer="sgd")))
    update = _one(_name(family, replace(recipe, precision=half, batch=2, checkpointing=False)))
    blocks = config.num_hidden_layers
    if forward is None or update is None or blocks < max(forward.depth.blocks, update.depth.blocks) - 1:
        return None
    sizes = {"b": recipe.batch, "s": recipe.sequence, **sizes_of(config)}
    a, b = forward.log(sizes, blocks), update.log(sizes, blocks)
    state = [place for place in range(b.resident) if b.labels[place][1] == "optimizer state"]
    first = next(place for place in range(len(a.labels)) if a.labels[place][0] == "update")
    last = [place for place in range(first, len(a.labels)) if a.labels[place][1] not in _OF_UPDATE]
    born = range(b.resident, len(b.labels))
    of_update = [place for place in born if b.labels[place][0] == "update" and b.labels[place][1] in _OF_UPDATE]
    taken = [(b, state, update), (a, list(range(first)), forward), (b, of_update, update), (a, last, forward)]
    log = Log(
        np.concatenate([one.changes[places] for one, places, _ in taken if places]),
        tuple(one.labels[place] for one, places, _ in taken for place in places),
        a.grain,
    )
    orders = {id(one): one.places(blocks) for one in (forward, update)}
    polynomials = [whose.polynomials[orders[id(whose)][place]] for _, places, whose in taken for place in places]
    finder = _Finder(source_of(config), polynomials, blocks)
    scratch = ", without oneDNN's scratch space" * (recipe.device == "cpu" and recipe.precision != "fp32")
    how = f"formulas shipped with the package ({_all()['versions']}){scratch}"
    return Estimate(finder.source.name, recipe, log, how, finder)


def main() -> None:
    """Find all formulas again and write the file."""
    found: dict = {"versions": f"torch {version('torch')}, transformers {version('transformers')}"}
    for family, recipe in _keys():
        name = _name(family, recipe)
        if name not in found:
            print(name, flush=True)
            found[name] = lettered(source_of(FAMILIES[family]()), recipe).packed()
    FILE.write_bytes(gzip.compress(json.dumps(found, separators=(",", ":")).encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
