"""Low-rank adapters (Hu et al. 2021): a frozen linear layer, and beside it two narrow ones that are trained.

W (out × in) stays as it is; A (r × in) and B (out × r) are learned: y = W x + (α/r) · B A x. B begins at zero, so that the
adapted model begins as the model was.
"""

from collections.abc import Collection
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor, nn


class LoRA(nn.Module):
    """`linear`, frozen, and its adapter of rank r."""

    def __init__(self, linear: nn.Module, rank: int, alpha: float):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.scale = alpha / rank
        self.a = nn.Parameter(torch.empty(rank, linear.in_features).uniform_(-1, 1) / sqrt(linear.in_features))
        self.b = nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, x: Float[Tensor, "*tokens inputs"]) -> Float[Tensor, "*tokens outputs"]:
        """Two narrow products, never the wide B A."""
        out = self.linear(x)
        return out + (x.to(self.a.dtype) @ self.a.T @ self.b.T * self.scale).to(out.dtype)

    @torch.no_grad()
    def merge(self, sign: int = 1) -> None:
        """W ← W + (α/r) · B A, after which `linear` alone does all; with −1 back again."""
        self.linear.weight.add_((self.b @ self.a).to(self.linear.weight.dtype), alpha=sign * self.scale)


def adapt(model: nn.Module, rank: int, alpha: float, names: Collection[str]) -> nn.Module:
    """Freeze `model`, and put a `LoRA` around each linear layer whose last name is among `names`; in place."""
    model.requires_grad_(False)
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if name in names:
                setattr(parent, name, LoRA(child, rank, alpha))
    return model


def adapter_state(model: nn.Module) -> dict[str, Tensor]:
    """The trained parameters by name, which are all that need be saved."""
    return {name: parameter.detach() for name, parameter in model.named_parameters() if parameter.requires_grad}
