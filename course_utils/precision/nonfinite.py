"""Finding the first tensor of a run that holds an infinity or a NaN."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.utils._pytree import tree_leaves


@contextmanager
def watch_finite(model: nn.Module) -> Iterator[list[str]]:
    """A list of sentences, one for each tensor that is not finite, in the order in which they came by.

    Looks at every parameter on entering, then at every output of a module, its gradient and every parameter's gradient.
    It waits for the device at each tensor: for diagnosis only, when a loss has become NaN.
    """
    sentences: list[str] = []

    def check(label: str, tensor: torch.Tensor) -> None:
        is_broken = ~tensor.isfinite()
        if is_broken.any():
            index = tuple(is_broken.nonzero()[0].tolist())
            share = is_broken.float().mean().item()
            sentences.append(f"{label} holds {tensor[index].item()} at {index} ({share:.1%} of it is not finite)")

    def check_output(name: str, output: object) -> None:
        for tensor in tree_leaves(output):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                check(f"the output of {name}", tensor.detach())
                if tensor.requires_grad:
                    tensor.register_hook(lambda gradient: check(f"the gradient of the output of {name}", gradient))

    hooks = []
    for name, parameter in model.named_parameters():
        check(f"the parameter {name}", parameter.detach())
        if parameter.requires_grad:
            text = f"the gradient of the parameter {name}"
            hooks.append(parameter.register_post_accumulate_grad_hook(lambda p, text=text: check(text, p.grad)))
    for name, module in model.named_modules():
        name = name or "the model"
        hooks.append(module.register_forward_hook(lambda _, __, output, name=name: check_output(name, output)))
    try:
        yield sentences
    finally:
        for hook in hooks:
            hook.remove()
