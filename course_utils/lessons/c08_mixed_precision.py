"""Chapter 08: what formats lose of gradients, types and seconds of a run, and the demo's slow data loader."""

import copy
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import frexp

import pandas as pd
import torch
from torch import nn
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset

from course_utils.hardware import Machine, OperatorWatch, Prediction, Watch
from course_utils.hardware.calibration import seconds_of
from course_utils.precision import Format
from course_utils.training.gradients import relative_error


def in_decimal(value: float) -> str:
    """`value` as sign, mantissa and a power of ten: "+1.25 · 10^-1"."""
    mantissa, exponent = f"{value:+.6e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')} · 10^{int(exponent)}"


def in_binary(value: float) -> str:
    """`value` as sign, mantissa and a power of two: "+1.0 · 2^-3"."""
    mantissa, exponent = frexp(value)
    return f"{2 * mantissa:+} · 2^{exponent - 1}" if value else "+0.0"


def gradients_of(model: nn.Module, loss: Callable[[], torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Every gradient that a backward pass of `loss()` computes at a linear layer: those of outputs, those of parameters.

    Under autocast both are computed in a narrow type. Nothing is left in the parameters.
    """
    of_outputs: list[torch.Tensor] = []
    layers = nn.ModuleList(module for module in model.modules() if isinstance(module, nn.Linear))

    hooks = _hook_outputs(layers, lambda gradient: of_outputs.append(gradient.detach()))
    model.zero_grad()
    try:
        loss().backward()
    finally:
        for hook in hooks:
            hook.remove()
    of_parameters = [p.grad.clone() for p in layers.parameters() if p.grad is not None]  # a shared weight comes once
    model.zero_grad()
    return of_outputs, of_parameters


def _hook_outputs(layers: Iterable[nn.Module], hook: Callable[[torch.Tensor], torch.Tensor | None]) -> list:
    """`hook` takes the gradient of each layer's output, and may return another instead. Returns what to remove."""

    def watch_output(layer: nn.Module, inputs: tuple, output: torch.Tensor) -> None:
        if output.requires_grad:
            output.register_hook(hook)

    return [layer.register_forward_hook(watch_output) for layer in layers]


@dataclass
class RoundingCount:
    """How many numbers other than 0 were rounded, and how many of them became 0."""

    all: int = 0
    vanished: int = 0

    @property
    def share(self) -> float:
        return self.vanished / max(1, self.all)


def round_output_gradients(model: nn.Module) -> RoundingCount:
    """Lets the gradient of every linear layer's output pass through fp16 from now on; all else stays as it is."""
    seen = RoundingCount()

    def through_fp16(gradient: torch.Tensor) -> torch.Tensor:
        rounded = gradient.half().float()
        seen.all += int((gradient != 0).sum())
        seen.vanished += int(((gradient != 0) & (rounded == 0)).sum())
        return rounded

    _hook_outputs((module for module in model.modules() if isinstance(module, nn.Linear)), through_fp16)
    return seen


def error_by_rounding(model: nn.Module, batch: dict, scale: float) -> dict[str, float]:
    """How far each parameter's gradient is off when the outputs' gradients, `scale` times as large, pass through fp16."""
    exact = _gradients(model.eval(), batch, 1.0)
    rounded = copy.deepcopy(model)
    round_output_gradients(rounded)
    inexact = _gradients(rounded, batch, scale)
    return {name: relative_error(inexact[name], exact[name]) for name in exact}


def _gradients(model: nn.Module, batch: dict, scale: float) -> dict[str, torch.Tensor]:
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(scale * model(**batch).loss, parameters)
    return {name: gradient / scale for name, gradient in zip(names, gradients, strict=True)}


def time_call(call: Callable[[], object], machine: Machine) -> dict[str, float]:
    """Milliseconds of `call`: predicted from its operators' FLOPs and bytes and the machine's rates, and measured.

    Of five measurements the shortest, which other programs disturb least.
    """
    with OperatorWatch() as watch:
        call()
    predicted = sum(machine.seconds(work) for _, work in watch.operators)
    return {"predicted": 1000 * predicted, "measured": 1000 * min(seconds_of(call) for _ in range(5))}


def seconds_by_kind(prediction: Prediction) -> dict[str, float]:
    """A step's predicted milliseconds in products of matrices, in conversions from type to type, and in the rest."""
    seconds = 1000 * prediction.frame()["seconds"]
    kinds = {"products": ["mm", "addmm", "bmm", "baddbmm"], "conversions": ["_to_copy"]}
    split = {kind: seconds.reindex([f"aten.{name}" for name in names]).sum() for kind, names in kinds.items()}
    return split | {"the rest": seconds.sum() - sum(split.values())}


def exponent_counts(tensors: Iterable[torch.Tensor]) -> Counter:
    """How many elements have |x| in [2ᵉ, 2ᵉ⁺¹), by e; zeros, infinities and NaN are not counted."""
    counts: Counter = Counter()
    for tensor in tensors:
        values = tensor.double()
        exponents = torch.frexp(values[values.isfinite() & (values != 0)])[1] - 1
        levels, numbers = exponents.unique(return_counts=True)
        counts.update(dict(zip(levels.tolist(), numbers.tolist(), strict=True)))
    return counts


@dataclass(frozen=True)
class RoundingLoss:
    """Shares of the numbers that were neither 0 nor infinite: become 0, lose mantissa bits, become too large."""

    vanished: float
    subnormal: float
    overflowed: float


def underflow_in(tensors: Iterable[torch.Tensor], fmt: Format, scale: float = 1.0) -> RoundingLoss:
    """What rounding `scale` times each tensor to the format loses."""
    total = vanished = subnormal = overflowed = 0
    for tensor in tensors:
        values = tensor.double()
        values = values[values.isfinite() & (values != 0)] * scale
        rounded = fmt.nearest(values)
        total += values.numel()
        vanished += (rounded == 0).sum().item()
        subnormal += ((rounded != 0) & (rounded.abs() < fmt.smallest_normal)).sum().item()
        overflowed += (~rounded.isfinite()).sum().item()
    return RoundingLoss(vanished / max(1, total), subnormal / max(1, total), overflowed / max(1, total))


class OperatorTypes(Watch):
    """While it is entered, counts every operator by the floating-point types that go in and that come out."""

    def __init__(self):
        super().__init__()
        self.calls: Counter = Counter()

    def note(self, function: OpOverload, args: tuple, kwargs: dict, answer: object) -> None:
        name = function.overloadpacket.__name__.removeprefix("_")
        self.calls[name, self._types_in((args, kwargs)), self._types_in(answer)] += 1

    def frame(self) -> pd.DataFrame:
        """A row per operator and types, with its calls; operators without floating-point numbers are left out."""
        rows = [(*key, calls) for key, calls in sorted(self.calls.items()) if key[1] or key[2]]
        return pd.DataFrame(rows, columns=["operator", "types in", "types out", "calls"]).set_index("operator")

    @property
    def of_linear_layers(self) -> set[str]:
        """The types of the factors of x Wᵀ and of its two gradients: `{"bfloat16"}`. Attention is not among them."""
        products = {"mm", "addmm", "linear", "linear_backward"}
        return {into for (name, into, _), _ in self.calls.items() if name in products and into}

    @staticmethod
    def _types_in(tree: object) -> str:
        tensors = [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
        return ", ".join(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors}))


def unmoved_share(before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]) -> float:
    """The share of all elements that are the same in both lists of tensors."""
    unmoved = sum((b == a).sum().item() for b, a in zip(before, after, strict=True))
    return unmoved / sum(b.numel() for b in before)


class SlowDataset(Dataset):
    """A data set that is slow now and then: it waits for `seconds` before every `interval`-th batch, as for a busy disk."""

    def __init__(self, rows: Dataset, seconds: float, interval: int = 1):
        self.rows = rows
        self.seconds = seconds
        self.interval = interval
        self.fetched = 0

    def __getitems__(self, indices: list[int]) -> list:
        """The rows of one batch: a loader asks for them together."""
        self.fetched += 1
        if self.fetched % self.interval == 0:
            time.sleep(self.seconds)
        return [self.rows[index] for index in indices]

    def __getitem__(self, index: int):
        return self.__getitems__([index])[0]

    def __len__(self) -> int:
        return len(self.rows)


def slow_to_read(batches: DataLoader, seconds: float, interval: int = 1, workers: int = 0) -> DataLoader:
    """The batches of `batches` in the same order, read with waits as of `SlowDataset`.

    With `workers` that many processes read ahead, each two batches, and each counts `interval` for itself.
    """
    rows = SlowDataset(batches.dataset, seconds, interval)
    options = {name: getattr(batches, name) for name in ("sampler", "collate_fn", "generator", "drop_last")}
    return DataLoader(rows, batches.batch_size, num_workers=workers, **options)
