"""Local SGD: every rank trains alone for H steps, then the ranks go on from the mean of their parameters.

Called parameter averaging, federated averaging (McMahan et al. 2017) or local SGD (Stich 2019); with an outer optimizer that
treats a round as one large gradient step, DiLoCo (Douillard et al. 2023). Symbols: N ranks, P parameters, H local steps
between two averages; outer learning rate η, outer momentum μ.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._pytree import tree_leaves

from course_utils.distributed.agreement import first_other, require_alike
from course_utils.distributed.collectives import begin_all_reduce, require_way
from course_utils.distributed.ddp import in_buckets
from course_utils.distributed.traffic import unbooked
from course_utils.errors import CourseError
from course_utils.units import MiB

STATES = ("keep", "average", "reset")


@dataclass(frozen=True)
class Outer:
    """Nesterov momentum over rounds (Douillard et al. 2023, algorithm 1): the defaults are the paper's.

    With Δ, the parameters at the last average less their mean now, as the gradient: u ← μ u + Δ, θ ← θ − η (Δ + μ u).
    `Outer(rate=1, momentum=0)` is plain averaging. Raises `CourseError` for a rate not above 0 or a momentum outside 0 … 1.
    """

    rate: float = 0.7
    momentum: float = 0.9

    def __post_init__(self):
        if self.rate <= 0 or not 0 <= self.momentum < 1:
            raise CourseError(
                f"An outer step with rate={self.rate} and momentum={self.momentum} does not converge; "
                "give a rate above 0 and a momentum from 0 to below 1."
            )

    def step(self, start: torch.Tensor, mean: torch.Tensor, velocity: torch.Tensor) -> None:
        """Move `start` and `velocity` by one round, in place; `mean` is that of the ranks at its end."""
        delta = start - mean
        velocity.mul_(self.momentum).add_(delta)
        start.sub_(self.rate * (delta + self.momentum * velocity))


class LocalSGD:
    """Averages what an optimizer trains over all ranks, after every `every` calls of `step`.

    - `trained` is the optimizer, a module, or parameters; those that require no gradient are left alone.
    - `state` says what becomes of the optimizer's state (momentum, Adam's m and v) at an average: "keep" leaves each rank its
      own; "average" takes the mean, and sends it too; "reset" drops it. The last two need the optimizer as `trained`.
    - `also` are other tensors to be averaged, such as `module.buffers()`; of them whole numbers stay as they are.
    - `outer` is an `Outer`, to step from the last average towards the mean; it keeps two more copies of the parameters.

    Every rank begins with what rank 0 has of these; of a module with all of it, frozen parameters and buffers too. `every`
    may be changed on the way, on all ranks alike: 1 at first and more later is post-local SGD (Lin et al. 2020). After the
    last step call `finish`. `by` is "torch" or "ring".
    What is trained is what requires a gradient now. Raises `CourseError` for settings that cannot be, and where ranks bring
    other tensors.
    """

    def __init__(
        self,
        trained: torch.optim.Optimizer | nn.Module | Iterable[torch.Tensor],
        every: int,
        *,
        state: str = "keep",
        also: Iterable[torch.Tensor] = (),
        outer: Outer | None = None,
        by: str = "torch",
        bucket_bytes: int = 25 * MiB,
    ):
        self._optimizer = trained if isinstance(trained, torch.optim.Optimizer) else None
        self.parameters = _trained(trained)
        self._check(every, state)
        self.every, self.since, self._state, self.outer = every, 0, state, outer
        self._by, self._bucket_bytes = require_way(by), bucket_bytes
        self._also = [tensor for tensor in also if tensor.is_floating_point()]
        whole = (*trained.parameters(), *trained.buffers()) if isinstance(trained, nn.Module) else self.parameters
        named = enumerate((*whole, *self._also))
        require_alike((f"tensor {number}, averaged every {every} steps,", tensor) for number, tensor in named)
        for tensor in (*whole, *self._also):
            dist.broadcast(tensor.detach(), 0)
        self._start = [p.detach().clone() for p in self.parameters] if outer else []
        self._velocity = [torch.zeros_like(start) for start in self._start]

    def step(self) -> bool:
        """Call after every step of the optimizer; True where the ranks have averaged."""
        self.since += 1
        if self.since < self.every:
            return False
        self.average()
        return True

    def finish(self) -> None:
        """Average what a last, shorter round has left apart; nothing where no step was made since."""
        if self.since:
            self.average()

    @torch.no_grad()
    def average(self) -> None:
        """End the round now: all ranks must call it."""
        mean_over_ranks([*self.parameters, *self._also, *self._averaged_state()], self._by, self._bucket_bytes)
        if self._state == "reset":
            self._optimizer.state.clear()
        if self.outer:
            self._step_outward()
        self.since = 0

    def state_dict(self) -> dict:
        """Where in the round this rank is, and the outer step's two copies. The parameters are not in it."""
        return {"since": self.since, "start": list(self._start), "velocity": list(self._velocity)}

    def load_state_dict(self, state: dict) -> None:
        """Take over what `state_dict` gave on this rank; raises `CourseError` where it is another model's."""
        for name, own in (("start", self._start), ("velocity", self._velocity)):
            if [t.shape for t in state[name]] != [t.shape for t in own]:
                raise CourseError("The state of local SGD is another model's, or one of another `outer`; load its own.")
            for tensor, saved in zip(own, state[name], strict=True):
                tensor.copy_(saved)
        self.since = state["since"]

    def _step_outward(self) -> None:
        for parameter, start, velocity in zip(self.parameters, self._start, self._velocity, strict=True):
            self.outer.step(start, parameter, velocity)
            parameter.copy_(start)

    def _averaged_state(self) -> list[torch.Tensor]:
        if self._state != "average":
            return []
        states = [tree_leaves(self._optimizer.state.get(p, {})) for p in self.parameters]
        states = [[leaf for leaf in leaves if isinstance(leaf, torch.Tensor)] for leaves in states]
        _require_alike([[tensor.numel() for tensor in of_one] for of_one in states])
        tensors = [tensor for of_one in states for tensor in of_one]
        if any(not tensor.is_floating_point() for tensor in tensors):
            raise CourseError(
                "The optimizer's state is no plain numbers (8-bit codes have no mean); keep it on each rank with state='keep'."
            )
        return tensors

    def _check(self, every: int, state: str) -> None:
        if not self.parameters:
            raise CourseError("No parameter requires a gradient, so there is nothing to average.")
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise CourseError(f"Averaging every {every!r} steps makes no sense; use a whole number from 1 on.")
        if state not in STATES:
            raise CourseError(f"The optimizer's state can be {', '.join(STATES)}, not {state!r}.")
        if state != "keep" and self._optimizer is None:
            raise CourseError(f"To {state} the optimizer's state, give LocalSGD the optimizer, not its parameters.")


@torch.no_grad()
def mean_over_ranks(tensors: Sequence[torch.Tensor], by: str = "torch", bucket_bytes: int = 25 * MiB) -> None:
    """Replace `tensors` by their means over all ranks, in place, sent in buckets of about `bucket_bytes`.

    A rank sends 2(N − 1)/N of their bytes.
    """
    for bucket in in_buckets(tensors, bucket_bytes):
        flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
        begin_all_reduce(flat, by)()
        flat /= dist.get_world_size()
        for tensor, mean in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
            tensor.copy_(mean.view_as(tensor))


@torch.no_grad()
def drift(parameters: Iterable[torch.Tensor]) -> float:
    """How far this rank is from the mean of all: ‖θ − mean θ‖. For looking on; what it sends is in no ledger."""
    own = torch.cat([p.reshape(-1) for p in parameters])
    mean = own.clone()
    with unbooked():
        mean_over_ranks([mean])
    return float((own - mean).norm())


def _trained(trained) -> list[torch.Tensor]:
    if isinstance(trained, torch.optim.Optimizer):
        trained = [p for group in trained.param_groups for p in group["params"]]
    elif isinstance(trained, nn.Module):
        trained = trained.parameters()
    return list(dict.fromkeys(p for p in trained if p.requires_grad))  # a tied one may be listed twice


def _require_alike(sizes: list[list[int]]) -> None:
    """Raise on every rank where one has state that another lacks."""
    if found := first_other(sizes):
        raise CourseError(
            f"Rank {found[0]} has optimizer state for other parameters than rank 0, as when only one of them used a layer; "
            "average the parameters alone, with state='keep' or 'reset'."
        )
