"""Find the planner's formulas again, for every family and recipe that it answers at once, and write the package's file."""

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from itertools import product

import numpy as np

from course_utils import models
from course_utils.errors import CourseError
from course_utils.memory.formulas.finder import Finder
from course_utils.memory.formulas.shipped import FILE, Lettered, kind_of, name_of
from course_utils.memory.step.model import Source, source_of
from course_utils.memory.step.recipe import Recipe

OPTIMIZERS = ("sgd", "momentum", "adamw", "adamw-foreach", "adamw-fused", "adafactor")
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


def keys() -> list[tuple[str, Recipe]]:
    """Every family and recipe whose formulas are shipped."""
    ways = product(FAMILIES, ("fp32", "bf16", "autocast"), (False, True), ("cpu", "cuda"), (1, 2))
    forward = [(f, Recipe("sgd", p, batch=b, checkpointing=c, device=d)) for f, p, c, d, b in ways]
    updates = product(FAMILIES, ("fp32", "bf16"), OPTIMIZERS, ("cpu", "cuda"))
    return forward + [(f, Recipe(o, p, batch=2, device=d)) for f, p, o, d in updates]


def lettered(source: Source, recipe: Recipe) -> Lettered:
    """Found anew: every size of the step in letters. Raises `CourseError` where one has none."""
    finder = Finder(source, replace(recipe, batch=1, sequence=1))
    b, s = (1 if recipe.batch == 1 else 4), 96
    finder.log(b, s)
    formulas = finder.formulas_for(b, s + 1)
    if formulas is None or formulas.depth is None:
        raise CourseError(f"No formulas were found for {source.name} by {recipe}.")
    read, changes, sizes = finder.read(formulas, b), formulas.small_log(b, s).changes, {"b": b, "s": s, **finder.sizes}
    in_primes, primes = finder.run_in_primes(formulas, b)
    for place, one in enumerate(read):
        if (one.value(sizes), one.value(primes)) != (abs(changes[place]), abs(in_primes[place])):
            raise CourseError(f"No letters for {formulas.labels[place]} of {source.name} by {recipe}.")
    return Lettered(tuple(read), np.sign(changes), formulas.labels, formulas.depth, formulas.grain)


def packed(found: Lettered) -> dict:
    """As plain values."""
    texts, labels = list(dict.fromkeys(found.polynomials)), list(dict.fromkeys(found.labels))
    return {
        "polynomials": [[[list(map(list, key)), str(factor)] for key, factor in one.terms] for one in texts],
        "labels": labels,
        "events": [
            [int(sign) * (texts.index(polynomial) + 1), labels.index(label)]
            for polynomial, sign, label in zip(found.polynomials, found.signs, found.labels, strict=True)
        ],
        "repeated": found.depth.repeated,
        "growth": {int(place): int(found.depth.growth[place]) for place in np.flatnonzero(found.depth.growth)},
        "grain": found.grain,
    }


def main() -> None:
    """Find all formulas again and write the file."""
    found: dict = {
        "versions": f"torch {version('torch')}, transformers {version('transformers')}",
        "families": {name: kind_of(config()) for name, config in FAMILIES.items()},
    }
    for family, recipe in keys():
        name = name_of(family, recipe)
        if name not in found:
            print(name, flush=True)
            found[name] = packed(lettered(source_of(FAMILIES[family]()), recipe))
    FILE.write_bytes(gzip.compress(json.dumps(found, separators=(",", ":")).encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
