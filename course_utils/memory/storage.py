"""Bytes of tensors by the memory they occupy, not by the views that show it."""

from collections.abc import Iterable

import torch
from torch.multiprocessing.reductions import StorageWeakRef


def distinct_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the memory behind `tensors`; what several of them share is counted once, and whole.

    Tensors on the `meta` device count as if they had memory.
    """
    sizes = {StorageWeakRef(t.untyped_storage()): t.untyped_storage().nbytes() for t in tensors}
    return sum(sizes.values())
