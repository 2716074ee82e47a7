"""The parameters that weight decay acts on."""

import re

from torch import nn


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Two parameter groups: matrices and embeddings with `weight_decay`, biases and normalization parameters with 0.

    Frozen parameters are left out, shared ones appear once. Raises `ValueError` when nothing in `model` is trainable.
    """
    undecayed = set(_find_undecayed(model))
    trainable = [p for p in model.parameters() if p.requires_grad]
    if not trainable:
        raise ValueError("No parameter of this model requires a gradient; unfreeze some before building an optimizer.")
    return [
        {"params": [p for p in trainable if p not in undecayed], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p in undecayed], "weight_decay": 0.0},
    ]


def _find_undecayed(model: nn.Module):
    """Biases wherever they are, and all that a normalization layer owns (LayerNorm, LlamaRMSNorm, BatchNorm1d, …)."""
    for module in model.modules():
        is_norm = re.search(r"norm(\dd)?$", type(module).__name__.lower())
        for name, parameter in module.named_parameters(recurse=False):
            if is_norm or name.endswith("bias"):
                yield parameter
