"""Find the formulas of all named models again, and write the archive that `course plan` answers from at once.

It takes about two hours of one core, half of that with two processes.
"""

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from zipfile import ZIP_LZMA, ZipFile, ZipInfo

import numpy as np

from course_utils import models
from course_utils.errors import CourseError
from course_utils.memory.formulas.finder import FormulaFinder, Formulas
from course_utils.memory.formulas.named import ARCHIVE, key_of
from course_utils.memory.formulas.named import models as models_in
from course_utils.memory.planning.at_once import known_recipes
from course_utils.memory.step.model import Source, source_of
from course_utils.memory.step.recipe import Recipe

# Without the course's own small models, which differ by scale.
NAMES = tuple(name for name in models.NAMES if name not in models.FAMILIES)
# For one example and for more: the batch up to which formulas are confirmed, and lengths, of which the first possible one is
# taken, since attention to a window is another step beyond it.
LARGEST = {1: (1, (32768, 4096, 2048)), 2: (64, (8192, 4096, 2048))}


def member(name: str) -> dict:
    """What the archive holds of a model: for each recipe the formulas that were found, and what belongs to all."""
    source, labels, formulas = source_of(name), {}, {}
    for recipe in known_recipes():
        with suppress(CourseError):  # the recipe does not go with this model
            answer = find(source, recipe)
            if answer is not None:
                formulas[key_of(recipe)] = packed(*answer, labels)
    return {
        "versions": f"torch {version('torch')}, transformers {version('transformers')}",
        "positions": source.positions,
        "remarks": source.remarks,
        "blocks": source.blocks.count,
        "labels": list(labels),
        "formulas": formulas,
    }


def find(source: Source, recipe: Recipe) -> tuple[Formulas, int] | None:
    """The formulas, and the bytes in use on the host, where these are the same at both ends."""
    finder, (batch, lengths) = FormulaFinder(source, replace(recipe, batch=1, sequence=1)), LARGEST[recipe.batch]
    host = finder.run(recipe.batch, 256).host.peak
    for length in (min(source.positions or length, length) for length in lengths):
        formulas = finder.formulas_for(batch, length)
        if formulas is not None and formulas.depth is not None and not formulas.omit_scratch:
            return (formulas, host) if finder.run(batch, length).host.peak == host else None
    return None


def packed(formulas: Formulas, host: int, labels: dict) -> dict:
    """As plain values: coefficients in 24ths, and for each event its row of them and its label."""
    rows, events = {}, []
    for row, label in zip(np.rint(formulas.coefficients * 24).astype(int).tolist(), formulas.labels, strict=True):
        events.append((rows.setdefault(tuple(row), len(rows)), labels.setdefault(label, len(labels))))
    batches, lengths = zip(*formulas.confirmed, strict=True)
    return {
        "rows": list(rows),
        "events": events,
        "repeated": formulas.depth.stretches,
        "growth": {int(place): int(formulas.depth.growth[place]) for place in np.flatnonzero(formulas.depth.growth)},
        "grain": formulas.grain,
        "host": host,
        "confirmed": ((min(batches), min(lengths)), (max(batches), max(lengths))),
    }


def main() -> None:
    """Find them and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    texts = {}
    if ARCHIVE.is_file():
        with ZipFile(ARCHIVE) as archive:
            texts = {name: archive.read(f"{name}.json") for name in models_in()}
    with ProcessPoolExecutor(arguments.processes) as pool:
        for name, entry in zip(arguments.names, pool.map(member, arguments.names), strict=True):
            texts[name] = json.dumps(entry, separators=(",", ":"))
            print(f"{name}: {len(entry['formulas'])} formulas, {len(texts[name]):,} characters", flush=True)
    with ZipFile(ARCHIVE, "w", ZIP_LZMA) as archive:
        for name in filter(texts.__contains__, NAMES):
            archive.writestr(ZipInfo(f"{name}.json"), texts[name], ZIP_LZMA)


if __name__ == "__main__":
    main()
