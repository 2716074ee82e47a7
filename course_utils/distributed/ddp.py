"""Data parallelism: every rank has the whole module and a share of the batch; gradients are averaged (Li et al. 2020)."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd import Variable

from course_utils.distributed.agreement import require_alike
from course_utils.distributed.collectives import begin_all_reduce, require_way
from course_utils.errors import CourseError
from course_utils.units import MiB


class DDP(nn.Module):
    """`module` with gradients that are the mean over all ranks when `backward()` returns.

    Every rank begins with the parameters and buffers of rank 0. Gradients are averaged in buckets of about `bucket_bytes`,
    each as soon as its last gradient is there, while backward goes on. A parameter that some ranks do not use counts as a
    zero gradient there; one that no rank uses keeps what it has. Loss and batch shares should be alike: it is a plain mean.
    Backward must reach some parameter on every rank, else the others wait for it in vain.

    `by` is "torch" or "ring" (`collectives`). Raises `CourseError` where nothing is to be trained, or where the ranks' modules
    are not alike.
    """

    def __init__(self, module: nn.Module, bucket_bytes: int = 25 * MiB, by: str = "torch"):
        super().__init__()
        trained = [p for p in module.parameters() if p.requires_grad]
        if not trained:
            raise CourseError("No parameter of the module requires a gradient, so there is nothing to average.")
        self.module, self._by, self._averaging = module, require_way(by), True
        require_alike([*module.named_parameters(), *module.named_buffers()])
        for tensor in (*module.parameters(), *module.buffers()):
            dist.broadcast(tensor.detach(), 0)
        # Backward comes to the last layers first.
        self._buckets = [_Bucket(members, self._by) for members in in_buckets(reversed(trained), bucket_bytes)]
        self._running = False
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                parameter.register_post_accumulate_grad_hook(self._arrived(bucket))

    def forward(self, *args, **kwargs):
        """The module's own; what a failed backward pass left half done is dropped."""
        if self._running:
            self._end()
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes meanwhile only add to this rank's gradients; the next one outside averages the sum."""
        self._averaging = False
        try:
            yield
        finally:
            self._averaging = True

    def _arrived(self, bucket: "_Bucket") -> Callable[[torch.Tensor], None]:
        def hook(parameter: torch.Tensor) -> None:
            if not self._averaging:
                return
            if not self._running:
                self._running = True
                Variable._execution_engine.queue_callback(self._finish)
            bucket.arrived(parameter)
            self._begin(lambda each: each.is_full)

        return hook

    def _begin(self, ready: Callable[["_Bucket"], bool]) -> None:
        """Begin with buckets that are ready, one after the other: all ranks must take them in the same order."""
        for bucket in self._buckets:
            if not bucket.has_begun:
                if not ready(bucket):
                    return
                bucket.begin()

    def _finish(self) -> None:
        """At the end of the backward pass: what is left, and wait for all."""
        self._begin(lambda _: True)
        for bucket in self._buckets:
            bucket.finish()
        self._end()

    def _end(self) -> None:
        for bucket in self._buckets:
            bucket.reset()
        self._running = False


class _Bucket:
    """Parameters whose gradients travel together, each with a number that says whether this rank has one."""

    def __init__(self, parameters: list[nn.Parameter], by: str):
        self.parameters, self.by = parameters, by
        self.there, self.wait = set(), None

    @property
    def is_full(self) -> bool:
        return len(self.there) == len(self.parameters)

    @property
    def has_begun(self) -> bool:
        return self.wait is not None

    def arrived(self, parameter: torch.Tensor) -> None:
        if self.has_begun:
            raise CourseError(
                "A gradient came twice in one backward pass, after it had been sent: a re-entrant checkpoint uses a parameter "
                "several times; checkpoint by hooks (use_reentrant=False)."
            )
        self.there.add(id(parameter))

    def begin(self) -> None:
        gradients = [_or_zeros(p).reshape(-1) for p in self.parameters]
        has_one = [p.grad is not None for p in self.parameters]
        self.buffer = torch.cat([*gradients, gradients[0].new_tensor(has_one)])
        self.wait = begin_all_reduce(self.buffer, self.by)

    def finish(self) -> None:
        self.wait()
        sizes = [p.numel() for p in self.parameters]
        *means, owners = self.buffer.split([*sizes, len(sizes)])
        for parameter, mean, count in zip(self.parameters, means, owners.tolist(), strict=True):
            if count:
                parameter.grad = _or_zeros(parameter).copy_((mean / dist.get_world_size()).view_as(parameter))

    def reset(self) -> None:
        if self.has_begun:
            self.wait()
        self.there, self.buffer, self.wait = set(), None, None


def _or_zeros(parameter: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def in_buckets(parameters: Iterable[torch.Tensor], size: int) -> list[list[torch.Tensor]]:
    """In order; a bucket is closed when it has `size` bytes, and where the type or the device changes."""
    buckets, filled, kind = [], size, None
    for parameter in parameters:
        if filled >= size or (parameter.dtype, parameter.device) != kind:
            buckets.append([])
            filled, kind = 0, (parameter.dtype, parameter.device)
        buckets[-1].append(parameter)
        filled += parameter.nbytes
    return buckets
