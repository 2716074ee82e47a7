"""The lengths of a data set's examples."""

import json
from collections.abc import Iterable
from pathlib import Path

from course_utils.errors import CourseError


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


def describe_lengths(lengths: list[int]) -> str:
    """A sentence on the distribution of lengths, and on the one that is planned for."""
    lengths = sorted(lengths)
    median = lengths[len(lengths) // 2]
    percentile = lengths[int(0.99 * len(lengths))]
    spread = f"{median:,} tokens at the median, {percentile:,} at 99 %, {lengths[-1]:,} at most"
    return f"{len(lengths):,} examples of {spread}: planned for a batch of the longest."
