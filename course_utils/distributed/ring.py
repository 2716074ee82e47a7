"""Collectives by hand, on messages between neighbors in a ring (Patarasuk & Yuan 2009).

Rank r sends to r + 1 and receives from r − 1, all at once, N − 1 times; so every link carries the same load at the same time,
and none carries more than (N − 1)/N of the tensor in a pass. Sums of floats are made in one order for each piece and then
handed around, so all N ranks hold the same bits.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from course_utils.distributed.agreement import first_other
from course_utils.distributed.traffic import Traffic, booked_as
from course_utils.errors import CourseError


def all_reduce(tensor: torch.Tensor) -> None:
    """Replace `tensor` by its sum over all ranks, in place: a reduce-scatter and an all-gather of its pieces.

    A rank sends 2(N − 1)/N of the tensor's bytes in 2(N − 1) messages. Raises `CourseError` where ranks bring different
    shapes or types, before anything is sent of them.
    """
    _require_alike(tensor)
    with booked_as("all-reduce") as ledger, _flat(tensor) as flat:
        pieces = _pieces(flat)
        _reduce_scatter(pieces, ledger)
        _all_gather(pieces, ledger)


def reduce_scatter(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's piece of the sum over all ranks, flat; `tensor` stays as it is. Pieces are those of `torch.tensor_split`.

    A rank sends (N − 1)/N of the tensor's bytes in N − 1 messages. Raises as `all_reduce`.
    """
    _require_alike(tensor)
    pieces = _pieces(tensor.flatten().clone())
    with booked_as("reduce-scatter") as ledger:
        _reduce_scatter(pieces, ledger)
    return pieces[dist.get_rank()].clone()


def all_gather(piece: torch.Tensor, length: int) -> torch.Tensor:
    """The flat tensor of `length` elements whose pieces the ranks hold, as `reduce_scatter` leaves them.

    A rank sends all pieces but its neighbor's, in N − 1 messages. Raises `CourseError` for a piece of the wrong size.
    """
    whole = torch.empty(length, dtype=piece.dtype, device=piece.device)
    pieces, rank = _pieces(whole), dist.get_rank()
    if piece.numel() != pieces[rank].numel():
        raise CourseError(
            f"Rank {rank} brings a piece of {piece.numel()} elements, but of {length} elements its piece has "
            f"{pieces[rank].numel()}; cut the tensor by torch.tensor_split."
        )
    pieces[rank].copy_(piece.view(-1))
    with booked_as("all-gather") as ledger:
        _all_gather(pieces, ledger)
    return whole


def broadcast(tensor: torch.Tensor, owner: int) -> None:
    """Give every rank what rank `owner` has in `tensor`, in place: from neighbor to neighbor, around to the last.

    A rank sends the tensor once, but for the last one, which sends nothing.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    with booked_as("broadcast") as ledger, _flat(tensor) as flat:
        if rank != owner:
            _received(flat, ledger)
        if (rank + 1) % ranks != owner:
            _send(flat, ledger)


def reduce(tensor: torch.Tensor, owner: int) -> None:
    """Sum `tensor` over all ranks for rank `owner`: each adds its own to what comes, and sends that on.

    A rank sends the tensor once, but for the owner, which sends nothing. The others are left with sums of a part.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    with booked_as("reduce") as ledger, _flat(tensor) as flat:
        if (rank - 1) % ranks != owner:
            flat += _received(torch.empty_like(flat), ledger)
        if rank != owner:
            _send(flat, ledger)


@contextmanager
def _flat(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The elements in a row, which can be sent; what is done to them is done to `tensor`."""
    flat = tensor.contiguous().view(-1)
    yield flat
    if flat.data_ptr() != tensor.data_ptr():
        tensor.copy_(flat.view_as(tensor))


def _send(flat: torch.Tensor, ledger: Traffic) -> None:
    dist.send(flat, (dist.get_rank() + 1) % dist.get_world_size())
    ledger.note("message", flat.nbytes, 0, 1)


def _received(flat: torch.Tensor, ledger: Traffic) -> torch.Tensor:
    dist.recv(flat, (dist.get_rank() - 1) % dist.get_world_size())
    ledger.note("message", 0, flat.nbytes, 0)
    return flat


def _pieces(flat: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """One view for each rank, the longer ones first."""
    return flat.tensor_split(dist.get_world_size())


def _reduce_scatter(pieces: tuple[torch.Tensor, ...], ledger: Traffic) -> None:
    """Each piece goes once around and grows by what each rank has of it; the sum of piece r ends at rank r."""
    ranks, rank = len(pieces), dist.get_rank()
    for step in range(1, ranks):
        own = pieces[(rank - step - 1) % ranks]
        own += _exchanged(pieces[(rank - step) % ranks], torch.empty_like(own), ledger)


def _all_gather(pieces: tuple[torch.Tensor, ...], ledger: Traffic) -> None:
    """Each finished piece goes once around."""
    ranks, rank = len(pieces), dist.get_rank()
    for step in range(ranks - 1):
        _exchanged(pieces[(rank - step) % ranks], pieces[(rank - step - 1) % ranks], ledger)


def _exchanged(outgoing: torch.Tensor, incoming: torch.Tensor, ledger: Traffic) -> torch.Tensor:
    """Send to the next rank while the one before fills `incoming`."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    sending = dist.isend(outgoing, (rank + 1) % ranks)
    dist.irecv(incoming, (rank - 1) % ranks).wait()
    sending.wait()
    ledger.note("message", outgoing.nbytes, incoming.nbytes, 1)
    return incoming


def _require_alike(tensor: torch.Tensor) -> None:
    if found := first_other((list(tensor.shape), str(tensor.dtype).removeprefix("torch."))):
        rank, other, first = found
        raise CourseError(
            f"Rank {rank} brings {other[0]} of {other[1]} to a collective, rank 0 {first[0]} of {first[1]}; all ranks must "
            "bring the same."
        )
