"""A pipeline: every rank has a stage, some blocks of the model, and passes its output on to the next."""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn


class Pipeline:
    """This rank's `stage` of a model with as many stages as there are ranks.

    `boundary` is the shape of what goes from stage to stage for one micro-batch, `dtype` its type. The last rank works out
    `loss_of(output, target)`.
    """

    def __init__(
        self, stage: nn.Module, boundary: Sequence[int], dtype: torch.dtype, loss_of: Callable[[Tensor, Tensor], Tensor]
    ):
        self.stage, self.boundary, self.dtype, self.loss_of = stage, boundary, dtype, loss_of
        self.rank, self.last = dist.get_rank(), dist.get_world_size() - 1

    def run(
        self, order: Sequence[tuple[str, int]], inputs: Sequence[Tensor], targets: Sequence[Tensor]
    ) -> list[Tensor]:
        """Gradients of the mean loss over all micro-batches, by this rank's `order` of ("F", i) and ("B", i), without any "W".

        All ranks take the backward passes in one order. The first rank reads `inputs`, the last one `targets`. Returns the losses
        there, in the order of their forward passes, elsewhere nothing.
        """
        held, losses, back = {}, [], None
        for kind, i in order:
            if kind == "F":
                x = inputs[i] if self.rank == 0 else self.receive(i, self.rank - 1).requires_grad_()
                y, there = self.stage(x), None
                if self.rank < self.last:
                    there = self.send(y.detach(), i, self.rank + 1)
                else:
                    y = self.loss_of(y, targets[i]) / len(targets)
                    losses.append(y.detach() * len(targets))
                held[i] = x, y, there
            else:
                x, y, there = held.pop(i)
                y.backward(self.receive(i, self.rank + 1) if self.rank < self.last else None)
                arrived(there)  # its gradient has come back, so this costs nothing
                arrived(back)  # no more than one gradient is on its way
                back = self.send(x.grad, i, self.rank - 1) if self.rank > 0 else None
        arrived(back)
        return losses

    def receive(self, i: int, rank: int) -> Tensor:
        """The tensor that `rank` sends for micro-batch i."""
        came = torch.empty(self.boundary, dtype=self.dtype)
        dist.recv(came, rank, tag=i)
        return came

    def send(self, tensor: Tensor, i: int, rank: int) -> tuple[dist.Work, Tensor]:
        """Begin to send, and go on; the tensor must be kept until it has arrived."""
        tensor = tensor.contiguous()
        return dist.isend(tensor, rank, tag=i), tensor


def arrived(message: tuple[dist.Work, Tensor] | None) -> None:
    """Wait until the message has arrived."""
    if message is not None:
        message[0].wait()
