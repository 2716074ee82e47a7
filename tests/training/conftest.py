"""A small task with dropout, ragged last batch and padding; nothing is read from disk."""

import pytest
import torch
from datasets import Dataset

from course_utils import data, models, optim, training

ROWS, BATCH, SEQUENCE, LABELS = 37, 8, 16, 3


@pytest.fixture(scope="session")
def split():
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 900, (ROWS, SEQUENCE), generator=generator)
    lengths = torch.randint(4, SEQUENCE + 1, (ROWS, 1), generator=generator)
    mask = (torch.arange(SEQUENCE) < lengths).long()
    labels = torch.randint(0, LABELS, (ROWS,), generator=generator)
    return Dataset.from_dict(
        {"input_ids": (ids * mask).tolist(), "attention_mask": mask.tolist(), "labels": labels.tolist()}
    )


@pytest.fixture
def batches(split):
    return data.batches(split, BATCH, seed=0)


@pytest.fixture
def model_and_optimizer():
    """A function that returns model and optimizer, the same at every call."""

    def build(make_optimizer=optim.AdamW):
        model = models.build("distilbert", labels=LABELS)
        return model, make_optimizer(optim.decay_groups(model, 0.01), lr=1e-3)

    return build


@pytest.fixture
def scheduled(model_and_optimizer):
    """As `model_and_optimizer`, with a schedule that warms up and decays."""

    def build(make_optimizer=optim.AdamW):
        model, optimizer = model_and_optimizer(make_optimizer)
        return model, optimizer, training.linear_decay(optimizer, 12, warmup=3)

    return build


@pytest.fixture
def train(model_and_optimizer, batches):
    """A function that trains a model of `build`; returns model and history."""

    def train_with(*callbacks, build=model_and_optimizer, loader=batches, **options):
        model, optimizer, *schedule = build()
        if schedule:
            options["schedule"] = schedule[0]
        history = training.train(model, optimizer, loader, callbacks=callbacks, **{"progress": False, **options})
        return model, history

    return train_with
