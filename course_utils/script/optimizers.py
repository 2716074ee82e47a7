"""The optimizers that `course train` makes by name."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from course_utils import optim
from course_utils.errors import CourseError, instead
from course_utils.memory.step.optimizers import OPTIMIZERS
from course_utils.optim import ChainedOptimizer, hidden_matrices, low_bit

_BY_ELEMENT = {"SGD", "Momentum", "Nesterov", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "RMSProp"}
_BY_ELEMENT |= {"Adagrad", "AdaGrad", "Adadelta", "ASGD", "Rprop"}
_NOT_HERE = {"LBFGS", "SparseAdam", "GaLore", "adamw4bit", "Optimizer"}  # they ask for more than parameters and a rate
_OF_PLANS = {  # the class behind a name that plans have, and its arguments
    "sgd": ("torch.SGD", {"foreach": False}),
    "momentum": ("torch.SGD", {"momentum": 0.9, "foreach": False}),
    "adamw": ("torch.AdamW", {"foreach": False}),
    "adamw-foreach": ("torch.AdamW", {"foreach": True}),
    "adamw-fused": ("torch.AdamW", {"fused": True}),
    "adafactor": ("torch.Adafactor", {"foreach": False}),
}


@dataclass(frozen=True)
class Kind:
    """An optimizer by name. `make(parameters, **arguments)`; `recipe` is what predicts its bytes, None where nothing does.

    `by_element`: every element is updated from its own gradient and state alone, so parts of a tensor can be updated apart.
    """

    make: Callable
    arguments: dict
    by_element: bool
    is_torchs: bool
    recipe: str | Callable | None


def kind_of(name: str) -> Kind:
    """What is behind a name. Raises `CourseError` for one that makes no optimizer here."""
    if name == "muon":
        return Kind(_muon, {}, False, False, None)
    whole, arguments = _OF_PLANS.get(name, (name, {}))
    room, _, kind = whole.partition(".")
    places = {"torch": [torch.optim], "course": [optim, low_bit]}.get(room, [])
    if name in OPTIMIZERS and not places and name not in _NOT_HERE:
        return Kind(_library(name), {}, False, False, name)
    optimizer = next((getattr(place, kind) for place in places if hasattr(place, kind)), None)
    if not (isinstance(optimizer, type) and issubclass(optimizer, torch.optim.Optimizer)) or kind in _NOT_HERE:
        here = [one for one in OPTIMIZERS if one not in _NOT_HERE]
        choices = (*here, "muon", *(f"{room}.{one}" for place in places for one in vars(place) if one not in _NOT_HERE))
        choose = f"choose torch.CLASS, course.CLASS (course_utils.optim), muon, or one of {', '.join(here)}."
        raise CourseError(f"No optimizer {name!r} trains here; {instead(name, choices, choose)}")
    recipe = name if name in OPTIMIZERS else partial(optimizer, lr=1e-3, **arguments)
    return Kind(optimizer, arguments, kind in _BY_ELEMENT, room == "torch", recipe)


def make_optimizer(name: str, model: nn.Module, lr: float, options: dict) -> torch.optim.Optimizer:
    """The optimizer of the trained parameters. Raises `CourseError` for an option that it does not take."""
    kind = kind_of(name)
    trained = model if name == "muon" else [p for p in model.parameters() if p.requires_grad]
    try:
        return kind.make(trained, lr=lr, **kind.arguments | options)
    except (TypeError, ValueError) as error:
        raise CourseError(f"{name} does not take this: {error}; change --option.") from error


def _library(name: str) -> Callable:
    """bitsandbytes' and Transformers' optimizers by the name that plans have for them."""

    def make(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        made = OPTIMIZERS[name](parameters)
        for group in made.param_groups:
            group["lr"] = lr
        return made

    return make


def _muon(model: nn.Module, lr: float, **options) -> ChainedOptimizer:
    """Muon for the hidden matrices, with updates as large as AdamW's (Liu et al. 2025), and AdamW for all else."""
    if not hasattr(torch.optim, "Muon"):
        raise CourseError(f"torch {torch.__version__} has no Muon; install torch 2.9 or later.")
    matrices, others = hidden_matrices(model)
    if not matrices:
        raise CourseError("muon is for hidden matrices, of which this model trains none; use adamw.")
    muon = torch.optim.Muon(matrices, lr=lr, adjust_lr_fn="match_rms_adamw", **options)
    adamw = [torch.optim.AdamW(others, lr=lr, foreach=False)] if others else []  # adapters are matrices all
    return ChainedOptimizer(muon, *adamw)
