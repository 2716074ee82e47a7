"""Quantized gradients: every step is sent, but in one byte an element instead of four.

QSGD (Alistarh et al. 2017) rounds up or down at random, so that what is sent is right on average. Error feedback (Seide et
al. 2014; Karimireddy et al. 2019) keeps what rounding took away, and adds it to the next gradient.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from jaxtyping import Float, Float32, Int8, Shaped
from torch import Tensor

BLOCK = 2048
"""Elements that share one scale."""


def to_levels(
    tensor: Float[Tensor, "..."], levels: int = 127, stochastic: bool = True, generator: torch.Generator | None = None
) -> tuple[Int8[Tensor, "blocks 2048"], Float32[Tensor, "blocks 1"]]:
    """The tensor as whole numbers from −`levels` to `levels`, times a scale for each block: the block's largest magnitude.

    Returns the codes, the last block filled up with zeros, and the scales. `stochastic`
    rounds x up with probability x − ⌊x⌋, so that the mean is x; otherwise x goes to the nearest code.
    """
    flat = tensor.reshape(-1).float()
    blocks = torch.nn.functional.pad(flat, (0, -len(flat) % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(1, keepdim=True)
    exact = levels * (blocks / scales.clamp_min(torch.finfo(torch.float32).tiny))
    if stochastic:
        exact = (exact + torch.rand(exact.shape, generator=generator, device=exact.device)).floor()
    return exact.round().clamp(-levels, levels).to(torch.int8), scales


def from_levels(
    codes: Int8[Tensor, "blocks 2048"],
    scales: Float32[Tensor, "blocks 1"],
    like: Float[Tensor, "*shape"],
    levels: int = 127,
) -> Float[Tensor, "*shape"]:
    """The tensor that `to_levels` rounded, in the shape and type of `like`."""
    return (codes * (scales / levels)).view(-1)[: like.numel()].view_as(like).to(like.dtype)


class QSGD:
    """Replaces gradients by the mean over ranks of their quantized values: call `average` after `backward`.

    Codes with different scales cannot be added, so every rank gathers the codes of all. A rank sends N − 1 times its codes and
    scales: one byte an element and four a block. `error_feedback` keeps one more copy of the gradients on each rank.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        levels: int = 127,
        stochastic: bool = True,
        error_feedback: bool = False,
        seed: int = 0,
    ):
        self.parameters = list(parameters)
        self.levels, self.stochastic = levels, stochastic
        self.sizes = [p.numel() for p in self.parameters]
        device = self.parameters[0].device
        self.error = torch.zeros(sum(self.sizes), device=device) if error_feedback else None
        # Each rank draws its own numbers; with the same on all ranks, rounding errors would not average out.
        self.generator = torch.Generator(device).manual_seed(seed + dist.get_rank())
        for parameter in self.parameters:
            dist.broadcast(parameter.detach(), 0)

    @torch.no_grad()
    def average(self) -> None:
        """Send this rank's codes, receive those of all, and put the mean into every `.grad`."""
        gradient = torch.cat([p.grad.reshape(-1).float() for p in self.parameters])
        if self.error is not None:
            gradient += self.error
        codes, scales = to_levels(gradient, self.levels, self.stochastic, self.generator)
        if self.error is not None:
            self.error = gradient - from_levels(codes, scales, gradient, self.levels)
        received = zip(gather_from_all(codes), gather_from_all(scales), strict=True)
        mean = sum(from_levels(*message, gradient, self.levels) for message in received) / dist.get_world_size()
        for parameter, piece in zip(self.parameters, mean.split(self.sizes), strict=True):
            parameter.grad.copy_(piece.view_as(parameter))


def gather_from_all(tensor: Shaped[Tensor, "*shape"]) -> list[Shaped[Tensor, "*shape"]]:
    """The tensors of all ranks, in their order."""
    tensors = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(tensors, tensor)
    return tensors
