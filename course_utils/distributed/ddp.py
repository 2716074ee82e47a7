"""Data parallelism: every rank has the whole module and a share of the batch; gradients are averaged (Li et al. 2020)."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable


class DDP(nn.Module):
    """`module` whose gradients are the mean over all ranks when `backward()` returns.

    Every rank starts with rank 0's parameters and buffers. Gradients travel in buckets of about `bucket_bytes`. A bucket is
    sent while backward goes on, as soon as its last gradient is there and those before it are sent. A parameter that backward
    does not reach counts as zero.
    """

    def __init__(self, module: nn.Module, bucket_bytes: int = 25 * 2**20):
        super().__init__()
        self.module = module
        self.synchronizes = True
        self.backward_has_begun = False
        for tensor in (*module.parameters(), *module.buffers()):
            dist.broadcast(tensor.detach(), 0)
        trainable = [p for p in module.parameters() if p.requires_grad]
        # Backward reaches the last layers first.
        self.buckets = [Bucket(parameters) for parameters in split_into_buckets(reversed(trainable), bucket_bytes)]
        for bucket in self.buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(partial(self._gradient_is_ready, bucket))

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, gradients only add up on this rank; the next backward pass outside averages the sum."""
        self.synchronizes = False
        try:
            yield
        finally:
            self.synchronizes = True

    def _gradient_is_ready(self, bucket: "Bucket", parameter: torch.Tensor) -> None:
        if not self.synchronizes:
            return
        if not self.backward_has_begun:
            self.backward_has_begun = True
            Variable._execution_engine.queue_callback(self._finish)  # torch has no public way
        bucket.missing -= 1
        self._send()

    def _send(self, also_incomplete: bool = False) -> None:
        """Send complete buckets, in the order of the list: all ranks must call the same all-reduces in the same order."""
        for bucket in self.buckets:
            if bucket.work is None:
                if bucket.missing and not also_incomplete:
                    return
                bucket.begin_average()

    def _finish(self) -> None:
        """At the end of backward: send what is left, and wait for all."""
        self._send(also_incomplete=True)
        for bucket in self.buckets:
            bucket.end_average()
        self.backward_has_begun = False


class Bucket:
    """Parameters whose gradients travel in one all-reduce. `missing` gradients are not there yet."""

    def __init__(self, parameters: list[nn.Parameter]):
        self.parameters = parameters
        self.missing = len(parameters)
        self.work = None

    def begin_average(self) -> None:
        """Copy the gradients end to end and begin to sum them over the ranks."""
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.flat = torch.cat([parameter.grad.reshape(-1) for parameter in self.parameters])
        self.work = dist.all_reduce(self.flat, async_op=True)

    def end_average(self) -> None:
        """Wait for the sum, and copy the mean back."""
        self.work.wait()
        self.flat /= dist.get_world_size()
        means = self.flat.split([parameter.numel() for parameter in self.parameters])
        for parameter, mean in zip(self.parameters, means, strict=True):
            parameter.grad.copy_(mean.view_as(parameter))
        self.missing = len(self.parameters)
        self.flat = self.work = None


def split_into_buckets(tensors: Iterable[torch.Tensor], bucket_bytes: int) -> list[list[torch.Tensor]]:
    """The tensors in their order, in lists that are closed once they hold `bucket_bytes`."""
    buckets = []
    size = bucket_bytes
    for tensor in tensors:
        if size >= bucket_bytes:
            buckets.append([])
            size = 0
        buckets[-1].append(tensor)
        size += tensor.nbytes
    return buckets
