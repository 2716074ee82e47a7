"""What a forward pass keeps for the backward pass."""

from collections.abc import Callable

import torch
from torch import nn

from course_utils.memory.storage import distinct_bytes


def saved_bytes(forward: Callable[[], object], model: nn.Module) -> int:
    """Bytes that autograd saves while `forward()` runs: the activations, A.

    Each piece of memory counts once, however many operations save it; parameters and buffers of `model` do not count, since
    they are kept anyway.
    """
    saved: list[torch.Tensor] = []

    def remember(tensor):
        saved.append(tensor.detach())  # the tensor itself, kept by its own graph, would never be freed
        return saved[-1]

    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
        result = forward()
    resident = [*model.parameters(), *model.buffers()]
    total = distinct_bytes([*saved, *resident]) - distinct_bytes(resident)
    del result  # the graph must outlive the count, or a freed tensor's address could be counted twice
    return total
