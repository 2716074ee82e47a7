"""Several optimizers as one, each with parameters of its own: Muon, for example, leaves most tensors to AdamW."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class ChainedOptimizer(torch.optim.Optimizer):
    """Steps all of `optimizers`; a schedule sees the groups of all of them."""

    def __init__(self, *optimizers: torch.optim.Optimizer):
        self.optimizers = optimizers
        super().__init__([group for optimizer in optimizers for group in optimizer.param_groups], {})

    @property
    def state(self) -> dict:
        """The state of each parameter, from its own optimizer."""
        return {parameter: state for optimizer in self.optimizers for parameter, state in optimizer.state.items()}

    @state.setter
    def state(self, _: dict):
        """The base class makes a state, which nothing uses."""

    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """One step of each optimizer; returns the closure's loss, or None without one."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss

    def state_dict(self) -> dict:
        return {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}

    def load_state_dict(self, state_dict: dict) -> None:
        for optimizer, state in zip(self.optimizers, state_dict["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.param_groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]


def hidden_matrices(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """(matrices between input and output, all other trainable parameters), each once.

    Embedding tables and the last layer's matrix are among the others, with biases and normalization (Jordan et al. 2024,
    *Muon: An optimizer for hidden layers in neural networks*).
    """
    weights = [(module, dict(module.named_parameters(recurse=False)).get("weight")) for module in model.modules()]
    matrices = [(module, weight) for module, weight in weights if weight is not None and weight.ndim == 2]
    excluded = {weight for module, weight in matrices if isinstance(module, nn.Embedding) or module is matrices[-1][0]}
    hidden = {weight: None for _, weight in matrices if weight not in excluded and weight.requires_grad}
    return list(hidden), [p for p in model.parameters() if p.requires_grad and p not in hidden]
