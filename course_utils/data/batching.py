"""From text to batches of tensors, in an order that (seed, epoch) decides alone."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from datasets import Dataset, DatasetDict
from torch.utils.data import DataLoader, Sampler, StackDataset

from course_utils.errors import CourseError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BATCH_COLUMNS = ("input_ids", "attention_mask", "labels")


def tokenize(dataset: DatasetDict, tokenizer: "PreTrainedTokenizerBase", sequence: int) -> DatasetDict:
    """Every row's `text` as `input_ids`, `attention_mask` (both of length `sequence`, truncated or padded) and `labels`.

    Raises `CourseError` where there is no `text`, or `sequence` has no room for a token of it.
    """
    if sequence < 3:
        raise CourseError(f"A sequence of {sequence} tokens has no room for text beside its marks; use 3 or more.")

    def tokenize_split(split: Dataset) -> Dataset:
        encoded = tokenizer(texts_of(split), max_length=sequence, truncation=True, padding="max_length")
        inputs = {name: encoded[name] for name in ("input_ids", "attention_mask")}
        return Dataset.from_dict({**inputs, "labels": split["label"][:]})

    return DatasetDict({name: tokenize_split(split) for name, split in dataset.items()})


def texts_of(split: Dataset) -> list[str]:
    """The column `text`; raises `CourseError` where there is none."""
    if "text" not in split.column_names:
        raise CourseError(f"There is no text among {', '.join(split.column_names)}; load the data again.")
    return split["text"][:]


class EpochSampler(Sampler[int]):
    """A permutation of `range(length)` for every epoch, decided by (seed, epoch) alone.

    `set_epoch` chooses the epoch. With `seed=None` the order is 0, 1, 2, ... The global random state of PyTorch is not
    touched.
    """

    def __init__(self, length: int, seed: int | None = 0):
        self.length, self.seed, self.epoch = length, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        if self.seed is None:
            return iter(range(self.length))
        # A pair of numbers needs mixing: seed + epoch would give (0, 1) and (1, 0) the same order. Multiples of the golden
        # ratio, as of SplitMix64, are shared by no small pairs.
        mixed = (self.seed * 0x9E3779B97F4A7C15 + self.epoch * 0xBF58476D1CE4E5B9) % 2**63
        return iter(torch.randperm(self.length, generator=torch.Generator().manual_seed(mixed)).tolist())

    def __len__(self) -> int:
        return self.length


def batches(split: Dataset, batch_size: int, seed: int | None = None) -> DataLoader:
    """Batches of `input_ids`, `attention_mask` and `labels` (int64 tensors) from a tokenized split.

    With a `seed` the order is that of `EpochSampler(len(split), seed)`, reachable as `loader.sampler` for `set_epoch`;
    without one, as for evaluation, it is the split's own. The last batch may be smaller and is kept.
    Raises `CourseError` on a batch size below 1 or a split that is not tokenized.

    >>> row = {"input_ids": [5, 7, 2], "attention_mask": [1, 1, 1], "labels": [5, 7, 2]}
    >>> [len(batch["labels"]) for batch in batches(Dataset.from_list([row] * 5), 2)]
    [2, 2, 1]
    """
    missing = [name for name in _BATCH_COLUMNS if name not in split.column_names]
    if missing:
        raise CourseError(f"The split has no {' or '.join(missing)}; pass it through data.tokenize() first.")
    if batch_size < 1:
        raise CourseError(f"A batch of {batch_size} examples is none; use a batch size of 1 or more.")
    rows = StackDataset(**{name: torch.tensor(split[name][:], dtype=torch.int64) for name in _BATCH_COLUMNS})
    sampler = EpochSampler(len(split), seed)
    # Without a generator of its own, a loader draws a number from the global state each time it is iterated.
    return DataLoader(rows, batch_size, sampler=sampler, generator=torch.Generator().manual_seed(0))


def on_device(batch: dict, device: torch.device) -> dict:
    """`batch` with its tensors on `device`."""
    return {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in batch.items()}
