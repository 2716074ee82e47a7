"""Chapter 05: what is lost of v, and what helps, with seeds of their own, at the scale that the chapter is stored at."""

from functools import cache

import torch

from benchmarks.claims import claim
from course_utils import data, models, optim, training
from course_utils.lessons import c05_8bit_adam as lesson
from course_utils.settings import SCALES

SCALE = SCALES["laptop"]


@cache
def _task() -> tuple:
    functions = data.load_functions()
    rows = data.tokenize(functions, data.tokenizer_for(functions, SCALE.vocabulary), SCALE.sequence)["train"]
    return rows.select(range(20 * SCALE.batch_size)), functions["train"].features["label"].num_classes


def _train(kind, seed: int, epochs: int = 1) -> tuple:
    """The model and its run; the seed decides the weights, the order of the texts and the dropout."""
    rows, labels = _task()
    model = models.build("distilbert", labels=labels, scale=SCALE, seed=seed)
    optimizer = kind(optim.decay_groups(model, 0.01), lr=1e-3)
    batches = data.batches(rows, SCALE.batch_size, seed=seed)
    return model, training.train(model, optimizer, batches, epochs=epochs, seed=seed, progress=False)


@claim("05-vanish")
def fewer_than_half_vanish_in_blocks_of_one_row(seed):
    """Less than a thousandth of all, most of them in the word embeddings; most are back in blocks shifted by half a row."""
    model, history = _train(optim.AdamW, seed)
    v = {n: history.optimizer.state[p]["exp_avg_sq"] for n, p in model.named_parameters() if p.numel() >= 4096}
    vanished = {name: lesson.count_vanished(values) for name, values in v.items()}
    in_rows = sum(lesson.count_vanished(values, SCALE.width) for values in v.values())
    shifted = sum(lesson.count_vanished(values.flatten().roll(SCALE.width // 2), SCALE.width) for values in v.values())
    is_mostly_there = vanished["distilbert.embeddings.word_embeddings.weight"] > sum(
        vanished.values()
    ) / 2 and 2 * shifted > sum(vanished.values())
    return is_mostly_there and 2 * in_rows < sum(vanished.values()) < 0.001 * sum(
        values.numel() for values in v.values()
    )


@claim("05-linear-lost")
def about_seven_percent_vanish_in_the_linear_book(seed):
    """Of the v of a model that AdamW trained."""
    model, history = _train(optim.AdamW, seed)
    v = [history.optimizer.state[p]["exp_avg_sq"].flatten() for p in model.parameters() if p.numel() >= 4096]
    errors = torch.cat([lesson.rounding_errors(values, lesson.LinearBook.codebook, 256) for values in v])
    return 0.05 < (errors == 1).float().mean().item() < 0.09


@claim("05-zero")
def the_linear_book_trains_without_its_zero(seed):
    """It is the zero that spoils the run: all other entries are left as they are."""
    loss = {
        kind: _train(kind, seed)[1].frame()["loss"][-3:].mean()
        for kind in (optim.AdamW8bit, lesson.LinearBook, lesson.LinearWithoutZero)
    }
    right, broken, cured = loss.values()
    return broken > 5 * right and abs(cured - right) < 0.2


@claim("05-linear-equal")
def the_linear_book_without_zero_ends_as_32_bits(seed):
    """After three epochs, by the mean of the last ten losses."""
    histories = [_train(kind, seed, epochs=3)[1] for kind in (optim.AdamW, lesson.LinearWithoutZero)]
    ends = [sum(history.losses[-10:]) / 10 for history in histories]
    return ends[1] < ends[0] + 0.15


def _distance(seed: int, kind=optim.AdamW8bit, **options) -> float:
    return lesson.distance_from_adamw(kind, 4, seed, **options)[0]


@claim("05-dynamic-zero")
def zeros_of_the_dynamic_book_throw_parameters(seed):
    return _distance(seed) > 10 * _distance(seed, lesson.DynamicWithoutZero)


@claim("05-ways")
def smaller_blocks_help_too_little_and_a_larger_epsilon_moves_adamw_too(seed):
    """32 bits for that tensor are right."""
    blocks = 1 < _distance(seed, block_size=16) < _distance(seed)
    epsilon = (
        _distance(seed, eps=1e-6) > 1 and 0.05 < _distance(seed, optim.AdamW, eps=1e-4) < _distance(seed, eps=1e-4) < 1
    )
    return blocks and epsilon and _distance(seed, min_8bit_size=10_000) < 1e-4
