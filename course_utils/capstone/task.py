"""The task of the capstone: tell from a function's tokens which package it comes from, for files never seen in training.

Every draw gives other files, other token ids and other labels to the same functions, so that nothing learned elsewhere helps;
the sizes stay, and with them the bytes and operations of a training.
"""

import random
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn

from course_utils import models

PACKAGES = ("asyncio", "email", "importlib", "multiprocessing", "xml")
ROWS, HELD_ROWS, SEQUENCE, VOCABULARY = 2048, 600, 32, 8192
HELD_SHARE = 0.23  # of each package's functions, the most that is held out
PADDING = 0  # the one token id that means the same in every draw


@dataclass(frozen=True)
class Task:
    """`ids` (rows, sequence) and `labels` (rows,), both int64, to train on; `held_ids` and `held_labels` of other files;
    `weights`, the seed of the model's initial weights."""

    ids: torch.Tensor
    labels: torch.Tensor
    held_ids: torch.Tensor
    held_labels: torch.Tensor
    weights: int


def fresh_model(weights: int) -> nn.Module:
    """The classifier to train, DistilBERT of two blocks without dropout: 0.6 million parameters, float32."""
    sizes = {"vocab_size": VOCABULARY, "dim": 64, "hidden_dim": 256, "n_layers": 2, "n_heads": 4}
    without = dict.fromkeys(("dropout", "attention_dropout", "seq_classif_dropout"), 0.0)
    fixed = {**sizes, **without, "max_position_embeddings": SEQUENCE}
    return models.build("distilbert", labels=len(PACKAGES), seed=weights, **fixed)


def draw(source: random.Random) -> Task:
    """A task from a random source: of every package's functions up to `HELD_SHARE`, by whole files, are held out."""
    ids, labels, files = _corpus()
    held_files = _choose_files(source, labels, files)
    is_held = [file in held_files for file in files]
    train_rows = source.sample([row for row, held_rows in enumerate(is_held) if not held_rows], ROWS)
    held_rows = source.sample([row for row, held_rows in enumerate(is_held) if held_rows], HELD_ROWS)
    tokens = torch.tensor([PADDING, *source.sample(range(1, VOCABULARY), VOCABULARY - 1)])
    names = torch.tensor(source.sample(range(len(PACKAGES)), len(PACKAGES)))
    weights = source.getrandbits(31)
    ids, labels = tokens[ids], names[labels]
    return Task(ids[train_rows], labels[train_rows], ids[held_rows], labels[held_rows], weights)


@torch.no_grad()
def accuracy(model: nn.Module, ids: torch.Tensor, labels: torch.Tensor) -> float:
    """The share of rows, 0 to 1, that the model in evaluation mode puts into the right package."""
    model.eval()
    logits = model(input_ids=ids, attention_mask=(ids != PADDING).long()).logits
    return (logits.argmax(-1) == labels).double().mean().item()


def _choose_files(source: random.Random, labels: torch.Tensor, files: list[str]) -> set[str]:
    """Files of each package in random order, as long as they keep within `HELD_SHARE` of its functions."""
    sizes: dict[int, dict[str, int]] = {label: {} for label in range(len(PACKAGES))}
    for label, file in zip(labels.tolist(), files, strict=True):
        sizes[label][file] = sizes[label].get(file, 0) + 1
    held_files: set[str] = set()
    for of_package in sizes.values():
        room = HELD_SHARE * sum(of_package.values())
        for file in source.sample(sorted(of_package), len(of_package)):
            if of_package[file] <= room:
                held_files.add(file)
                room -= of_package[file]
    return held_files


@cache
def _corpus() -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    """Token ids and labels of all functions of `PACKAGES`, and the files they stand in."""
    from course_utils import data

    corpus = data.load_functions()
    tokenizer, names = data.tokenizer_for(corpus, VOCABULARY), corpus["train"].features["label"].names
    rows = [row for split in corpus.values() for row in split if names[row["label"]] in PACKAGES]
    fixed = {"max_length": SEQUENCE, "truncation": True, "padding": "max_length"}
    ids = torch.tensor(tokenizer([row["text"] for row in rows], **fixed)["input_ids"])
    labels = torch.tensor([PACKAGES.index(names[row["label"]]) for row in rows])
    return ids, labels, [row["file"] for row in rows]
