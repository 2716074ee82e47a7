"""The optimizers a `Recipe` may name, as their libraries make them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

Parameters = Iterable[torch.nn.Parameter]


@dataclass(frozen=True)
class OptimizerCost:
    """How to make one optimizer."""

    make: Callable[[Parameters], torch.optim.Optimizer]


def _transformers_adafactor(parameters: Parameters) -> torch.optim.Optimizer:
    from transformers import Adafactor

    return Adafactor(parameters, lr=1e-3, relative_step=False, scale_parameter=False)


def _adamw_8bit(parameters: Parameters) -> torch.optim.Optimizer:
    from bitsandbytes.optim import AdamW8bit

    return AdamW8bit(parameters, lr=1e-4)


COSTS = {
    "sgd": OptimizerCost(lambda parameters: torch.optim.SGD(parameters, lr=1e-2, foreach=False)),
    "adamw": OptimizerCost(lambda parameters: torch.optim.AdamW(parameters, lr=1e-4, foreach=False)),
    "adamw-foreach": OptimizerCost(lambda parameters: torch.optim.AdamW(parameters, lr=1e-4, foreach=True)),
    "adafactor": OptimizerCost(lambda parameters: torch.optim.Adafactor(parameters, lr=1e-3, foreach=False)),
    "adafactor-transformers": OptimizerCost(_transformers_adafactor),
    "adamw8bit": OptimizerCost(_adamw_8bit),
}
