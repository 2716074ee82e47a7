"""The size of an optimizer's state, by tensor."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd
import torch
from torch import nn

from course_utils.errors import CourseError


class StateEntry(NamedTuple):
    """One value of the state. `kind` is its name in `optimizer.state`, such as `exp_avg`; `where` is its device, or `python`."""

    parameter: int
    kind: str
    elements: int
    bytes: int
    dtype: str
    where: str


@dataclass(frozen=True)
class StateSize:
    """The entries of one optimizer's state, with their sizes in elements and bytes."""

    entries: tuple[StateEntry, ...]

    @property
    def elements(self) -> int:
        """Numbers kept, step counters included."""
        return sum(entry.elements for entry in self.entries)

    @property
    def bytes(self) -> int:
        """Bytes of all entries."""
        return sum(entry.bytes for entry in self.entries)

    def by_tensor(self) -> pd.DataFrame:
        """A table with a row per entry, in the order of the optimizer's parameters."""
        return pd.DataFrame(self.entries, columns=StateEntry._fields)

    def by_kind(self) -> pd.DataFrame:
        """A table with a row per kind of state: entries, elements, bytes and dtypes."""
        by_kind = self.by_tensor().groupby("kind", sort=False)
        dtypes = ("dtype", lambda names: ", ".join(sorted(set(names))))
        sums = {name: (name, "sum") for name in ("elements", "bytes")}
        return by_kind.agg(entries=("kind", "size"), **sums, dtypes=dtypes)


def optimizer_state_size(optimizer: torch.optim.Optimizer) -> StateSize:
    """The size of `optimizer.state` as it is now; nothing is copied. Before the first step it is empty.

    A tensor counts its elements and bytes, once for each parameter that keeps it. A Python number (Transformers' Adafactor
    keeps some) counts as one element and the bytes of the Python object, in host memory. Nested containers are walked.
    Anything else has size 0 and keeps its row.
    """
    plain = unwrap(optimizer)
    parameters = [p for group in plain.param_groups for p in group["params"]]
    states = ((i, plain.state.get(parameter, {})) for i, parameter in enumerate(parameters))
    return StateSize(tuple(e for i, state in states for kind, value in state.items() for e in _walk(i, kind, value)))


def unwrap(optimizer: torch.optim.Optimizer | None) -> torch.optim.Optimizer | None:
    """The optimizer inside Accelerate's wrapper, or the one given if it is not wrapped; None stays None."""
    return getattr(optimizer, "optimizer", optimizer)


def parts_of(arguments: object) -> tuple[list[nn.Module], list[torch.optim.Optimizer]]:
    """The models and the optimizers among the arguments of a step.

    Raises `CourseError` if they are no tuple, if there is no model, and for a scripted model.
    """
    if not isinstance(arguments, tuple):
        kind = type(arguments).__name__
        raise CourseError(f"build() returned a {kind}; let it return a tuple, the step's arguments.")
    models = [argument for argument in arguments if isinstance(argument, nn.Module)]
    if not models:
        raise CourseError("build() returned no model; let it return a tuple with one, which the step then takes.")
    if any(isinstance(module, torch.jit.ScriptModule) for model in models for module in model.modules()):
        raise CourseError("A module that torch.jit.script made shows its operators to nobody; give the module itself.")
    return models, [argument for argument in arguments if isinstance(argument, torch.optim.Optimizer)]


def distinct_optimizers(optimizers: Iterable[torch.optim.Optimizer]) -> list[torch.optim.Optimizer]:
    """The optimizers without Accelerate's wrappers and without repetitions."""
    return list({id(optimizer): optimizer for optimizer in map(unwrap, optimizers)}.values())


def trains(optimizer: torch.optim.Optimizer, model: nn.Module) -> bool:
    """Whether `optimizer` updates a parameter of `model`."""
    parameter_ids = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return not parameter_ids.isdisjoint(map(id, model.parameters()))


def _walk(index: int, kind: str, value: object) -> Iterator[StateEntry]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _walk(index, f"{kind}.{name}", inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _walk(index, kind, inner)
    elif isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        yield StateEntry(index, kind, value.numel(), value.nbytes, dtype, str(value.device))
    else:
        number = isinstance(value, int | float | complex)
        size = (1, sys.getsizeof(value)) if number else (0, 0)
        yield StateEntry(index, kind, *size, type(value).__name__, "python")
