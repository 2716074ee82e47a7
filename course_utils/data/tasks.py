"""The corpus as two tasks: name a function's package, and predict the next token."""

import logging
import platform
from collections import Counter
from hashlib import sha256
from itertools import chain
from typing import TYPE_CHECKING

from datasets import ClassLabel, Dataset, DatasetDict, DatasetInfo, Features, Value

from course_utils.data import corpus
from course_utils.data.cache import cached
from course_utils.data.mrpc import load_mrpc
from course_utils.errors import CourseError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_log = logging.getLogger("course_utils")


def load(name: str) -> DatasetDict:
    """The data set called `"functions"` or `"mrpc"`; raises `CourseError` on any other name."""
    loaders = {"functions": load_functions, "mrpc": load_mrpc}
    if name not in loaders:
        raise CourseError(f"There is no data set called {name!r}; choose one of {', '.join(loaders)}.")
    return loaders[name]()


def load_functions() -> DatasetDict:
    """Functions of this Python's standard library with the package they come from.

    Splits `train`, `validation` and `test`; features `text`, `label` (a `ClassLabel`), and the origin: `file`, `line`,
    `name`. Rows are in a fixed, mixed order, so the first n of a split are a fair sample of it. No network is needed.
    `corpus` states the rules; raises `CourseError` where the standard library has too little source.
    """
    library, present = corpus.standard_library(), _packages()
    kept = cached(
        "functions", {"version": corpus.VERSION, "library": str(library), "packages": present}, _rows_by_split
    )
    return DatasetDict(
        {split: _dataset([corpus.Function(*row) for row in kept[split]], present) for split in corpus.SPLITS}
    )


def load_language(tokenizer: "PreTrainedTokenizerBase", sequence: int) -> DatasetDict:
    """The same functions, split the same way, as blocks of `sequence` tokens for a language model.

    Functions follow each other in file order, each ended by `tokenizer.sep_token_id`; the stream is cut into blocks
    and what is left at its end is dropped. Features `input_ids`, `attention_mask` (all ones: nothing is padded) and
    `labels`, equal to `input_ids`, since the models of Transformers shift them. Raises `CourseError` where the
    tokenizer has no separator or a split has fewer than `sequence` tokens.
    """
    if tokenizer.sep_token_id is None:
        raise CourseError("The tokenizer has no separator token; use one from data.tokenizer_for().")
    return DatasetDict({name: _blocks(split, tokenizer, sequence) for name, split in load_functions().items()})


def majority_share(split: Dataset) -> float:
    """The share of the most frequent label: the accuracy of always answering it. Raises `CourseError` on no rows."""
    if not len(split):
        raise CourseError("The share of the most frequent label needs at least one row; this split has none.")
    return max(Counter(split["label"]).values()) / len(split)


def card(dataset: DatasetDict) -> str:
    """What the data set is, in Markdown, with counts and shares taken from `dataset` itself (from `load_functions`)."""
    description = dataset["train"].info.description
    return "\n\n".join(
        [f"### {description.splitlines()[0]}", *_facts(dataset), _count_table(dataset), _share_table(dataset), _LIMITS]
    )


_LIMITS = (
    "**Limits.** Another Python version has somewhat other functions, so accuracies are compared within one version "
    "only. Files of a package share their authors' habits and names; a model that does well here has learned those, "
    "not what code does. Small packages have a handful of rows in validation and test: read their own accuracy with "
    "care."
)


def _facts(dataset: DatasetDict) -> list[str]:
    near, labels = float(corpus.NEAR_DUPLICATE), dataset["train"].features["label"].names
    return [
        f"**Task.** Which standard-library package does this function come from? There are {len(labels)} packages.",
        f"**Source.** The standard library of this Python, {_python()}, "
        "read from its own files; copyright Python Software Foundation, PSF License Version 2. Nothing is downloaded.",
        f"**Kept.** Functions and methods of at least {corpus.MIN_LINES} lines and {corpus.MIN_TOKENS} tokens that do "
        "not name their own package; of functions that are nearly alike (of all runs of three tokens that either has, both "
        f"have {near:.0%} or more), the first.",
        "**Splits.** By file: no file is in two splits. For each package, files go, largest first, to the split that "
        f"is furthest below its share of {', '.join(f'{float(share):.0%}' for share in corpus.SPLITS.values())}.",
    ]


def _python() -> str:
    return f"{platform.python_implementation()} {platform.python_version()}"


def _count_table(dataset: DatasetDict) -> str:
    counts = {name: Counter(split["label"]) for name, split in dataset.items()}
    names = dataset["train"].features["label"].names
    rows = [[name, *(counts[split][index] for split in dataset)] for index, name in enumerate(names)]
    return _table(["package", *dataset], [*rows, ["all", *map(len, dataset.values())]])


def _share_table(dataset: DatasetDict) -> str:
    shares = [f"{majority_share(split):.1%}" for split in dataset.values()]
    files = [len(set(split["file"])) for split in dataset.values()]
    return _table(["split", *dataset], [["most frequent label", *shares], ["files", *files]])


def _table(head: list, rows: list[list]) -> str:
    rule = ["---", *("---:" for _ in head[1:])]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [head, rule, *rows])


def _packages() -> list[str]:
    present = corpus.present_packages(corpus.standard_library())
    missing = [label for label in corpus.PACKAGES if label not in present]
    if missing:
        _log.warning("This Python has no source for %s; the corpus is made of the other packages.", ", ".join(missing))
    return present


def _rows_by_split() -> dict[str, list]:
    rows = corpus.read_functions()
    split_of = corpus.assign_files(rows)
    mixed = sorted(rows, key=lambda row: sha256(repr(row[:4]).encode()).digest())
    return {split: [row for row in mixed if split_of[row.file] == split] for split in corpus.SPLITS}


def _dataset(rows: list[corpus.Function], labels: list[str]) -> Dataset:
    origin = {"file": Value("string"), "line": Value("int32"), "name": Value("string")}
    features = Features({"text": Value("string"), "label": ClassLabel(names=labels), **origin})
    columns = {name: [getattr(row, name) for row in rows] for name in features}
    return Dataset.from_dict(columns, features=features, info=_info(features))


def _info(features: Features) -> DatasetInfo:
    return DatasetInfo(
        description=f"Functions of the Python {platform.python_version()} standard library and their packages\n\n"
        "Which package does this function come from? Read from the library's own source files, split by file.",
        license="PSF License Version 2",
        homepage="https://docs.python.org/3/library/",
        features=features,
    )


def _blocks(split: Dataset, tokenizer: "PreTrainedTokenizerBase", sequence: int) -> Dataset:
    ordered = sorted(zip(split["file"], split["line"], split["text"], strict=True))
    encoded = tokenizer([text for *_, text in ordered], add_special_tokens=False, return_attention_mask=False)
    stream = list(chain.from_iterable([*ids, tokenizer.sep_token_id] for ids in encoded["input_ids"]))
    blocks = [stream[start : start + sequence] for start in range(0, len(stream) - sequence + 1, sequence)]
    if not blocks:
        raise CourseError(f"A split of {len(stream)} tokens has no block of {sequence}; ask for a shorter sequence.")
    ones = [[1] * sequence for _ in blocks]
    return Dataset.from_dict({"input_ids": blocks, "attention_mask": ones, "labels": blocks})
