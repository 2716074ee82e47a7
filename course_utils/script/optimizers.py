"""The optimizers that `course train` makes by name."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import nn

from course_utils import optim
from course_utils.errors import CourseError, suggest
from course_utils.memory.step import optimizers
from course_utils.memory.step.recipe import OPTIMIZERS, OptimizerSpec
from course_utils.optim import ChainedOptimizer, hidden_matrices

# Those of torch's that update each element from its own gradient alone; the course's say it by themselves.
_BY_ELEMENT = {"SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta", "ASGD", "Rprop"}
# LBFGS needs a closure, SparseAdam sparse gradients, GaLore and APOLLO groups of their own; the others do not train at all: a
# name that only predicts memory, and the class that all inherit.
_EXCLUSIONS = {"LBFGS", "SparseAdam", "GaLore", "APOLLO", "adamw4bit", "Optimizer"}


@dataclass(frozen=True)
class OptimizerKind:
    """What an optimizer's name stands for: `make_optimizer(parameters, **arguments)`; `recipe` predicts its bytes.

    `by_element`: every element is updated from its own gradient and state alone, so parts of a tensor can be updated apart.
    """

    make_optimizer: Callable
    arguments: dict = field(default_factory=dict)
    by_element: bool = False
    is_torchs: bool = False
    recipe: str | Callable | None = None


def optimizer_kind(name: str) -> OptimizerKind:
    """The kind of optimizer called `name`. Raises `CourseError` for a name that makes no optimizer here."""
    if name == "muon":
        return OptimizerKind(_make_muon)
    spec = OPTIMIZERS.get(name, OptimizerSpec(name))
    library, _, class_name = spec.path.replace("torch.optim.", "torch.").partition(".")
    module = {"torch": torch.optim, "course": optim}.get(library)
    if name in OPTIMIZERS and module is None and name not in _EXCLUSIONS:
        return OptimizerKind(partial(optimizers.make_optimizer, name), recipe=name)
    optimizer = getattr(module, class_name, None)
    if not _is_optimizer(optimizer) or class_name in _EXCLUSIONS:
        names = [key for key in OPTIMIZERS if key not in _EXCLUSIONS]
        classes = {attribute for attribute in dir(module) if _is_optimizer(getattr(module, attribute))} - _EXCLUSIONS
        choices = (*names, "muon", *(f"{library}.{attribute}" for attribute in sorted(classes)))
        choose = f"choose torch.CLASS, course.CLASS (course_utils.optim), muon, or one of {', '.join(names)}."
        raise CourseError(f"No optimizer {name!r} trains here; {suggest(name, choices, choose)}")
    return OptimizerKind(
        optimizer,
        arguments=spec.options,
        by_element=getattr(optimizer, "by_element", class_name in _BY_ELEMENT),
        is_torchs=library == "torch",
        recipe=name if name in OPTIMIZERS else partial(optimizer, lr=1e-3),
    )


def make_optimizer(name: str, model: nn.Module, lr: float, options: dict) -> torch.optim.Optimizer:
    """The optimizer of the trained parameters. Raises `CourseError` for an option that it does not take."""
    kind = optimizer_kind(name)
    parameters = model if name == "muon" else [p for p in model.parameters() if p.requires_grad]
    try:
        return kind.make_optimizer(parameters, lr=lr, **kind.arguments | options)
    except (TypeError, ValueError) as error:
        raise CourseError(f"{name} does not take this: {error}; change --option.") from error


def _is_optimizer(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, torch.optim.Optimizer)


def _make_muon(model: nn.Module, lr: float, **options) -> ChainedOptimizer:
    """Muon for the hidden matrices, with updates as large as AdamW's (Liu et al. 2025), and AdamW for all else."""
    if not hasattr(torch.optim, "Muon"):
        raise CourseError(f"torch {torch.__version__} has no Muon; install torch 2.9 or later.")
    matrices, others = hidden_matrices(model)
    if not matrices:
        raise CourseError("muon is for hidden matrices, of which this model trains none; use adamw.")
    muon = torch.optim.Muon(matrices, lr=lr, adjust_lr_fn="match_rms_adamw", **options)
    adamw = [torch.optim.AdamW(others, lr=lr, foreach=False)] if others else []  # adapters are matrices all
    return ChainedOptimizer(muon, *adamw)
