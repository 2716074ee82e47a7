"""Chapter 11b: a small classifier that is fine-tuned in every way, the runs that are stored, and the chapter's figures."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, partial
from math import inf
from pathlib import Path

import pandas as pd
import torch
from datasets import Dataset
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from torch import Tensor, nn

from course_utils import data, memory, models, optim
from course_utils.lessons.c05b_choosing import Contender
from course_utils.memory.plan import CHANGES
from course_utils.memory.workload import Workload
from course_utils.optim import schedules
from course_utils.optim.galore import APOLLO, GaLore
from course_utils.optim.low_bit import AdamW4bit, AdamW16bit
from course_utils.settings import Scale, settings
from course_utils.techniques import distillation_loss
from course_utils.techniques.lora import adapt
from course_utils.training import evaluate
from course_utils.units import format_bytes, format_seconds
from course_utils.viz.memory import legend_of_kinds, stack
from course_utils.viz.parts import byte_unit, second_unit, subplots
from course_utils.viz.style import COLORS, writing

# A small classifier, and its fine-tuning.

RATE = {"sgd": 1.0, "adafactor": 3e-2}
"""Of fine-tuning, by optimizer; AdamW's, and adapters', below."""
ADAMW_RATE, ADAPTER_RATE = 2e-3, 1e-2


@cache
def functions(scale: Scale, second: bool, split: str = "train") -> Dataset:
    """Functions of the first five packages or of the `second` five, as tokens with the package's number."""
    every = data.load_functions()
    half = every[split].features["label"].num_classes // 2
    chosen = [place for place, label in enumerate(every[split]["label"]) if (label >= half) == second]
    tokens = data.tokenize(every, data.tokenizer_for(every, scale.vocabulary), scale.sequence)[split]
    return tokens.select(chosen[: scale.eval_rows])


def classifier(scale: Scale) -> nn.Module:
    """A DistilBERT that tells the ten packages, without dropout, so that runs differ by what is done alone."""
    off = {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
    return models.build("distilbert", labels=10, scale=scale, **off).to(settings().device)


def begun(scale: Scale) -> nn.Module:
    """A classifier after one epoch on the first five packages: what a download would be elsewhere."""
    model, batches = classifier(scale), data.batches(functions(scale, second=False), 16, seed=settings().seed)
    Contender(lambda net, lr: optim.AdamW(net.parameters(), lr=lr), 2e-3).train(model, batches, settings().seed)
    return model


def held_out(model: nn.Module, scale: Scale) -> float:
    """The mean loss on held-out functions of the second five packages."""
    return evaluate(model, data.batches(functions(scale, second=True, split="test"), 64))["loss"]


@dataclass(frozen=True)
class Tried:
    """A recipe on a model: bytes at the peak of a step, as predicted and as measured, seconds of an update, and the held-out loss
    after an epoch."""

    predicted: int
    peak: int
    seconds: float
    loss: float


def tried(model: nn.Module, recipe: memory.Recipe, scale: Scale) -> Tried:
    """Fine-tune a copy of `model` for one epoch by `recipe`, after its step was predicted and measured."""

    def make() -> nn.Module:
        return deepcopy(model).to(torch.get_default_dtype())

    work, device = Workload(make, recipe), settings().device
    predicted, peak = memory.estimate(make, recipe).peak, memory.measure(work.build, work.step, timed=0).peak
    copied, optimizer, _ = work.build()
    for group in optimizer.param_groups:
        group["lr"] = ADAPTER_RATE if recipe.lora else RATE.get(recipe.optimizer, ADAMW_RATE)
    batches = data.batches(functions(scale, second=True), recipe.batch, seed=settings().seed)
    parts, started = [{k: t.to(device) for k, t in batch.items()} for batch in batches], time.perf_counter()
    for first in range(0, len(parts), recipe.accumulation):
        work.step(copied, optimizer, parts[first : first + recipe.accumulation])
    loss = held_out(copied.float(), scale)
    return Tried(predicted, peak, (time.perf_counter() - started) / len(parts) * recipe.accumulation, loss)


def rungs(recipe: memory.Recipe) -> dict[str, memory.Recipe]:
    """Each single change of `course plan`'s ladder that makes a difference to `recipe`, by name."""
    found = {change.name: change.apply(recipe) for change in CHANGES}
    return {name: replace(recipe, **fields) for name, fields in found.items() if fields}


# Adapters.

LINEAR = ("q_lin", "k_lin", "v_lin", "out_lin", "lin1", "lin2")


def with_adapters(model: nn.Module, rank: int, names: Sequence[str] = LINEAR, first: int = 0) -> nn.Module:
    """A copy with adapters in the blocks from number `first` on, all else frozen."""
    copied = deepcopy(model).requires_grad_(False)
    for block in copied.distilbert.transformer.layer[first:]:
        adapt(block, rank, 2 * rank, names)
    return copied


def measured(model: nn.Module, batch: Mapping[str, Tensor], timed: int = 3) -> memory.Measurement:
    """A step of AdamW on those parameters that are trained."""

    def build():
        copied = deepcopy(model)
        trained = [p for p in copied.parameters() if p.requires_grad]
        return copied, torch.optim.AdamW(trained, lr=1e-3, foreach=False)

    def step(copied, optimizer):
        copied(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return memory.measure(build, step, timed=timed)


# Optimizers with a smaller state, on chapter 05b's task.

RUNS = Path(__file__).with_name("c11b_runs.json")
SWEEP_SEEDS, RACE_SEEDS = (10, 11), (0, 1, 2, 3, 4)
INTERVAL, REST = 25, 2e-3
"""Steps between two projections, in a run of 91 steps; the rate of all parameters that are no hidden matrices."""


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
    adapt(model, rank, rank, (*LINEAR, "pre_classifier"))
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

    "as 8 bits" is the largest rank with no more bytes of state than AdamW's with 8 bits. LoRA's rank is the largest with which
    parameters, gradients and state have no more bytes than with that GaLore.
    """
    width = min(map(min, shapes))

    def galore(rank):
        return sum(GaLore.state_bytes(shape, rank=rank) for shape in shapes)

    eight = sum(optim.AdamW8bit.state_bytes(shape) for shape in shapes)

    def lora(rank):  # its parameters, gradients and state
        return largest_rank(
            lambda r: 16 * r * sum(map(sum, shapes)) <= galore(rank) + 4 * sum(a * b for a, b in shapes)
        )

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
        "GaLore, as 8 bits": _of(GaLore, 1e-2, rank=largest_rank(lambda rank: galore(rank) <= eight), **narrow),
        "APOLLO, a quarter": _of(APOLLO, 5e-3, rank=width // 4, **narrow),
        "APOLLO, rank 1": _of(APOLLO, 5e-3, rank=1, scale=128**0.5, **narrow),
    }
    rank = lora(width // 4)
    state = partial(lambda r, shapes: 8 * r * sum(map(sum, shapes)), rank)
    found["LoRA, as GaLore, a quarter"] = LowState(Contender(partial(_adapters, rank), 1e-2), state)
    return found


# Language models that learn from another.

WORDS, LENGTH = 1_000, 64
TEACHER_SEED = 99


@cache
def rows(split: str) -> Tensor:
    """All functions one after the other, cut into rows of `LENGTH` tokens out of `WORDS`, int64."""
    every = data.load_functions()
    found = data.tokenizer_for(every, WORDS)(list(every[split]["text"]))["input_ids"]
    tokens = [token for ids in found for token in ids]
    count = len(tokens) // LENGTH
    return torch.tensor(tokens[: count * LENGTH]).view(count, LENGTH)


def language_model(width: int, layers: int, seed: int) -> nn.Module:
    """A Llama with heads of 32 numbers."""
    sizes = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers, "vocab_size": WORDS}
    sizes |= {"num_attention_heads": width // 32, "num_key_value_heads": width // 32}
    return models.build("llama", scale=settings().scale, seed=seed, **sizes).to(settings().device)


def fit(
    model: nn.Module, seed: int, epochs: int = 1, most: int | None = None, loss: Callable | None = None
) -> nn.Module:
    """Train by AdamW with warm-up and cosine, on `most` rows of each epoch; `loss(model, ids)` or the model's own."""
    device, generator, train = next(model.parameters()).device, torch.Generator().manual_seed(seed), rows("train")
    orders = [train[torch.randperm(len(train), generator=generator)][:most] for _ in range(epochs)]
    batches = [part for order in orders for part in order.to(device).split(16)]
    optimizer, steps = torch.optim.AdamW(model.parameters(), lr=1e-2), len(batches)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: schedules.cosine(done + 1, steps + 1, warmup=steps // 10)
    )
    for ids in batches:
        (model(input_ids=ids, labels=ids).loss if loss is None else loss(model, ids)).backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return model


@torch.no_grad()
def told(model: nn.Module, most: int | None = None) -> float:
    """The loss on held-out functions, in nats a token."""
    parts = rows("test")[:most].to(next(model.parameters()).device).split(64)
    return sum(model(input_ids=ids, labels=ids).loss.item() * len(ids) for ids in parts) / sum(map(len, parts))


def from_teacher(teacher: nn.Module, temperature: float, weight: float = 0.5) -> Callable[[nn.Module, Tensor], Tensor]:
    """The loss of a student beside a teacher, whose forward pass makes no graph. A place's logits are of the next token."""

    def loss(student: nn.Module, ids: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = teacher(input_ids=ids).logits[:, :-1]
        return distillation_loss(student(input_ids=ids).logits[:, :-1], wanted, ids[:, 1:], temperature, weight)

    return loss


def teacher(most: int | None = None) -> nn.Module:
    """Twice as wide and deep as a student, and twice as long at school."""
    return fit(language_model(128, 2, TEACHER_SEED), TEACHER_SEED, epochs=2, most=most)


def student(seed: int, taught: Callable | None = None, epochs: int = 1, most: int | None = None) -> nn.Module:
    """With the loss `taught`, or alone."""
    return fit(language_model(64, 1, seed), seed, epochs, most, taught)


@cache
def stored() -> pd.DataFrame:
    """Runs at laptop scale, a row each: `name`, `lr` (none for students and their teacher), `seed`, `loss` (training, mean of the last 20 steps),
    `test` (held-out)."""
    return pd.DataFrame(json.loads(RUNS.read_text(encoding="utf-8")))
