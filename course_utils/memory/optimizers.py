"""What each optimizer a `Recipe` may name keeps, and what it needs for a moment while it updates.

Every entry of `COSTS` owns its bytes: to add an optimizer is to add an entry, and nothing else changes.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch

Parameters = Iterable[torch.nn.Parameter]
Scratch = Callable[[object], object]
"""`new(bytes)`: memory that is in use for as long as the answer is referred to."""


class Kept(NamedTuple):
    """One value of the state: `itemsize` bytes for each of `elements`, 0 for a Python number.

    `shared` says that all parameters refer to the same memory.
    """

    name: str
    elements: int
    itemsize: int
    shared: bool = False


@dataclass(frozen=True)
class OptimizerCost:
    """How to make one optimizer, what it keeps, what its update needs.

    `state(shape, itemsize)` lists what is kept for one parameter tensor. `update(shapes, itemsize, new)` goes through one
    update of all of them, asking `new(bytes)` for each temporary. Shapes are numbers, or where `in_symbols`, expressions.
    `opaque` says why the update cannot be seen from outside, where it cannot.
    """

    make: Callable[[Parameters], torch.optim.Optimizer]
    state: Callable[[tuple, int], list[Kept]]
    update: Callable[[list[tuple], int, Scratch], None]
    in_symbols: bool = True
    opaque: str = ""

    def state_bytes(self, shape: tuple, itemsize: int = 4):
        """Bytes kept for one parameter tensor of `shape`, without what all tensors share."""
        return sum(kept.elements * kept.itemsize for kept in self.state(shape, itemsize) if not kept.shared)

    def shared_bytes(self, shapes: list[tuple], itemsize: int = 4) -> int:
        """Bytes kept once for all tensors together."""
        once = {kept.name: kept for shape in shapes for kept in self.state(shape, itemsize) if kept.shared}
        return sum(kept.elements * kept.itemsize for kept in once.values())

    def state_elements(self, shape: tuple) -> int:
        """Numbers kept for one parameter tensor, counters and what is shared included."""
        return sum(kept.elements for kept in self.state(shape, 4))


def _adamw_state(shape: tuple, itemsize: int) -> list[Kept]:
    """Two moving averages (Kingma & Ba 2015) and a step counter that torch keeps in 32 bits."""
    averages = [Kept(name, prod(shape), itemsize) for name in ("exp_avg", "exp_avg_sq")]
    return [Kept("step", 1, 4), *averages]


def _update_each_adamw(shapes: list[tuple], itemsize: int, new: Scratch) -> None:
    """√v̂, and its quotient, which is kept under its name until the next tensor's is there."""
    for shape in shapes:
        root = new(prod(shape) * itemsize)
        denominator = new(prod(shape) * itemsize)  # noqa: F841 lives until it is named anew
        del root


def _update_all_adamw(shapes: list[tuple], itemsize: int, new: Scratch) -> None:
    roots = [new(prod(shape) * itemsize) for shape in shapes]
    del roots


def _factored(shape: tuple) -> tuple:
    """Elements of the row sums and of the column sums of a matrix (Shazeer & Stern 2018, Algorithm 4)."""
    return prod(shape[:-1]), prod(shape[:-2]) * shape[-1]


def _adafactor_state(shape: tuple, itemsize: int) -> list[Kept]:
    step = Kept("step", 1, 4)
    if len(shape) < 2:
        return [step, Kept("variance", prod(shape), itemsize)]
    rows, columns = _factored(shape)
    return [step, Kept("row_var", rows, itemsize), Kept("col_var", columns, itemsize)]


def _update_adafactor(shapes: list[tuple], itemsize: int, new: Scratch) -> None:
    for shape in shapes:
        if len(shape) > 1:
            rows, columns = _factored(shape)
            row_mean, column_mean = new(rows * itemsize), new(columns * itemsize)  # noqa: F841 live until named anew
            variance, matrices = new(prod(shape) * itemsize), prod(shape[:-2])
            mean = new(matrices * itemsize)
            if itemsize < 4:
                wide = new(rows * 4), new(matrices * 4)  # the CPU takes the mean of the row sums in 32 bits
                del wide
            del mean
        else:
            squared = new(prod(shape) * itemsize)  # noqa: F841 lives until it is named anew
            variance = new(prod(shape) * itemsize)
        update = variance  # noqa: F841 holds on to the last tensor's until here


def _transformers_adafactor_state(shape: tuple, itemsize: int) -> list[Kept]:
    """Sums in 32 bits whatever the parameters are in; the step is a Python number, and no memory of the device."""
    counters = [Kept("step", 1, 0), Kept("RMS", 1, 4)]
    if len(shape) < 2:
        return [*counters, Kept("exp_avg_sq", prod(shape), 4)]
    rows, columns = _factored(shape)
    return [*counters, Kept("exp_avg_sq_row", rows, 4), Kept("exp_avg_sq_col", columns, 4)]


def _update_transformers_adafactor(shapes: list[tuple], itemsize: int, new: Scratch) -> None:
    """In 32 bits: half-precision gradients and parameters are copied first."""
    for shape in shapes:
        whole = prod(shape) * 4
        if itemsize < 4:
            gradient, parameter = new(whole), new(whole)  # noqa: F841 live until named anew
        squared = new(whole)
        update = new(whole)
        del squared
        if len(shape) > 1:
            factors = [new(4 * elements) for elements in _factored(shape)]
            update = new(whole)
            del factors
        else:
            update = new(whole)
        negated = new(whole)
        del negated
    del update


_BLOCK, _CODES, _SMALL = 256, 256, 4096
"""bitsandbytes: values that share a scale, entries of a code book, and the elements from which on 8 bits are used."""


def _adamw_8bit_state(shape: tuple, itemsize: int) -> list[Kept]:
    """Codes of 8 bits with a scale for each block of 256 (Dettmers et al. 2022); small tensors stay in 32 bits."""
    elements = prod(shape)
    if elements < _SMALL:
        return [Kept("step", 1, 0), Kept("state1", elements, 4), Kept("state2", elements, 4)]
    blocks = -(-elements // _BLOCK)
    kept = [Kept("step", 1, 0)]
    for number in (1, 2):
        kept += [Kept(f"state{number}", elements, 1), Kept(f"absmax{number}", blocks, 4)]
        kept.append(Kept(f"qmap{number}", _CODES, 4, shared=True))
    return kept


def _update_adamw_8bit(shapes: list[tuple], itemsize: int, new: Scratch) -> None:
    """On the CPU both states, gradient, root and denominator are unpacked to 32 bits, one tensor after another.

    Small tensors' states are in 32 bits as they are.
    """
    for shape in shapes:
        copies = (5 if prod(shape) >= _SMALL else 3) + (itemsize < 4)
        wide = [new(4 * prod(shape)) for _ in range(copies)]
        del wide


def _transformers_adafactor(parameters: Parameters) -> torch.optim.Optimizer:
    from transformers import Adafactor

    return Adafactor(parameters, lr=1e-3, relative_step=False, scale_parameter=False)


def _adamw_8bit(parameters: Parameters) -> torch.optim.Optimizer:
    from bitsandbytes.optim import AdamW8bit

    return AdamW8bit(parameters, lr=1e-4)


COSTS = {
    "sgd": OptimizerCost(
        lambda parameters: torch.optim.SGD(parameters, lr=1e-2, foreach=False),
        state=lambda shape, itemsize: [],
        update=lambda shapes, itemsize, new: None,
    ),
    "adamw": OptimizerCost(
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-4, foreach=False), _adamw_state, _update_each_adamw
    ),
    "adamw-foreach": OptimizerCost(
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-4, foreach=True), _adamw_state, _update_all_adamw
    ),
    "adafactor": OptimizerCost(
        lambda parameters: torch.optim.Adafactor(parameters, lr=1e-3, foreach=False),
        _adafactor_state,
        _update_adafactor,
    ),
    "adafactor-transformers": OptimizerCost(
        _transformers_adafactor, _transformers_adafactor_state, _update_transformers_adafactor
    ),
    "adamw8bit": OptimizerCost(
        _adamw_8bit,
        _adamw_8bit_state,
        _update_adamw_8bit,
        in_symbols=False,
        opaque="bitsandbytes unpacks the states inside one operator of its own, which only the allocator sees",
    ),
}
