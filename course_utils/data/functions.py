"""The course's corpus: which package of Python's standard library does a function come from?"""

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from course_utils.errors import CourseError

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

FILE = Path(__file__).with_name("functions.jsonl.gz")
SPLITS = ("train", "validation", "test")


def load_functions() -> "DatasetDict":
    """Functions of the standard library of Python 3.11.7 with the package they come from; no network is needed.

    Splits `train`, `validation` and `test`; features `text`, `label` (a `ClassLabel`), and the origin: `file`, `line`, `name`.
    Rows are in a fixed, mixed order, so the first n of a split are a fair sample of it. `benchmarks/corpus.py` in the repository
    made the file and states its rules; `functions.LICENSE.txt` beside it is Python's license.
    """
    from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

    rows = [json.loads(line) for line in gzip.decompress(FILE.read_bytes()).splitlines()]
    labels = sorted({row["label"] for row in rows})
    origin = {"file": Value("string"), "line": Value("int32"), "name": Value("string")}
    features = Features({"text": Value("string"), "label": ClassLabel(names=labels), **origin})
    splits = {split: [row for row in rows if row["split"] == split] for split in SPLITS}
    columns = {split: {name: [row[name] for row in kept] for name in features} for split, kept in splits.items()}
    return DatasetDict({split: Dataset.from_dict(columns[split], features=features) for split in SPLITS})


def majority_share(split: "Dataset") -> float:
    """The share of the most frequent label: the accuracy of always answering it. Raises `CourseError` on no rows."""
    if not len(split):
        raise CourseError("The share of the most frequent label needs at least one row; this split has none.")
    return max(Counter(split["label"]).values()) / len(split)


_CARD = """### Functions of Python's standard library and their packages

**Task.** Which package does this function come from? There are {packages} packages.

**Source.** The standard library of Python 3.11.7; copyright Python Software Foundation, PSF License Version 2.

**Kept.** Functions and methods of at least 2 lines and 12 tokens that do not name their own package; of functions that are \
nearly alike (of all runs of three tokens that either has, both have 70 % or more), the first.

**Splits.** By file: no file is in two splits. For each package, files go, largest first, to the split that is furthest \
below its share of 80 %, 10 %, 10 %.

{table}

**Limits.** Files of a package share their authors' habits and names; a model that does well here has learned those, not what \
code does. Small packages have a handful of rows in validation and test: read their own accuracy with care."""


def card(dataset: "DatasetDict") -> str:
    """What the data set is, in Markdown, with counts and shares taken from `dataset` itself (from `load_functions`)."""
    names = dataset["train"].features["label"].names
    counts = {split: Counter(rows["label"]) for split, rows in dataset.items()}
    table = [["package", *dataset], ["---", *("---:" for _ in dataset)]]
    table += [[name, *(counts[split][label] for split in dataset)] for label, name in enumerate(names)]
    table.append(["all", *(len(rows) for rows in dataset.values())])
    table.append(["files", *(len(set(rows["file"])) for rows in dataset.values())])
    table.append(["share of the most frequent label", *(f"{majority_share(rows):.1%}" for rows in dataset.values())])
    return _CARD.format(packages=len(names), table="\n".join(f"| {' | '.join(map(str, row))} |" for row in table))
