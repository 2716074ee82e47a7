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
        self.under_way: dict[int, tuple[dist.Work, Tensor]] = {}

    def run(
        self, order: Sequence[tuple[str, int]], inputs: Sequence[Tensor], targets: Sequence[Tensor]
    ) -> list[Tensor]:
        """Gradients of the mean loss over all micro-batches, by this rank's `order` of ("F", i) and ("B", i).

        The first rank reads `inputs`, the last one `targets`. Returns the losses there, elsewhere nothing.
        """
        held, losses = {}, []
        for kind, i in order:
            if kind == "F":
                x = inputs[i] if self.rank == 0 else self.receive(self.rank - 1).requires_grad_()
                y = self.stage(x)
                if self.rank < self.last:
                    self.send(y.detach(), self.rank + 1)
                else:
                    y = self.loss_of(y, targets[i]) / len(targets)
                    losses.append(y.detach() * len(targets))
                held[i] = x, y
            else:
                x, y = held.pop(i)
                y.backward(self.receive(self.rank + 1) if self.rank < self.last else None)
                if self.rank > 0:
                    self.send(x.grad, self.rank - 1)
        for work, _ in self.under_way.values():
            work.wait()
        self.under_way.clear()
        return losses

    def receive(self, rank: int) -> Tensor:
        """What that rank sends next."""
        came = torch.empty(self.boundary, dtype=self.dtype)
        dist.recv(came, rank)
        return came

    def send(self, tensor: Tensor, rank: int) -> None:
        """Send and go on; only the message before must have arrived, so that no more than one waits on each link."""
        if rank in self.under_way:
            self.under_way[rank][0].wait()
        tensor = tensor.contiguous()
        self.under_way[rank] = dist.isend(tensor, rank), tensor  # kept until it has arrived
