"""Chapter 11b: a small classifier that is fine-tuned by every method, a race of small states, and the runs that are stored."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import pandas as pd
import torch
from datasets import Dataset
from torch import Tensor, nn

from course_utils import data, memory, models, optim
from course_utils.errors import CourseError
from course_utils.lessons.shared import Contender, read_runs
from course_utils.memory.planning.changes import CHANGES
from course_utils.memory.step.quantized import put_in_4_bits
from course_utils.memory.step.workload import Workload
from course_utils.optim import schedules
from course_utils.optim.galore import APOLLO, GaLore
from course_utils.optim.low_bit import AdamW4bit, AdamW16bit
from course_utils.optim.quantization import nearest
from course_utils.settings import Scale, settings
from course_utils.techniques.lora import LoRA, adapt
from course_utils.techniques.nf4 import NF4
from course_utils.training import evaluate
from course_utils.training.gradients import relative_error
from course_utils.units import format_bytes

# A small classifier, and its fine-tuning.

TUNING_FILE = Path(__file__).with_name("c11b_tuned_runs.json")
BASELINE = "as it is"
"""AdamW in float32 on all weights, which every other method is compared with."""


@cache
def tokenized_functions(scale: Scale, split: str) -> Dataset:
    """Functions as tokens with the package's number: the "first" or "second" half of the training split, or the "test" split."""
    corpus = data.load_functions()
    tokens = data.tokenize(corpus, data.tokenizer_for(corpus, scale.vocabulary), scale.sequence)
    if split == "test":
        return tokens["test"].select(range(min(scale.eval_rows, len(tokens["test"]))))
    places = range(split == "second", len(tokens["train"]), 2)
    return tokens["train"].select(places[: scale.train_rows // 2])


def build_classifier(scale: Scale, seed: int | None = None) -> nn.Module:
    """A DistilBERT that tells the ten packages, without dropout, so that runs differ by what is done alone."""
    off = {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
    return models.build("distilbert", labels=10, scale=scale, seed=seed, **off).to(settings().device)


def pretrain(scale: Scale, seed: int | None = None) -> nn.Module:
    """A classifier after an epoch on the first half of the functions: what a download would be elsewhere. `seed` decides weights
    and order, by default the settings'."""
    seed = settings().seed if seed is None else seed
    model = build_classifier(scale, seed)
    batches = data.batches(tokenized_functions(scale, "first"), 16, seed=seed)
    Contender(lambda net, lr: optim.AdamW(net.parameters(), lr=lr), 2e-3).train(model, batches, seed)
    return model


def held_out_loss(model: nn.Module, scale: Scale) -> float:
    """The mean loss on functions of the test split."""
    return evaluate(model, data.batches(tokenized_functions(scale, "test"), 64))["loss"]


@dataclass(frozen=True)
class FineTuning:
    """What an epoch of a model by a recipe took."""

    predicted: int  # bytes at the peak of a step
    peak: int  # the same, measured
    seconds: float
    loss: float  # held-out, at the end


def fine_tune_and_measure(model: nn.Module, recipe: memory.Recipe, scale: Scale, name: str = "") -> FineTuning:
    """Fine-tune a copy of `model` for one epoch by `recipe`, after its step was predicted and measured, at the best rate of the
    method called `name`."""
    predicted = memory.estimate(_copier_of(model), recipe).peak
    work = _workload(model, recipe)
    peak = memory.measure(work.build, work.step, timed=0).peak
    start = time.perf_counter()
    tuned = fine_tune(model, recipe, scale, best_rate(name))
    return FineTuning(predicted, peak, time.perf_counter() - start, held_out_loss(tuned, scale))


def fine_tune(model: nn.Module, recipe: memory.Recipe, scale: Scale, rate: float, seed: int | None = None) -> nn.Module:
    """A copy of `model` after one epoch on the second half of the functions, in float32. `seed` decides order and adapters."""
    seed = settings().seed if seed is None else seed
    torch.manual_seed(seed)
    work = _workload(model, recipe)
    device = settings().device
    tuned, optimizer, _ = work.build()
    loader = data.batches(tokenized_functions(scale, "second"), recipe.batch, seed)
    batches = [{name: tensor.to(device) for name, tensor in batch.items()} for batch in loader]
    updates = -(-len(batches) // recipe.accumulation)
    for number in range(updates):
        for group in optimizer.param_groups:
            group["lr"] = rate * schedules.cosine(number + 1, updates + 1, warmup=updates // 10)
        work.step(tuned, optimizer, batches[number * recipe.accumulation :][: recipe.accumulation])
    next(tuned.parameters()).sum().item()  # a GPU is done only when its numbers are there
    return tuned.float()


def _copier_of(model: nn.Module) -> Callable[[], nn.Module]:
    return lambda: deepcopy(model).to(torch.get_default_dtype())


def _workload(model: nn.Module, recipe: memory.Recipe) -> Workload:
    if recipe.optimizer == "adamw4bit":  # of which the planner knows the bytes alone, since torchao may be missing
        recipe = replace(recipe, optimizer=AdamW4bit)
    return Workload(_copier_of(model), recipe)


CHAPTER_METHODS = (
    "half the batch",
    "half the width",
    "4-bit AdamW",
    "GaLore, a quarter",
    "LoRA of rank 16",
    "QLoRA of rank 16",
    "LoRA on q k v o",
    "LoRA on q v",
)
"""The methods that are this chapter's; the others have rows in theirs."""


def build_methods(model: nn.Module, recipe: memory.Recipe, scale: Scale) -> dict[str, tuple[nn.Module, memory.Recipe]]:
    """A model and a recipe by name: two first resorts, the rungs of the ladder, and adapters on fewer layers."""
    narrow = pretrain(replace(scale, width=scale.width // 2))
    plain = {"half the batch": (model, replace(recipe, batch=recipe.batch // 2)), "half the width": (narrow, recipe)}
    recipes = recipes_by_rung(model, recipe)
    for place in ("q k v o", "q v"):
        recipes[f"LoRA on {place}"] = replace(recipe, lora=16, lora_targets=ADAPTER_PLACES[place])
    return plain | {name: (model, variant) for name, variant in recipes.items()}


def fine_tuning_runs() -> pd.DataFrame:
    """Fine-tuning at laptop scale, a row each: `name`, `lr`, `seed`, `test` (held-out loss), each method at three rates and three
    seeds; "start" has no rate. `python -m benchmarks.fewer_bits` made them."""
    return read_runs(TUNING_FILE)


def best_rate(name: str) -> float:
    """The rate with the lowest mean loss in `fine_tuning_runs`; a method that is not there has AdamW's."""
    runs = fine_tuning_runs()
    return runs[runs["name"] == (name if name in set(runs["name"]) else BASELINE)].groupby("lr")["test"].mean().idxmin()


def tuning_differences() -> dict[str, list[float]]:
    """The held-out loss of each method at its best rate, minus that of `BASELINE` by seed; "start" is before tuning."""
    ends = {}
    for name, runs in fine_tuning_runs().groupby("name", sort=False):
        best = runs if name == "start" else runs[runs["lr"] == best_rate(name)]
        ends[name] = best.set_index("seed")["test"]
    return {name: (losses - ends[BASELINE]).tolist() for name, losses in ends.items()}


def recipes_by_rung(model: nn.Module, recipe: memory.Recipe) -> dict[str, memory.Recipe]:
    """Each single change of `course plan`'s ladder that makes a difference to `recipe` and goes with `model`, by name.

    GaLore's rank is a quarter of the model's width.
    """
    recipes = {}
    for change in CHANGES:
        fields = change.apply(recipe)
        if "galore" in fields:
            fields = {"galore": model.config.dim // 4}
        if fields:
            with suppress(CourseError):  # the two do not go together
                variant = replace(recipe, **fields)
                Workload(model, variant).build()
                recipes["GaLore, a quarter" if "galore" in fields else change.name] = variant
    return recipes


# Adapters.

LINEAR_LAYERS = ("q_lin", "k_lin", "v_lin", "out_lin", "lin1", "lin2")
ADAPTER_PLACES = {"all-linear": LINEAR_LAYERS, "q k v o": LINEAR_LAYERS[:4], "q v": ("q_lin", "v_lin")}
"""Where adapters sit, as `Recipe.lora_targets` says it."""


@dataclass(frozen=True)
class Placement:
    """A step with adapters in some places, in bytes."""

    trainable: int  # numbers, not bytes
    saved: int  # for backward
    temporary: int  # temporaries of backward at the peak
    predicted: int  # peak
    measured: int  # peak


def measure_placement(model: nn.Module, recipe: memory.Recipe) -> Placement:
    """The step of `model` by `recipe`, predicted and measured."""
    work = _workload(model, recipe)
    predicted = memory.estimate(_copier_of(model), recipe).peak
    adapted, _, (batch,) = work.build()
    trainable = sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    saved = memory.saved_bytes(lambda: adapted(**batch).loss, adapted)
    seen = memory.measure(work.build, work.step, timed=0)
    return Placement(trainable, saved, seen.split.get("backward temporaries", 0), predicted, seen.peak)


def table_of_places(steps: Mapping[tuple[int, str], Placement]) -> pd.DataFrame:
    """A row for each step, by rows of the batch and place of the adapters."""
    rows = {}
    for key, step in steps.items():
        sizes = map(format_bytes, (step.saved, step.temporary, step.predicted, step.measured))
        rows[key] = [f"{step.trainable:,}", *sizes]
    names = ["trained", "saved for backward", "temporary", "peak, planned", "measured"]
    return pd.DataFrame(rows, names).T.rename_axis(["rows", "adapters on"])


def add_adapters(model: nn.Module, rank: int, names: Sequence[str] = LINEAR_LAYERS, first: int = 0) -> nn.Module:
    """A copy with adapters in the blocks from number `first` on, all else frozen."""
    adapted = deepcopy(model).requires_grad_(False)
    for block in adapted.distilbert.transformer.layer[first:]:
        adapt(block, rank, 2 * rank, names)
    return adapted


def quantize_to_4_bits(model: nn.Module) -> nn.Module:
    """A copy whose blocks have bitsandbytes' linear layers with weights in NF4."""
    quantized = deepcopy(model)
    put_in_4_bits(quantized.distilbert.transformer)
    quantized.is_loaded_in_4bit = True
    return quantized


def measure_step(model: nn.Module, batch: Mapping[str, Tensor], timed: int = 3) -> memory.Measurement:
    """A step of AdamW on those parameters that are trained."""

    def build():
        network = deepcopy(model)
        trainable = [p for p in network.parameters() if p.requires_grad]
        return network, torch.optim.AdamW(trainable, lr=1e-3, foreach=False)

    def step(network: nn.Module, optimizer: torch.optim.Optimizer):
        network(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return memory.measure(build, step, timed=timed)


def randomize_adapters(ours: nn.Module, theirs: nn.Module) -> None:
    """Draws a random B for all adapters of `ours`, and gives peft's in `theirs` the same A and B."""
    import peft

    adapters = [module for module in ours.modules() if isinstance(module, LoRA)]
    peft_layers = [module for module in theirs.modules() if isinstance(module, peft.tuners.lora.Linear)]
    for adapter, peft_layer in zip(adapters, peft_layers, strict=True):
        nn.init.normal_(adapter.b, std=0.02)
        peft_layer.lora_A["default"].weight.data.copy_(adapter.a.detach())
        peft_layer.lora_B["default"].weight.data.copy_(adapter.b.detach())


def round_to_equal_steps(weight: Tensor) -> Tensor:
    """Each block of 64 rounded to 16 numbers of equal distance, from minus to plus its largest absolute value."""
    blocks = weight.reshape(-1, 64)
    numbers = torch.linspace(-1, 1, 16)
    scales = blocks.abs().amax(1, keepdim=True)
    return (numbers[nearest(blocks / scales, numbers).int()] * scales).view(weight.shape)


def merge_adapters(model: nn.Module, adapted: nn.Module) -> tuple[float, float, dict[str, nn.Module]]:
    """Adapters of peft, trained beside NF4 weights and merged in three ways: by norms, how large they are beside the weights
    and how far off after rounding again; and the models, one more without adapters. `model` has the weights before rounding."""
    import bitsandbytes
    import peft

    merged, sizes, errors = {}, [], []
    for name, layer in adapted.base_model.model.named_modules():
        if not isinstance(layer, peft.tuners.lora.LoraLayer):
            continue
        base = layer.get_base_layer().weight
        change = layer.get_delta_weight("default").detach()
        is_narrow = isinstance(base, bitsandbytes.nn.Params4bit)
        wide = bitsandbytes.functional.dequantize_4bit(base, base.quant_state).float() if is_narrow else base.detach()
        rounded = NF4.from_weight((wide + change).cpu()).dequantize().to(wide.device) if is_narrow else wide + change
        weights = {
            "merged, in 32 bits": wide + change,
            "merged into weights never rounded": model.get_submodule(name).weight.detach() + change,
            "merged, rounded again": rounded,
            "rounded, no adapters": wide,
        }
        merged = merged or {label: deepcopy(model) for label in weights}
        for label, weight in weights.items():
            merged[label].get_submodule(name).weight.data = weight
        sizes.append((change.norm() / wide.norm()).item())
        errors.append(relative_error(rounded - wide, change))
    return sum(sizes) / len(sizes), sum(errors) / len(errors), merged


# Optimizers with a smaller state, on chapter 05b's task.

RACE_FILE = Path(__file__).with_name("c11b_runs.json")
SWEEP_SEEDS = (10, 11)
RACE_SEEDS = (0, 1, 2, 3, 4)
PROJECTION_INTERVAL = 25  # steps between two projections, in a run of 91 steps
OTHERS_LR = 2e-3  # of all parameters that are no hidden matrices


@dataclass(frozen=True)
class LowState:
    """An optimizer of the hidden matrices beside AdamW for the rest."""

    contender: Contender
    state_bytes: Callable[[Sequence[tuple[int, ...]]], int]  # that it keeps for tensors of these shapes


def hidden_shapes(model: nn.Module) -> list[tuple[int, ...]]:
    """Shapes of the hidden matrices, which the comparison is about."""
    return [tuple(p.shape) for p in optim.hidden_matrices(model)[0]]


def _make_low_state(optimizer_cls: type, lr: float, **options) -> LowState:
    def make(model: nn.Module, lr: float) -> torch.optim.Optimizer:
        hidden, others = optim.hidden_matrices(model)
        return _beside_adamw(optimizer_cls(hidden, lr=lr, weight_decay=0.0, **options), others)

    return LowState(
        Contender(make, lr), lambda shapes: sum(optimizer_cls.state_bytes(shape, **options) for shape in shapes)
    )


def _beside_adamw(optimizer: torch.optim.Optimizer, others: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    return optim.ChainedOptimizer(optimizer, optim.AdamW(others, lr=OTHERS_LR, weight_decay=0.0))


def _make_adapter_optimizer(rank: int, model: nn.Module, lr: float) -> torch.optim.Optimizer:
    """Adapters in place of the hidden matrices, which stay as they began; all other parameters are trained as ever."""
    others = optim.hidden_matrices(model)[1]
    adapt(model, rank, rank, (*LINEAR_LAYERS, "pre_classifier"))
    pairs = [p for name, p in model.named_parameters() if name.endswith((".a", ".b"))]
    for parameter in others:
        parameter.requires_grad_(True)
    return _beside_adamw(optim.AdamW(pairs, lr=lr, weight_decay=0.0), others)


def largest_rank(fits: Callable[[int], bool]) -> int:
    """The largest rank that fits."""
    return next(rank for rank in range(4096, 0, -1) if fits(rank))


def low_states(shapes: Sequence[tuple[int, ...]]) -> dict[str, LowState]:
    """The optimizers by name, for hidden matrices of `shapes`; each has the best rate of the sweep in `RACE_FILE`.

    "as 8 bits" is the largest rank with no more bytes of state than AdamW's with 8 bits. LoRA's rank is the largest with which
    parameters, gradients and state have no more bytes than with that GaLore.
    """
    width = min(map(min, shapes))

    def galore_bytes(rank: int) -> int:
        return sum(GaLore.state_bytes(shape, rank=rank) for shape in shapes)

    bytes_of_8_bits = sum(optim.AdamW8bit.state_bytes(shape) for shape in shapes)
    as_8_bits = largest_rank(lambda rank: galore_bytes(rank) <= bytes_of_8_bits)
    projection = {"interval": PROJECTION_INTERVAL}
    states = {
        "AdamW": _make_low_state(optim.AdamW, 2e-3),
        "SGD": _make_low_state(optim.SGD, 3.0),
        "AdamW, 16 bits": _make_low_state(AdamW16bit, 2e-3),
        "AdamW, 16 bits, to nearest": _make_low_state(AdamW16bit, 2e-3, stochastic=False),
        "AdamW, 8 bits": _make_low_state(optim.AdamW8bit, 2e-3),
        "AdamW, 4 bits": _make_low_state(AdamW4bit, 2e-3),
        "GaLore, a half": _make_low_state(GaLore, 2e-2, rank=width // 2, **projection),
        "GaLore, a quarter": _make_low_state(GaLore, 2e-2, rank=width // 4, **projection),
        "GaLore, as 8 bits": _make_low_state(GaLore, 2e-2, rank=as_8_bits, **projection),
        "APOLLO, a quarter": _make_low_state(APOLLO, 5e-3, rank=width // 4, **projection),
        "APOLLO, rank 1": _make_low_state(APOLLO, 1e-2, rank=1, scale=128**0.5, **projection),
    }
    budget = galore_bytes(width // 4) + 4 * sum(a * b for a, b in shapes)
    lora_rank = largest_rank(
        lambda rank: 16 * rank * sum(map(sum, shapes)) <= budget
    )  # parameters, gradients and state
    contender = Contender(partial(_make_adapter_optimizer, lora_rank), 3e-3)
    states["LoRA, bytes as GaLore's"] = LowState(contender, lambda shapes: 8 * lora_rank * sum(map(sum, shapes)))
    return states


def stored_runs() -> pd.DataFrame:
    """Runs at laptop scale, a row each: `name`, `seed`, `test` (held-out loss), and for optimizers `lr` and `loss` (in training,
    the mean of the last 20 steps). `python -m benchmarks.fewer_bits` made them."""
    return read_runs(RACE_FILE)


def bytes_by_method() -> dict[str, dict[str, float]]:
    """Bytes for each weight of a matrix of 4,096 × 4,096 in float32, by kind, for each method."""
    width, rank = 4096, 16
    weights, shape = width**2, (width, width)
    adapters = 2 * rank * width / weights

    def kinds(parameter_bytes: float, trained_share: float, state: float) -> dict[str, float]:
        return {"parameters": parameter_bytes, "optimizer state": state, "gradients": 4 * trained_share}

    return {
        "AdamW": kinds(4, 1, optim.AdamW.state_bytes(shape) / weights),
        "AdamW, 8 bits": kinds(4, 1, optim.AdamW8bit.state_bytes(shape) / weights),
        "AdamW, 4 bits": kinds(4, 1, AdamW4bit.state_bytes(shape) / weights),
        "GaLore, rank a quarter": kinds(4, 1, GaLore.state_bytes(shape, rank=width // 4) / weights),
        f"LoRA, rank {rank}": kinds(4 + 4 * adapters, adapters, 8 * adapters),
        f"QLoRA, rank {rank}": kinds(bits_of_nf4() / 8 + 4 * adapters, adapters, 8 * adapters),
    }


def bits_of_nf4(double: bool = True) -> float:
    """Bits of a weight in NF4 with its scales: of 8 bits and a float32 for each 256 of them, or a float32 each."""
    return 4 + (8 + 32 / 256 if double else 32) / 64


def race_differences(runs: pd.DataFrame) -> dict[str, list[float]]:
    """The losses of each optimizer in the stored `runs`, minus AdamW's with the same seed."""
    runs = runs[runs["seed"].isin(RACE_SEEDS)].dropna(subset="loss")
    by_name = {name: of_name.set_index("seed")["loss"] for name, of_name in runs.groupby("name", sort=False)}
    return {name: (losses - by_name["AdamW"]).tolist() for name, losses in by_name.items() if name != "AdamW"}


def table_of_race(shapes: Sequence[tuple[int, ...]], runs: pd.DataFrame) -> pd.DataFrame:
    """A row for each optimizer: the bytes that it keeps of the hidden matrices, the rates tried, and the best."""
    rows = {}
    for name, low in low_states(shapes).items():
        rates = sorted(runs[(runs["name"] == name) & runs["seed"].isin(SWEEP_SEEDS)]["lr"].unique())
        tried = ", ".join(f"{rate:g}" for rate in rates) or "AdamW's"
        rows[name] = [format_bytes(low.state_bytes(shapes)), tried, low.contender.lr]
    return pd.DataFrame(rows, ["state", "rates tried", "best"]).T
