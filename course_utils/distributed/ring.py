"""Collectives by hand: messages between neighbors in a ring (Patarasuk & Yuan 2009).

Rank r sends to rank r + 1 and receives from rank r − 1, all at the same time, N − 1 times. So in each half of an
all-reduce every link carries about (N − 1)/N of the tensor. Each piece is summed in one order and then handed around, so all
N ranks end with the same bits.
"""

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor


def all_reduce(tensor: Tensor) -> None:
    """Replace `tensor` by its sum over all ranks. A rank sends 2(N − 1)/N of its bytes, in 2(N − 1) messages."""
    flat = tensor.flatten()
    pieces = flat.tensor_split(dist.get_world_size())
    _sum_around(pieces)
    _copy_around(pieces)
    tensor.copy_(flat.view_as(tensor))


def reduce_scatter(tensor: Tensor) -> Shaped[Tensor, " piece"]:
    """This rank's piece of the sum of `tensor` over all ranks: the pieces are those of `torch.tensor_split`, flat."""
    pieces = tensor.flatten().clone().tensor_split(dist.get_world_size())
    _sum_around(pieces)
    return pieces[dist.get_rank()].clone()


def all_gather(piece: Shaped[Tensor, " piece"], length: int) -> Shaped[Tensor, " {length}"]:
    """The flat tensor of `length` elements of which every rank holds one piece, as `reduce_scatter` leaves them."""
    full = piece.new_empty(length)
    pieces = full.tensor_split(dist.get_world_size())
    pieces[dist.get_rank()].copy_(piece)
    _copy_around(pieces)
    return full


def _sum_around(pieces: tuple[Tensor, ...]) -> None:
    """Each piece goes around once and every rank adds its own part: the sum of piece r ends at rank r."""
    ranks, rank = len(pieces), dist.get_rank()
    for step in range(1, ranks):
        own_part = pieces[(rank - step - 1) % ranks]
        own_part += exchange(pieces[(rank - step) % ranks], torch.empty_like(own_part))


def _copy_around(pieces: tuple[Tensor, ...]) -> None:
    """Each finished piece goes around once, from the rank that has it to all others."""
    ranks, rank = len(pieces), dist.get_rank()
    for step in range(ranks - 1):
        exchange(pieces[(rank - step) % ranks], pieces[(rank - step - 1) % ranks])


def exchange(outgoing: Tensor, incoming: Tensor) -> Tensor:
    """Send `outgoing` to the next rank, while the rank before fills `incoming`."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    sending = dist.isend(outgoing, (rank + 1) % ranks)
    dist.irecv(incoming, (rank - 1) % ranks).wait()
    sending.wait()
    return incoming
