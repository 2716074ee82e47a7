"""Ask for the bytes on the planner's pages, and write the site's file; what was asked before is kept in `build/site_cells`."""

import gzip
import json
import logging
import os
import sys
from pathlib import Path

from course_staff.site.cells import BATCHES, FILE, METHODS, MODELS, Method, lengths_of
from course_utils.memory.formulas.estimate import estimate

FOUND = Path("build/site_cells")
_log = logging.getLogger(__name__)


def find(model: str, method: Method) -> list[list[tuple[int, int]]]:
    """A row a length, in it a pair a batch: bytes allocated, and bytes reserved."""
    first, rows = estimate(model, method.recipe()), []
    for sequence in lengths_of(model):
        logs = [first.at(batch=batch, sequence=sequence).log for batch in BATCHES]
        rows.append([(log.peak, log.reserved) for log in logs])
    return rows


def main(models: list[str]) -> None:
    """Those that are missing, of these models or of all; then the file."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    FOUND.mkdir(parents=True, exist_ok=True)
    for model in models or MODELS:
        for place, method in enumerate(METHODS):
            path = FOUND / f"{model}.{place}.json"
            if path.is_file() and json.loads(path.read_text(encoding="utf-8"))["fields"] == method.fields:
                continue
            found = {"fields": method.fields, "rows": find(model, method)}
            beside = path.with_suffix(".part")
            beside.write_text(json.dumps(found), encoding="utf-8")
            os.replace(beside, path)
            _log.info("%s: %s", model, method.name)
    if not models:
        FILE.write_bytes(gzip.compress(json.dumps(pack(), separators=(",", ":")).encode(), 9, mtime=0))


def pack() -> dict:
    """What was found, by model and method's name."""
    found = {}
    for model in MODELS:
        paths = [FOUND / f"{model}.{place}.json" for place in range(len(METHODS))]
        rows = [json.loads(path.read_text(encoding="utf-8"))["rows"] for path in paths]
        found[model] = {method.name: row for method, row in zip(METHODS, rows, strict=True)}
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
