"""A ring all-gather as a question may ask for it: right ones in several styles, and wrong ones whose values are right."""

RING = """
import torch.distributed as dist

def answer(piece):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    pieces = [piece.clone() for _ in range(ranks)]
    for step in range(ranks - 1):
        sending = dist.isend(pieces[(rank - step) % ranks], (rank + 1) % ranks)
        dist.recv(pieces[(rank - step - 1) % ranks], (rank - 1) % ranks)
        sending.wait()
    return torch.cat(pieces)
"""

RIGHT_RINGS = {
    "batched": (
        "sending = dist.isend(pieces[(rank - step) % ranks], (rank + 1) % ranks)\n"
        "        dist.recv(pieces[(rank - step - 1) % ranks], (rank - 1) % ranks)\n        sending.wait()",
        "out = dist.P2POp(dist.isend, pieces[(rank - step) % ranks], (rank + 1) % ranks)\n"
        "        into = dist.P2POp(dist.irecv, pieces[(rank - step - 1) % ranks], (rank - 1) % ranks)\n"
        "        [work.wait() for work in dist.batch_isend_irecv([out, into])]",
    ),
    "from whoever sends": (
        "dist.recv(pieces[(rank - step - 1) % ranks], (rank - 1) % ranks)",
        "dist.recv(pieces[(rank - step - 1) % ranks])",
    ),
    "waits for both": (
        "dist.recv(pieces[(rank - step - 1) % ranks], (rank - 1) % ranks)",
        "dist.irecv(pieces[(rank - step - 1) % ranks], (rank - 1) % ranks).wait()",
    ),
}

WRONG_RINGS = {
    "the library's": (
        "for step in range(ranks - 1):",
        "dist.all_gather(pieces, piece)\n    for step in []:",
        "`a vector · rank 0 · messages sent` is 0 but should be 2",
    ),
    "everything to everybody": (
        "for step in range(ranks - 1):",
        "for other in range(ranks):\n"
        "        if other != rank:\n"
        "            work = dist.isend(piece, other)\n"
        "            dist.recv(pieces[other], other)\n"
        "            work.wait()\n"
        "    for step in []:",
        "`a vector · rank 0 · ranks sent to` has the length 2 where 1 is expected",
    ),
    "one piece twice": (
        "sending.wait()",
        "sending.wait()\n    other = dist.isend(piece, (rank + 1) % ranks)\n"
        "    dist.recv(piece.clone(), (rank - 1) % ranks)\n    other.wait()",
        "`a vector · rank 0 · messages sent` is 3 but should be 2",
    ),
    "changes its argument": (
        "return torch.cat(pieces)",
        "piece.zero_()\n    return torch.cat(pieces)",
        "`a vector · rank 0 · arguments left as they were` is False but should be True",
    ),
    "wrong on the last rank": (
        "return torch.cat(pieces)",
        "return torch.cat(pieces) + (rank == ranks - 1)",
        "`a vector · rank 2 · result[0]` is ",
    ),
    "the other way around": (
        "(rank + 1) % ranks)\n        dist.recv(pieces[(rank - step - 1) % ranks], (rank - 1) % ranks)",
        "(rank - 1) % ranks)\n        dist.recv(pieces[(rank - step - 1) % ranks], (rank + 1) % ranks)",
        "`a vector · rank 0 · result",
    ),
}
