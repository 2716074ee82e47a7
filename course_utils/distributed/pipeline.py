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
        self.rank = dist.get_rank()
        self.last = dist.get_world_size() - 1

    def run(
        self, order: Sequence[tuple[str, int]], inputs: Sequence[Tensor], targets: Sequence[Tensor]
    ) -> list[Tensor]:
        """Gradients of the mean loss over all micro-batches, by this rank's `order` of ("F", i) and ("B", i), without any "W".

        All ranks take the backward passes in one order. The first rank reads `inputs`, the last one `targets`. Returns the losses
        there, in the order of their forward passes, elsewhere nothing.
        """
        in_flight, losses = {}, []
        sent_gradient = None
        for kind, i in order:
            if kind == "F":
                x = inputs[i] if self.rank == 0 else self.receive(i, self.rank - 1).requires_grad_()
                y = self.stage(x)
                sent_output = self.send(y.detach(), i, self.rank + 1) if self.rank < self.last else None
                if self.rank == self.last:
                    y = self.loss_of(y, targets[i]) / len(targets)
                    losses.append(y.detach() * len(targets))
                in_flight[i] = x, y, sent_output
            else:
                x, y, sent_output = in_flight.pop(i)
                y.backward(self.receive(i, self.rank + 1) if self.rank < self.last else None)
                wait_for(sent_output)  # its gradient has come back, so this costs nothing
                wait_for(sent_gradient)  # no more than one gradient is on its way
                sent_gradient = self.send(x.grad, i, self.rank - 1) if self.rank > 0 else None
        wait_for(sent_gradient)
        return losses

    def receive(self, i: int, rank: int) -> Tensor:
        """The tensor that `rank` sends for micro-batch i."""
        tensor = torch.empty(self.boundary, dtype=self.dtype)
        dist.recv(tensor, rank, tag=i)
        return tensor

    def send(self, tensor: Tensor, i: int, rank: int) -> tuple[dist.Work, Tensor]:
        """Begin to send, and go on; the tensor must be kept until it has arrived."""
        tensor = tensor.contiguous()
        return dist.isend(tensor, rank, tag=i), tensor


def wait_for(message: tuple[dist.Work, Tensor] | None) -> None:
    """Wait until a message has arrived, if there is one."""
    if message is not None:
        work, _ = message
        work.wait()
