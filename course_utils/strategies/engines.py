"""One interface to the ways in which torch shares training out over ranks."""

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from course_utils.distributed import LocalSGD, OuterNesterov
from course_utils.elastic import ElasticRounds
from course_utils.errors import CourseError
from course_utils.memory.sharded import share_state, units_of

Make = Callable[[nn.Module], Optimizer]


class Alone:
    """One process; and what every engine has.

    `plain` is the module by its own names, `model` what is called. `averages`: the library takes the mean of the ranks'
    gradients. `of_one_model`: the ranks train one model together at every step. `opaque`: the library keeps the state in a form
    of its own, so it writes and reads checkpoints itself, by `write` and `read`, and nobody else counts its bytes.
    `casts_itself`: it needs no `torch.autocast` around the model. `norm` is that of the last update's gradients before they were
    clipped, nan where they are not.
    """

    averages, of_one_model, opaque, casts_itself = False, True, False, False
    norm: torch.Tensor | float = math.nan

    def __init__(self, plain: nn.Module, make: Make, **_):
        self.plain = self.model = plain
        self.optimizer = make(plain)

    @property
    def keeps_counts_on_device(self) -> bool:
        """Whether step counts lie beside the parameters, as torch has them for what is fused or captured in a graph."""
        return any(group.get("fused") or group.get("capturable") for group in self.optimizer.param_groups)

    def begin(self, step: int) -> int:
        """Before the first update, when a checkpoint of update `step` (0: none) is loaded; the update to go on after."""
        return step

    def around(self, is_last: bool) -> AbstractContextManager:
        """A context for one micro-batch, forward and backward; `is_last`: an update follows it."""
        return nullcontext()

    def backward(self, loss: torch.Tensor) -> None:
        """Gradients of a micro-batch, added to those before it."""
        loss.backward()

    def clip(self, most: float) -> None:
        """Shorten the gradients of the coming update to a norm of `most`."""
        self.norm = nn.utils.clip_grad_norm_(self.plain.parameters(), most)

    def update(self, step: Callable[[], object], number: int) -> int:
        """Update `number`, counted from 1, by `step`; the gradients are dropped. Returns the update to go on after."""
        step()
        self.optimizer.zero_grad()
        return number

    def finish(self, number: int) -> None:
        """After the last update, `number`."""

    def close(self) -> None:
        """At the end, also after an error."""

    def state(self) -> Iterator[tuple[nn.Parameter, dict]]:
        """By parameter what the optimizer keeps on this rank, to be read and to be filled."""
        kept = self.optimizer.state
        return ((p, kept.get(p, {})) for group in self.optimizer.param_groups for p in group["params"])

    def set_state(self, parameter: nn.Parameter, kept: dict) -> None:
        """Put back what was kept for a parameter."""
        for each in getattr(self.optimizer, "optimizers", [self.optimizer]):
            if any(parameter is one for group in each.param_groups for one in group["params"]):
                each.state[parameter] = kept

    def more_state(self) -> dict[str, torch.Tensor]:
        """What else must be kept, by name, to be filled in place."""
        return {}


class Ddp(Alone):
    """`DistributedDataParallel` (Li et al. 2020): gradients travel once an update."""

    averages = True

    def __init__(self, plain, make, **_):
        super().__init__(plain, make)
        self.model = DistributedDataParallel(plain)

    def around(self, is_last):
        return nullcontext() if is_last else self.model.no_sync()


class Zero1(Ddp):
    """The same, and `ZeroRedundancyOptimizer`: every rank updates its own share of the parameters (Rajbhandari et al. 2020)."""

    def __init__(self, plain, make, **_):
        self.plain, self.model = plain, DistributedDataParallel(plain)
        self.optimizer = share_state(make(plain))

    def state(self):
        own = self.optimizer.optim
        return ((p, own.state.get(p, {})) for group in own.param_groups for p in group["params"])

    def set_state(self, parameter, kept):
        self.optimizer.optim.state[parameter] = kept


class Fsdp2(Alone):
    """`fully_shard` around every block and the whole, as ZeRO-3; with `replicas` in so many groups that hold everything each."""

    averages, casts_itself = True, True

    def __init__(self, plain, make, *, device: torch.device, halves: bool, replicas: int = 1, **_):
        ranks = dist.get_world_size()
        shape = (replicas, ranks // replicas) if replicas > 1 else (ranks,)
        mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replicas", "shards")[-len(shape) :])
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if halves else MixedPrecisionPolicy()
        for unit in [*units_of(plain), plain]:
            fully_shard(unit, mesh=mesh, mp_policy=policy)
        super().__init__(plain, make)


class Rounds(Alone):
    """Every rank trains alone, and all go on from their mean after every `sync_every` updates (Stich 2019)."""

    of_one_model, outer = False, None

    def __init__(self, plain, make, *, sync_every: int, **_):
        super().__init__(plain, make)
        self.rounds = LocalSGD(self.optimizer, sync_every, outer_optimizer=self.outer)

    def begin(self, step):
        refuse_half_a_round(step, self.rounds.sync_every)
        return step

    def update(self, step, number):
        super().update(step, number)
        self.rounds.step()
        return number

    def finish(self, number):
        self.rounds.finish()


class DiLoCo(Rounds):
    """The same with an outer optimizer, for which a round is one gradient (Douillard et al. 2023)."""

    outer = OuterNesterov()

    def more_state(self):
        names = {parameter: name for name, parameter in self.plain.named_parameters()}
        places = zip(self.rounds.parameters, self.rounds.start, self.rounds.velocity, strict=True)
        found = [(f"{names[p]}.start", start, f"{names[p]}.velocity", velocity) for p, start, velocity in places]
        return {key: value for row in found for key, value in (row[:2], row[2:])}


class Members(Alone):
    """Rounds of processes that may die and come back, each a `member` of those that meet at `store` (`elastic`)."""

    of_one_model = False

    def __init__(self, plain, make, *, sync_every: int, store: str, member: str, is_diloco: bool, say: Callable, **_):
        super().__init__(plain, make)
        trained = [p for p in plain.parameters() if p.requires_grad]
        outer = OuterNesterov() if is_diloco else None
        self.sync_every, self.rounds = sync_every, ElasticRounds(store, member, trained, outer_optimizer=outer)
        self.say, self.known = say, []

    def begin(self, step):
        refuse_half_a_round(step, self.sync_every)
        state = self.rounds.state() | {"round": step // self.sync_every, "step": step}
        there = self.rounds.join(state if step else None)["step"]
        if there > step:
            self.say(f"The others have made {there} updates, and their state is taken over.")
        self._say_who_is_there()
        return there

    def _say_who_is_there(self) -> None:
        if self.rounds.members != self.known:
            self.known = self.rounds.members
            self.say(f"Round {self.rounds.round + 1} begins with {', '.join(sorted(self.known))}.")

    def update(self, step, number):
        super().update(step, number)
        if number - self.rounds.step < self.sync_every:
            return number
        self.finish(number)
        return self.rounds.step

    def finish(self, number):
        if number > self.rounds.step:
            self.rounds.average(number - self.rounds.step)
            self._say_who_is_there()

    def close(self):
        self.rounds.leave()

    def more_state(self):
        return {"start": self.rounds.start, "velocity": self.rounds.velocity}


def refuse_half_a_round(step: int, sync_every: int) -> None:
    """Raises `CourseError` where a run ended with a shorter round: those after it would average at other updates."""
    if step % sync_every:
        raise CourseError(
            f"The run ended with update {step}, in the middle of a round of {sync_every}, and cannot be made longer; give "
            "another --out."
        )


ENGINES: dict[str, type[Alone]] = {
    "none": Alone,
    "ddp": Ddp,
    "zero1": Zero1,
    "fsdp2": Fsdp2,
    "hsdp": Fsdp2,
    "local-sgd": Rounds,
    "diloco": DiLoCo,
}
