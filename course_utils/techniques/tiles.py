"""What a computation by tiles needs: pieces of a length, and sums over them in 32 bits."""

import torch
from jaxtyping import Float
from torch import Tensor


def pieces(length: int, size: int) -> list[slice]:
    """Places from 0 to `length` by `size`; the last piece is what is left."""
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def widen(tensor: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The tensor in at least 32 bits, as sums over pieces need it."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
