"""Quantized gradients: every step is sent, but in one byte an element instead of four.

QSGD (Alistarh et al. 2017) rounds by chance, so that the mean of what is sent is what was meant. Error feedback (Seide et al.
2014; Karimireddy et al. 2019) keeps what rounding took away, and adds it to the next gradient. N is the number of ranks.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist

from course_utils.distributed.agreement import require_alike
from course_utils.errors import CourseError

BLOCK = 2048
"""Elements that share one scale."""
_MOST = 127  # int8 reaches from -128 to 127


def quantize(
    tensor: torch.Tensor, levels: int = _MOST, by_chance: bool = True, draw: torch.Generator | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """`tensor` as whole numbers from −`levels` to `levels`, and the largest magnitude of each block of `BLOCK` elements.

    Returns int8 codes, one for each element of the flat tensor filled up to whole blocks, [blocks, BLOCK], and float32
    scales, [blocks, 1]. `by_chance` rounds x up with a probability of x − ⌊x⌋, which has x as its mean (Alistarh et al. 2017,
    section 3.1, with the block's largest magnitude in place of its norm); otherwise to the nearest. `draw` gives the chance.
    """
    flat = tensor.reshape(-1).float()
    blocks = torch.nn.functional.pad(flat, (0, -len(flat) % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(1, keepdim=True)
    exact = levels * (blocks / scales.clamp_min(torch.finfo(torch.float32).tiny))
    if by_chance:
        exact = (exact + torch.rand(exact.shape, generator=draw, device=exact.device)).floor()
    return exact.round().clamp(-levels, levels).to(torch.int8), scales


def dequantize(codes: torch.Tensor, scales: torch.Tensor, like: torch.Tensor, levels: int = _MOST) -> torch.Tensor:
    """What `quantize` meant, in the shape and type of `like`."""
    return (codes * (scales / levels)).view(-1)[: like.numel()].view_as(like).to(like.dtype)


class QuantizedMean:
    """Replaces gradients by the mean over ranks of their quantized values; call `average` after `backward`.

    A sum of codes with different scales is no code, so there is no all-reduce: every rank gathers the codes of all. A rank
    sends N − 1 times its codes and scales, each one byte an element and four a block: for 2 ranks a quarter of an all-reduce
    in float32, for 8 as much. `levels` below 127 is coarser (1: only −1, 0 and 1), and still a byte an element.
    `error_feedback` keeps a copy of the gradients' size on each rank. `seed` is for the chance of rounding.

    Raises `CourseError` where nothing is to be trained, or for levels outside 1 … 127, and where ranks bring other
    parameters.
    """

    def __init__(
        self,
        parameters: Iterable[torch.Tensor],
        levels: int = _MOST,
        by_chance: bool = True,
        error_feedback: bool = False,
        seed: int = 0,
    ):
        self.parameters = [p for p in parameters if p.requires_grad]
        if not self.parameters:
            raise CourseError("No parameter requires a gradient, so there is nothing to average.")
        if not 1 <= levels <= _MOST:
            raise CourseError(f"{levels} levels do not fit into a signed byte; use 1 to {_MOST}.")
        self.levels, self.by_chance = levels, by_chance
        size = sum(p.numel() for p in self.parameters)
        self._owed = torch.zeros(size, device=self.parameters[0].device) if error_feedback else None
        # Each rank its own chance: with one for all, errors would not average out.
        self._draw = torch.Generator(self.parameters[0].device).manual_seed(seed + dist.get_rank())
        require_alike((f"parameter {number}", p) for number, p in enumerate(self.parameters))
        for parameter in self.parameters:
            dist.broadcast(parameter.detach(), 0)

    @torch.no_grad()
    def average(self) -> None:
        """Send this rank's gradients, gather all, and put their mean into `.grad`; a missing one counts as zero."""
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        mean = self._mean(torch.cat([gradient.reshape(-1).float() for gradient in gradients]))
        pieces = mean.split([p.numel() for p in self.parameters])
        for parameter, gradient, piece in zip(self.parameters, gradients, pieces, strict=True):
            parameter.grad = gradient.copy_(piece.view_as(parameter))

    def _mean(self, meant: torch.Tensor) -> torch.Tensor:
        if self._owed is not None:
            meant = meant + self._owed
        codes, scales = quantize(meant, self.levels, self.by_chance, self._draw)
        if self._owed is not None:
            owed = meant - dequantize(codes, scales, meant, self.levels)
            self._owed = torch.where(owed.isfinite(), owed, 0)  # else one infinite gradient would be owed for ever
        everyones = zip(_gathered(codes), _gathered(scales), strict=True)
        return sum(dequantize(*one, meant, self.levels) for one in everyones) / dist.get_world_size()


def _gathered(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensors of all ranks, in their order."""
    everyones = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(everyones, tensor)
    return everyones
