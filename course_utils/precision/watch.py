"""What a run really computes in: the types of every operator, and the first tensor that is no longer finite."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pandas as pd
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_LINEAR = {"mm", "addmm", "linear", "linear_backward"}


class OperatorTypes(TorchDispatchMode):
    """While it is entered, counts every operator by the floating-point types that go in and that come out."""

    def __init__(self):
        super().__init__()
        self.calls: Counter = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__.removeprefix("_")
        self.calls[name, _types_in((args, kwargs)), _types_in(result)] += 1
        return result

    def frame(self) -> pd.DataFrame:
        """A row per operator and types, with its calls; operators without floating-point numbers are left out."""
        rows = [(*key, calls) for key, calls in sorted(self.calls.items()) if key[1] or key[2]]
        return pd.DataFrame(rows, columns=["operator", "types in", "types out", "calls"]).set_index("operator")

    @property
    def of_linear_layers(self) -> set[str]:
        """The types of the factors of x Wᵀ and of its two gradients: `{"bfloat16"}`. Attention is not among them."""
        return {into for (name, into, _), _ in self.calls.items() if name in _LINEAR and into}


class FirstNonFinite:
    """What `watch_finite` found: `found`, a sentence each time a tensor with an inf or a NaN came by, in that order.

    The output of a module that is also the output of the one around it comes by twice.
    """

    def __init__(self):
        self.found: list[str] = []

    @property
    def first(self) -> str | None:
        """The first sentence, or None while all is finite."""
        return self.found[0] if self.found else None

    def look(self, what: str, tensor: torch.Tensor) -> None:
        """Note `tensor` where it is not finite."""
        broken = ~tensor.isfinite()
        if broken.any():
            index = tuple(broken.nonzero()[0].tolist())
            value = tensor[index].item()
            share = broken.float().mean().item()
            self.found.append(f"{what} holds {value} at {index} ({share:.1%} of it is not finite)")


@contextmanager
def watch_finite(model: nn.Module) -> Iterator[FirstNonFinite]:
    """Look at every parameter on entering, then at every output of a module, its gradient and every parameter's gradient.

    It waits for the device at each tensor: for diagnosis only, when a loss has become NaN.
    """
    seen = FirstNonFinite()
    hooks = []
    for name, parameter in model.named_parameters():
        seen.look(f"the parameter {name}", parameter.detach())
        if parameter.requires_grad:
            hooks.append(parameter.register_post_accumulate_grad_hook(_look_at_gradient(seen, name)))
    for name, module in model.named_modules():
        hooks.append(module.register_forward_hook(_look_at_output(seen, name or "the model")))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _look_at_gradient(seen: FirstNonFinite, name: str):
    return lambda parameter: seen.look(f"the gradient of the parameter {name}", parameter.grad)


def _look_at_output(seen: FirstNonFinite, name: str):
    def look(module, inputs, output):
        for tensor in tree_leaves(output):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                seen.look(f"the output of {name}", tensor.detach())
                if tensor.requires_grad:
                    tensor.register_hook(lambda gradient: seen.look(f"the gradient of the output of {name}", gradient))

    return look


def _types_in(tree) -> str:
    dtypes = {leaf.dtype for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()}
    return ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
