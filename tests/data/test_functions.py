"""The corpus is what its rules say, the same for everybody, and made again from Python's own files."""

import ast
import gzip
import platform
import re
from collections import Counter, defaultdict
from hashlib import sha256

import numpy as np
import pytest
from datasets import Dataset
from sklearn.feature_extraction.text import CountVectorizer

from benchmarks import corpus
from course_utils import data
from course_utils.data.functions import FILE
from course_utils.errors import CourseError

DIGEST = "a6b856c7589f6eb340ea6efebb9a31013f1a997b7f5916e45fca6aaad32ec0d0"
only_in_its_python = pytest.mark.skipif(
    platform.python_version() != corpus.PYTHON, reason=f"needs the library of Python {corpus.PYTHON}"
)


@pytest.fixture(scope="module")
def rows(functions):
    """Rows of all splits, with their label in words."""
    names = functions["train"].features["label"].names
    return [{**row, "split": split, "package": names[row["label"]]} for split in functions for row in functions[split]]


def body(row):
    """The function alone, less the line of its class."""
    return row["text"].partition("\n")[2] if row["text"].startswith("class ") else row["text"]


def test_the_file_is_the_one_that_the_stored_results_came_from(functions):
    assert sha256(gzip.decompress(FILE.read_bytes())).hexdigest() == DIGEST
    assert {split: len(rows) for split, rows in functions.items()} == {"train": 2908, "validation": 361, "test": 347}
    assert functions["train"].features["label"].names == list(corpus.PACKAGES)
    assert "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2" in FILE.with_name("functions.LICENSE.txt").read_text()


@pytest.mark.slow
@only_in_its_python
def test_the_file_is_made_again_from_the_standard_library(rows):
    regenerated = corpus.rows_of_the_file()
    assert [(row["split"], row["package"], row["file"], row["line"], row["name"], row["text"]) for row in rows] == [
        tuple(row.values()) for row in regenerated
    ]


def test_a_row_is_a_whole_function_that_does_not_name_its_package(rows):
    for row in rows:
        ast.parse(row["text"])
        assert not re.search(rf"\b{row['package']}\b", row["text"]), row["name"]
        assert len(re.findall(r"\w+|[^\w\s]", body(row))) >= 12
        assert len(body(row).splitlines()) >= 2


def test_no_two_functions_are_near_duplicates(rows):
    """Every pair's Jaccard similarity at once, by sparse products."""
    counter = CountVectorizer(
        analyzer=lambda text: set(zip(*(re.findall(r"\w+|[^\w\s]", text)[i:] for i in range(3)), strict=False)),
        dtype=np.int64,
    )
    present = counter.fit_transform([body(row) for row in rows])
    shared = (present @ present.T).tocoo()
    size = np.asarray(present.sum(axis=1)).ravel()
    different = shared.row < shared.col
    overlap, row, col = shared.data[different], shared.row[different], shared.col[different]
    assert 0.5 < (overlap / (size[row] + size[col] - overlap)).max() < 0.7


def test_no_file_is_in_two_splits_and_every_label_is_in_each_in_about_its_share(functions, rows):
    files = [set(split["file"]) for split in functions.values()]
    assert sum(map(len, files)) == len(set().union(*files))
    counts = defaultdict(Counter)
    for row in rows:
        counts[row["package"]][row["split"]] += 1
    for label, count in counts.items():
        assert 0.7 <= count["train"] / count.total() <= 0.9, label
        assert count["validation"] >= 4, label
        assert count["test"] >= 2, label


def test_the_first_rows_are_a_fair_sample(functions):
    train = functions["train"]
    first_counts, all_counts = Counter(train["label"][:600]), Counter(train["label"])
    assert set(first_counts) == set(all_counts)
    assert all(abs(first_counts[label] / 600 - all_counts[label] / len(train)) < 0.05 for label in all_counts)


def test_majority_share_by_hand():
    assert data.majority_share(Dataset.from_dict({"label": [2, 0, 2, 1, 2]})) == 0.6
    with pytest.raises(CourseError, match="at least one row"):
        data.majority_share(Dataset.from_dict({"label": []}))


def test_every_public_name_of_the_room_is_there():
    assert all(callable(getattr(data, name)) for name in data.__all__)
    with pytest.raises(AttributeError, match="it has EpochSampler, batches, load_functions"):
        data.imdb  # noqa: B018
