"""Find the formulas that the site's planner evaluates in the page, for every named model, and write the site's file.

A step is put together from two parts that do not depend on each other, as in `memory.shipped`: forward and backward by one
recipe, and the update by one optimizer. Each is found once and kept in a folder, so that a run goes on where the last one
stopped.
"""

import gzip
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from importlib.metadata import version
from itertools import combinations, product
from pathlib import Path

import numpy as np

from course_staff.site.planner import DENOMINATOR, FILE, LARGEST, MODELS, OPTIMIZERS, PRECISIONS, TRAINED, UNIT
from course_utils.errors import CourseError
from course_utils.memory.depth import Depth, cut
from course_utils.memory.finder import MONOMIALS, powers
from course_utils.memory.log import Log, sign
from course_utils.memory.model import Source, source_of
from course_utils.memory.recipe import Recipe
from course_utils.memory.trial import run_once

FOUND = Path("build/site_formulas")
_MANY = 64
"""The batch at which formulas are confirmed once more."""
_log = logging.getLogger("formulas")


@dataclass(frozen=True)
class Piece:
    """One part of a step of one model: what it is called in the file, and the recipe that it is found by."""

    name: str
    recipe: Recipe
    update: bool = False


def pieces() -> Iterator[Piece]:
    """All parts that a model has, the ones asked for most first."""
    ways = [*product(("all",), PRECISIONS), *product(("lora", "qlora"), ("autocast", "bf16"))]
    for kind, half, optimizer in product(TRAINED, ("fp32", "bf16"), OPTIMIZERS[:-1]):  # SGD's is in every other part
        if kind == "all" or (kind, half) == ("lora", "fp32"):  # adapters are in float32, and QLoRA's are LoRA's
            recipe = Recipe(optimizer, half, batch=2, sequence=2 * UNIT, device="cuda", **TRAINED[kind])
            yield Piece(f"update {kind} {half} {optimizer}", recipe, update=True)
    for sizes in ({"batch": 2}, {"batch": 1}, {"batch": 1, "accumulation": 2}):
        for (kind, precision), checkpointing in product(ways, (False, True)):
            recipe = Recipe("sgd", precision, **sizes, checkpointing=checkpointing, device="cuda", **TRAINED[kind])
            regime = recipe.batch if recipe.accumulation == 1 else "1+1"
            yield Piece(f"forward {kind} {precision} {int(checkpointing)} {regime}", recipe)


def find_forward(source: Source, recipe: Recipe) -> dict:
    """Polynomials of forward and backward from a few small dry runs and a large one, up to whose length they hold.

    Raises `CourseError` where there are none.
    """

    def run(at: tuple[int, int], blocks: int = 3) -> Log:
        return run_once(source.with_blocks(blocks), replace(recipe, batch=at[0], sequence=at[1])).log

    found = cut(source.config, 3)
    if found is None:
        raise CourseError(f"{source.name} is not a model of five equal blocks or more.")
    alone = recipe.batch == 1
    logs = {at: run(at) for at in ([(1, UNIT), (1, 5 * UNIT)] if alone else [(2, UNIT), (3, 5 * UNIT), (5, 3 * UNIT)])}
    first = next(iter(logs))
    depth = _depth(logs[first], lambda blocks: run(first, blocks))
    for longest in _lengths(source.config):
        large = (1 if alone else _MANY, longest)
        rows = _fit({**logs, large: run(large)}, alone)
        if rows is not None:
            break
    else:
        raise CourseError(f"No formulas were found for {source.name} by {recipe}.")
    structure = _structure(logs[first].labels, depth)
    return {"rows": rows, **structure, "grain": logs[first].grain, "blocks": found[1], "longest": longest}


def _lengths(config) -> Iterator[int]:
    """Multiples of `UNIT` to try, the longest first: all positions, then less than a window of attention, then halves."""
    longest = min(getattr(config, "max_position_embeddings", None) or LARGEST["sequence"], LARGEST["sequence"])
    yield longest // UNIT * UNIT
    window = getattr(config, "sliding_window", None)
    if window:
        yield min(window, longest) // UNIT * UNIT - UNIT
    while (longest := longest // 2) >= 8 * UNIT:
        yield longest // UNIT * UNIT


def _fit(logs: dict[tuple[int, int], Log], alone: bool) -> list[list[int]] | None:
    """A row of coefficients an event, in parts of a byte, that gives all logs: one product or two wherever that is enough.

    None where the order of events differs, or where more is needed than the logs tell.
    """
    first = next(iter(logs.values()))
    if any(log.labels != first.labels for log in logs.values()):
        return None
    terms = (0, 2, 4) if alone else range(len(MONOMIALS))
    matrix = [[b ** MONOMIALS[term][0] * s ** MONOMIALS[term][1] for term in range(len(MONOMIALS))] for b, s in logs]
    columns = list(zip(*(log.changes.tolist() for log in logs.values()), strict=True))
    solved = {column: _sparsest(column, matrix, terms) for column in set(columns)}
    return None if None in solved.values() else [solved[column] for column in columns]


def _sparsest(values: tuple[int, ...], matrix: list[list[int]], terms: Iterable[int]) -> list[int] | None:
    for chosen in (*((term,) for term in terms), *combinations(terms, 2)):
        parts = [[row[term] for term in chosen] for row in matrix]
        factors = _solve(parts, values)
        if factors is not None:
            row = dict(zip(chosen, factors, strict=True))
            return [row.get(term, 0) for term in range(len(MONOMIALS))]
    return None


def _solve(parts: list[list[int]], values: tuple[int, ...]) -> list[int] | None:
    """One or two whole coefficients, in parts of a byte, by which all sums come out."""
    if len(parts[0]) == 1:
        factors = [Fraction(values[0], parts[0][0])]
    else:
        (a, b), (c, d) = parts[:2]
        if a * d == b * c:
            return None
        factors = [
            Fraction(d * values[0] - b * values[1], a * d - b * c),
            Fraction(a * values[1] - c * values[0], a * d - b * c),
        ]
    if any(
        sum(f * x for f, x in zip(factors, row, strict=True)) != value for row, value in zip(parts, values, strict=True)
    ):
        return None
    whole = [factor * DENOMINATOR for factor in factors]
    return [int(factor) for factor in whole] if all(factor.denominator == 1 for factor in whole) else None


_depths: dict[tuple, Depth] = {}


def _depth(three: Log, run: Callable[[int], Log]) -> Depth:
    """How three blocks become more; logs of the same events become more in the same way."""
    key = (tuple(map(sign, three.labels)), tuple(np.sign(three.changes).tolist()))
    if key not in _depths:
        depth = Depth.between(run(2), three)
        if depth is None or not (depth.sure or np.array_equal(depth.deepen(three, 4).totals, run(4).totals)):
            raise CourseError("Two and three blocks do not tell of all.")
        if depth.growth.any():
            return depth
        _depths[key] = depth
    return _depths[key]


def find_update(source: Source, recipe: Recipe) -> dict:
    """The optimizer's state and the update, whose sizes depend neither on the batch nor on the length."""

    def run(blocks: int) -> Log:
        return _of_optimizer(run_once(source.with_blocks(blocks), recipe).log)

    three = run(3)
    return {"changes": three.changes.tolist(), **_structure(three.labels, _depth(three, run)), "grain": three.grain}


def _of_optimizer(log: Log) -> Log:
    """Its state and temporaries alone: all else is in the other part."""
    places = [place for place, label in enumerate(log.labels) if label[1].startswith("optimizer ")]
    return Log(log.changes[places], tuple(log.labels[place] for place in places), log.grain)


def _structure(labels: tuple, depth: Depth) -> dict:
    growth = {int(place): int(depth.growth[place]) for place in np.flatnonzero(depth.growth)}
    return {"labels": [sign(label) for label in labels], "repeated": depth.repeated, "growth": growth}


def find_all(folder: Path) -> None:
    """Every piece of every model that is not in `folder` yet; of what cannot be had the sentence that says why."""
    for piece, model in product(pieces(), MODELS):
        path = folder / model / f"{piece.name}.json"
        if path.is_file():
            continue
        source = source_of(model)
        try:
            found = (find_update if piece.update else find_forward)(source, piece.recipe)
        except CourseError as refused:
            found = {"refused": str(refused)}
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(".part")
        beside.write_text(json.dumps(found, separators=(",", ":")), encoding="utf-8")
        os.replace(beside, path)
        _log.info("%s: %s%s", model, piece.name, f" ({found['refused']})" if "refused" in found else "")


def pack(folder: Path) -> dict:
    """What is in `folder` as the page reads it: what pieces of several models have in common is there once.

    A pattern is the order of events, each with the place of its size in the piece's own list; sizes are polynomials of the
    model's list of `rows`.
    """
    pieces_of: dict[str, dict[str, dict]] = {}
    for path in sorted(folder.glob("*/*.json")):
        pieces_of.setdefault(path.parent.name, {})[path.stem] = json.loads(path.read_text(encoding="utf-8"))
    groups: dict[str, list[tuple[str, str]]] = {}
    packed = _Packed()
    for name, model in ((piece.name, model) for piece, model in product(pieces(), MODELS)):
        found = pieces_of.get(model, {}).get(name, {"refused": "It has not been found yet."})
        if "refused" in found:
            packed.out.setdefault(model, {})[name] = found["refused"]
            continue
        key = json.dumps([found["labels"], found["repeated"], _signs(found), found["growth"]])
        groups.setdefault(key, []).append((model, name))
    for members in groups.values():
        packed.add([(model, name, pieces_of[model][name]) for model, name in members])
    return packed.plain()


def _rows(found: dict) -> np.ndarray:
    """A row of coefficients an event."""
    if "rows" in found:
        return np.array(found["rows"], dtype=np.int64)
    return (
        np.array(found["changes"], dtype=np.int64)[:, None] * DENOMINATOR * np.eye(1, len(powers(1, 1)), dtype=np.int64)
    )


def _signs(found: dict) -> list[int]:
    return np.sign(_rows(found) @ powers(2, 2 * UNIT)).astype(int).tolist()


class _Packed:
    """Lists in which each thing is once, and what refers to them by places."""

    def __init__(self):
        self.labels: dict[tuple, int] = {}
        self.words: dict[str, int] = {}
        self.patterns: list[dict] = []
        self.models: dict[str, dict] = {}
        self.out: dict[str, dict[str, str]] = {}
        self._rows: dict[str, dict[tuple, int]] = {}

    def add(self, members: list[tuple[str, str, dict]]) -> None:
        """Pieces of one pattern: models, names, and what was found."""
        first, signs = members[0][2], _signs(members[0][2])
        if first["growth"]:
            for model, name, _ in members:
                self.out.setdefault(model, {})[name] = "Some sizes depend on the number of blocks."
            return
        tables = [_rows(found) * np.array(signs)[:, None] for *_, found in members]
        joint = [tuple(table[event].tobytes() for table in tables) for event in range(len(signs))]
        slots = {key: place for place, key in enumerate(dict.fromkeys(joint))}
        firsts = {slot: event for event, slot in reversed([*enumerate(slots[key] for key in joint)])}
        events = [s * (slots[key] + 1) for s, key in zip(signs, joint, strict=True)]
        labels = [self._place_of_label(tuple(label)) for label in first["labels"]]
        self.patterns.append({"events": events, "labels": labels, "repeated": first["repeated"]})
        for (model, name, found), table in zip(members, tables, strict=True):
            rows = [self._place_of_row(model, table[firsts[slot]]) for slot in range(len(slots))]
            kept = self.models.setdefault(model, {"pieces": {}, "longest": LARGEST["sequence"]})
            kept["pieces"][name] = [len(self.patterns) - 1, *rows]
            if "blocks" in found:
                kept |= {"blocks": found["blocks"], "longest": min(kept["longest"], found["longest"])}

    def _place_of_label(self, label: tuple) -> int:
        phase, kind, module, operator = label
        places = [self.words.setdefault(word, len(self.words)) for word in (phase, kind, module, operator)]
        return self.labels.setdefault(tuple(places), len(self.labels))

    def _place_of_row(self, model: str, row: np.ndarray) -> int:
        sparse = tuple(number for place in np.flatnonzero(row).tolist() for number in (place, int(row[place])))
        rows = self._rows.setdefault(model, {})
        return rows.setdefault(sparse, len(rows))

    def plain(self) -> dict:
        """All of it as plain values."""
        return {
            "versions": f"torch {version('torch')}, transformers {version('transformers')}",
            "words": list(self.words),
            "labels": [number for label in self.labels for number in label],
            "patterns": self.patterns,
            "models": {name: {**model, "rows": list(self._rows[name])} for name, model in self.models.items()},
            "out": self.out,
        }


def main() -> None:
    """Find what is not there yet, and write the file."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    find_all(FOUND)
    write(FOUND)


def write(folder: Path) -> None:
    """The file for the page, of what has been found so far."""
    FILE.write_bytes(gzip.compress(json.dumps(pack(folder), separators=(",", ":")).encode(), 9, mtime=0))


if __name__ == "__main__":
    main()
