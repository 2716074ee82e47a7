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
    columns = {split: {name: [row[name] for row in part] for name in features} for split, part in splits.items()}
    return DatasetDict({split: Dataset.from_dict(columns[split], features=features) for split in SPLITS})


def majority_share(split: "Dataset") -> float:
    """The share of the most frequent label: the accuracy of always answering it. Raises `CourseError` on no rows."""
    if not len(split):
        raise CourseError("The share of the most frequent label needs at least one row; this split has none.")
    return max(Counter(split["label"]).values()) / len(split)
