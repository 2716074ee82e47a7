"""Before the first step: the worst batch of a data set, run once, and an estimate held against the machine."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import pandas as pd
import torch

from course_utils.errors import CourseError, first_line
from course_utils.memory.formulas.estimate import Estimate
from course_utils.memory.trace.measure import NOT_ATTRIBUTED, Measurement, measure
from course_utils.units import format_bytes


def lengths_of(path: Path) -> list[int]:
    """The lengths in tokens of a data set's examples.

    `path` is a text file with a number on each line, a JSON Lines file whose objects have `length` or `input_ids`, or a folder
    that `datasets.Dataset.save_to_disk` wrote with such a column. Raises `CourseError` for another.
    """
    try:
        if path.is_dir():
            from datasets import load_from_disk

            rows: Iterable = load_from_disk(str(path))
        elif path.suffix == ".jsonl":
            rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        else:
            rows = [{"length": int(line)} for line in path.read_text(encoding="utf-8").split()]
        lengths = [row["length"] if "length" in row else len(row["input_ids"]) for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CourseError(
            f"{path} could not be read as lengths ({type(error).__name__}: {error}); give one number a line, or .jsonl or a "
            "saved data set with input_ids or length."
        ) from error
    if not lengths or min(lengths) < 1:
        raise CourseError(f"{path} has no lengths of 1 or more.")
    return lengths


def guard(step: Callable[[object], object], batches: Iterable) -> object:
    """Run `step` on the largest of `batches` at the beginning of training, so that a shortage shows then and not at step N.

    The largest has the most elements. `step` should make a forward and a backward pass and drop the gradients; after a first
    update the optimizer's state is there too. Returns the batch. Raises `CourseError`, with the sizes, where memory runs out.
    """
    largest = max(batches, key=_elements)
    try:
        step(largest)
    except torch.OutOfMemoryError as error:
        raise CourseError(
            f"The largest batch, of {_elements(largest):,} elements, does not fit ({first_line(error)}); "
            "course plan says what would."
        ) from error
    return largest


def _elements(batch: object) -> int:
    from torch.utils._pytree import tree_leaves

    leaves = tree_leaves(dict(batch) if hasattr(batch, "keys") else batch)
    return sum(leaf.numel() for leaf in leaves if isinstance(leaf, torch.Tensor))


def check(
    estimate: Estimate, build: Callable[[], tuple] | None = None, step: Callable[..., object] | None = None
) -> pd.DataFrame:
    """Run a few real steps and set each term of the estimate beside what was measured, kind by kind at the measured peak.

    `build` and `step` as for `measure`; by default the estimate's own workload, on this machine. The column `differs` names the
    kinds that are off by more than 1 % of the peak.
    """
    work = estimate.workload
    measurement: Measurement = measure(build or work.build, step or work.step, timed=0)
    predicted = estimate.by_instant().get(measurement.peak_phase, estimate.peak_instant.by_kind)
    split = measurement.split
    kinds = [kind for kind in dict.fromkeys([*predicted, *split]) if predicted.get(kind) or split.get(kind)]
    rows = [{"kind": kind, "predicted": predicted.get(kind, 0), "measured": split.get(kind, 0)} for kind in kinds]
    rows.append({"kind": "peak", "predicted": estimate.peak, "measured": measurement.peak})
    frame = pd.DataFrame(rows).set_index("kind")
    more = frame["measured"] - frame["predicted"]
    notes = {kind: format_bytes(size) if abs(size) > 0.01 * measurement.peak else "" for kind, size in more.items()}
    if notes.get(NOT_ATTRIBUTED):
        notes[NOT_ATTRIBUTED] = "hidden inside operators"
    return frame.assign(differs=pd.Series(notes))
