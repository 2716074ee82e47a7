"""Chapter 11b: the optimizers, students and techniques that are compared, the runs that are stored, and the chapter's figures."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader

from course_utils import data, models, optim
from course_utils.lessons.c05b_choosing import Contender
from course_utils.optim.galore import APOLLO, GaLore
from course_utils.optim.low_bit import AdamW4bit, AdamW16bit
from course_utils.settings import Scale
from course_utils.techniques import distillation_loss
from course_utils.techniques.lora import adapt

RUNS = Path(__file__).with_name("c11b_runs.json")
SWEEP_SEEDS, RACE_SEEDS = (10, 11), (0, 1, 2, 3, 4)
INTERVAL, REST = 25, 2e-3
"""Steps between two projections, in a run of 91 steps; the rate of all parameters that are no hidden matrices."""
LINEAR = ("q_lin", "k_lin", "v_lin", "out_lin", "lin1", "lin2", "pre_classifier")


@dataclass(frozen=True)
class LowState:
    """An optimizer of the hidden matrices beside AdamW for the rest: `contender` trains a model, `state` counts the bytes that
    it keeps for tensors of these shapes."""

    contender: Contender
    state: Callable[[Sequence[tuple[int, ...]]], int]


def hidden_shapes(model: nn.Module) -> list[tuple[int, ...]]:
    """Of the matrices that the comparison is about."""
    return [tuple(p.shape) for p in optim.hidden_matrices(model)[0]]


def _optimizer(kind: type, options: dict, model: nn.Module, lr: float) -> torch.optim.Optimizer:
    hidden, others = optim.hidden_matrices(model)
    rest = optim.AdamW(others, lr=REST, weight_decay=0.0)
    return optim.ChainedOptimizer(kind(hidden, lr=lr, weight_decay=0.0, **options), rest)


def _of(kind: type, lr: float, **options) -> LowState:
    rank = {"rank": options["rank"]} if "rank" in options else {}
    return LowState(
        Contender(partial(_optimizer, kind, options), lr),
        lambda shapes: sum(kind.state_bytes(shape, **rank) for shape in shapes),
    )


def _adapters(rank: int, model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """Adapters in place of the hidden matrices, which stay as they began; all other parameters are trained as ever."""
    others = optim.hidden_matrices(model)[1]
    adapt(model, rank, rank, LINEAR)
    pairs = [p for name, p in model.named_parameters() if name.endswith((".a", ".b"))]
    for parameter in others:
        parameter.requires_grad_(True)
    rest = optim.AdamW(others, lr=REST, weight_decay=0.0)
    return optim.ChainedOptimizer(optim.AdamW(pairs, lr=lr, weight_decay=0.0), rest)


def largest_rank(fits: Callable[[int], bool]) -> int:
    """The largest rank that fits."""
    return next(rank for rank in range(4096, 0, -1) if fits(rank))


def low_states(shapes: Sequence[tuple[int, ...]]) -> dict[str, LowState]:
    """By name, for hidden matrices of `shapes`; each has its own rate, the best of `RUNS`' sweep.

    "as 16 bits" and "as 8 bits": the largest rank with no more bytes of state than AdamW's with averages of so many bits. LoRA's
    rank is the largest with which parameters, gradients and state have no more bytes than with that GaLore.
    """
    width = min(map(min, shapes))

    def galore(rank):
        return sum(GaLore.state_bytes(shape, rank=rank) for shape in shapes)

    def as_few_as(kind):
        return largest_rank(lambda rank: galore(rank) <= sum(kind.state_bytes(shape) for shape in shapes))

    def lora(rank):  # its parameters, gradients and state
        return largest_rank(lambda r: 16 * r * sum(map(sum, shapes)) <= galore(rank) + 4 * sum(a * b for a, b in shapes))

    narrow = {"interval": INTERVAL}
    found = {
        "SGD": _of(optim.SGD, 1.0),
        "AdamW": _of(optim.AdamW, 2e-3),
        "AdamW, 16 bits": _of(AdamW16bit, 2e-3),
        "AdamW, 16 bits, to nearest": _of(AdamW16bit, 2e-3, stochastic=False),
        "AdamW, 8 bits": _of(optim.AdamW8bit, 2e-3),
        "AdamW, 4 bits": _of(AdamW4bit, 2e-3),
        "GaLore, a half": _of(GaLore, 1e-2, rank=width // 2, **narrow),
        "GaLore, a quarter": _of(GaLore, 1e-2, rank=width // 4, **narrow),
        "GaLore, as 16 bits": _of(GaLore, 1e-2, rank=as_few_as(AdamW16bit), **narrow),
        "GaLore, as 8 bits": _of(GaLore, 1e-2, rank=as_few_as(optim.AdamW8bit), **narrow),
        "APOLLO, a quarter": _of(APOLLO, 5e-3, rank=width // 4, **narrow),
        "APOLLO, rank 1": _of(APOLLO, 5e-3, rank=1, scale=128**0.5, **narrow),
    }
    for name in ("a half", "a quarter"):
        rank = lora(width // (2 if name == "a half" else 4))
        state = partial(lambda r, shapes: 8 * r * sum(map(sum, shapes)), rank)
        found[f"LoRA, as GaLore, {name}"] = LowState(Contender(partial(_adapters, rank), 2e-3), state)
    return found


@dataclass(frozen=True)
class Student:
    """A small model: `epochs` over the training functions, from a teacher with `weight` of the soft loss at `temperature`."""

    epochs: int = 1
    temperature: float = 2.0
    weight: float = 0.0


STUDENTS = {
    "alone": Student(),
    "alone, two epochs": Student(epochs=2),
    "taught, T = 1": Student(temperature=1.0, weight=0.5),
    "taught, T = 2": Student(temperature=2.0, weight=0.5),
    "taught, T = 4": Student(temperature=4.0, weight=0.5),
}


class Taught(nn.Module):
    """A student whose loss has a teacher's logits in it; the teacher makes no graph and is not trained."""

    def __init__(self, student: nn.Module, teacher: nn.Module, temperature: float, weight: float):
        super().__init__()
        self.student, self.settings = student, (temperature, weight)
        self.teachers = [teacher.eval()]  # in a list, it is none of the parameters

    def forward(self, labels=None, **inputs):
        """The student's outputs, with the joint loss."""
        out = self.student(**inputs, labels=labels)
        with torch.no_grad():
            wanted = self.teachers[0](**inputs).logits
        out.loss = distillation_loss(out.logits, wanted, labels, *self.settings)
        return out


@cache
def stored() -> pd.DataFrame:
    """Runs at laptop scale, a row each: `name`, `lr` (none for students), `seed`, `loss` (training, mean of the last 20 steps),
    `test` (held-out), and for students `right`, the share of held-out functions that are told right."""
    return pd.DataFrame(json.loads(RUNS.read_text(encoding="utf-8")))
