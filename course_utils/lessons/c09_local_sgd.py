"""Chapter 09: the ring turn by turn, ranks that keep together by one strategy or another, and their seconds."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn

from course_utils.distributed import DDP, QSGD, LocalSGD, counted, ring
from course_utils.distributed.local_sgd import average_over_ranks, drift
from course_utils.distributed.torchrun import announce
from course_utils.distributed.traffic import uncounted

BATCH = 16


def ring_on_rank() -> list[list[str]]:
    """To be launched: run the ring by hand on one element for each rank, and note after each turn whose parts each element holds.

    Rank r brings 2ʳ, so a sum in binary says who is in it: "02" are the parts of ranks 0 and 2. The first list is from before
    the first turn.
    """
    ranks = dist.get_world_size()
    tensor = torch.full((ranks,), 2.0 ** dist.get_rank())
    turns = []
    exchange = ring.exchange

    def note_parts() -> None:
        turns.append(["".join(str(r) for r in range(ranks) if int(value) >> r & 1) for value in tensor])

    def note_and_exchange(outgoing: torch.Tensor, incoming: torch.Tensor) -> torch.Tensor:
        note_parts()
        return exchange(outgoing, incoming)

    with patch.object(ring, "exchange", note_and_exchange):
        ring.all_reduce(tensor)
    note_parts()
    return turns


def average_seconds_on_rank(elements: int, times: int = 5) -> dict[str, float]:
    """To be launched on two ranks: seconds of an average of `elements` float32, and of what it does in part.

    "one way, by 8 MiB" sends in messages as short as `hardware.calibrate()` takes. "both ways" is what a ring of two sends:
    two messages of half the tensor from each rank, both at the same time.
    """
    rank = dist.get_rank()
    tensor = torch.ones(elements)
    answer = torch.ones(1)
    half = tensor[: elements // 2]
    incoming = torch.empty(elements // 2)

    def send_one_way(max_elements: int = elements) -> None:
        for piece in tensor.split(max_elements):
            for message, receiver in ((piece, 1), (answer, 0)):  # the answer says that all has come
                dist.recv(message, 1 - rank) if rank == receiver else dist.send(message, 1 - rank)

    def send_both_ways() -> None:
        for _ in range(2):
            ring.exchange(half, incoming)

    parts = {
        "send, one way": send_one_way,
        "one way, by 8 MiB": partial(send_one_way, 2**21),
        "send, both ways": send_both_ways,
        "sum around the ring": lambda: ring.all_reduce(tensor),
        "torch's all-reduce": lambda: dist.all_reduce(tensor),
        "average of parameters": lambda: average_over_ranks([tensor]),
    }
    return {name: _median_seconds(part, times) for name, part in parts.items()}


def _median_seconds(call: Callable[[], object], times: int) -> float:
    """The median over `times` calls after a first one; all ranks begin each together."""
    seconds = []
    for _ in range(times + 1):
        dist.barrier()
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


@dataclass(frozen=True)
class RunPlan:
    """How a rank trains; `finish` and `same_start` are slips where they are False.

    `strategy` keeps ranks together: DDP, or LocalSGD or QSGD with options, as `partial(LocalSGD, sync_every=20)`. Without
    `same_start` each rank begins with parameters of its own, put there after the strategy has made them equal.
    """

    make_optimizer: Callable  # takes the parameters
    steps: int
    strategy: Callable = DDP
    finish: bool = True  # else a last, shorter round stays apart
    same_start: bool = True
    loss_interval: int = 40  # steps, after which the mean of the ranks is judged
    note_drift: bool = False  # after every step
    seed: int = 0  # of the batches


@dataclass
class RankHistory:
    """What came of a plan on one rank: `losses`, `sent` and `messages` are as of each of `steps`."""

    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)  # of the mean of the ranks
    sent: list[int] = field(default_factory=list)  # bytes that each rank had sent by then
    messages: list[int] = field(default_factory=list)
    drifts: list[tuple[int, float]] = field(default_factory=list)  # step and distance to the mean, around each average
    own_loss: float = 0.0  # of this rank, at the end


class CostOfLoss(NamedTuple):
    """What a rank had spent when a loss was reached."""

    step: int
    sent: int  # bytes
    messages: int


def cost_of_a_loss(run: RankHistory, level: float) -> CostOfLoss:
    """Cost of the first average after which no average has a loss above `level`."""
    before = [0, *run.sent]
    averages = [i for i in range(len(run.losses)) if run.sent[i] > before[i]]
    last_above = max((i for i in averages if run.losses[i] > level), default=-1)
    first = next(i for i in averages if i > last_above)
    return CostOfLoss(run.steps[first], run.sent[first], run.messages[first])


def train_on_rank(
    build: Callable, kinds: Mapping, evaluate_on: tuple, plans: Mapping[str, RunPlan]
) -> dict[str, dict[str, RankHistory]]:
    """To be launched: trains by every plan on this rank's share of each kind of data, from the same beginning.

    `kinds` are shares by name, one for each rank: (inputs, labels), with a row each, as is `evaluate_on`. `build` makes a
    classifier, the same on all ranks. Returns a `RankHistory` by kind and plan.
    """
    rank = dist.get_rank()
    return {
        kind: {name: train_by_plan(plan, build(), shares[rank], evaluate_on) for name, plan in plans.items()}
        for kind, shares in kinds.items()
    }


def train_by_plan(plan: RunPlan, model: nn.Module, share: tuple, evaluate_on: tuple) -> RankHistory:
    """Trains `model` on this rank as the plan says."""
    run = RankHistory()
    draw = torch.Generator().manual_seed(plan.seed * dist.get_world_size() + dist.get_rank())
    optimizer = plan.make_optimizer(model.parameters())
    with uncounted():
        hooks = keep_together(plan.strategy, model, optimizer)
    if not plan.same_start:
        torch.manual_seed(1 + dist.get_rank())
        for module in model.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
    if plan.note_drift:
        run.drifts.append((0, drift(model.parameters())))
    with counted() as traffic:
        for step in range(1, plan.steps + 1):
            hooks.step(optimizer, share, torch.randint(len(share[1]), (BATCH,), generator=draw))
            if plan.note_drift:
                run.drifts.append((step, drift(model.parameters())))
            if hooks.after_update():
                run.drifts.append((step, 0.0))
            if step == plan.steps and plan.finish:
                hooks.finish()
            if step % plan.loss_interval == 0 or step == plan.steps:
                run.steps.append(step)
                run.sent.append(traffic.sent)
                run.messages.append(traffic.messages)
                run.losses.append(loss_of_mean(model, evaluate_on))
    with torch.no_grad():
        run.own_loss = nn.functional.cross_entropy(model(evaluate_on[0]), evaluate_on[1]).item()
    return run


class Hooks(NamedTuple):
    """What a strategy does in a step; `after_update` returns whether it averaged."""

    forward: Callable
    after_backward: Callable = lambda: None
    after_update: Callable[[], bool] = lambda: False
    finish: Callable = lambda: None

    def step(self, optimizer: torch.optim.Optimizer, share: tuple, rows: torch.Tensor | slice) -> None:
        """Forward, backward and update on these rows of a rank's share."""
        inputs, labels = share
        nn.functional.cross_entropy(self.forward(inputs[rows]), labels[rows]).backward()
        self.after_backward()
        optimizer.step()
        optimizer.zero_grad()


def keep_together(strategy: Callable, model: nn.Module, optimizer: torch.optim.Optimizer) -> Hooks:
    """The hooks of a strategy as in `RunPlan`."""
    kind = getattr(strategy, "func", strategy)
    if kind is LocalSGD:
        local = strategy(optimizer)
        return Hooks(model, after_update=local.step, finish=local.finish)
    if kind is QSGD:
        return Hooks(model, after_backward=strategy(model.parameters()).average)
    return Hooks(strategy(model))


def step_seconds_on_rank(
    build: Callable, shares: Sequence, make_optimizer: Callable, strategies: Mapping[str, Callable | None], steps: int
) -> dict[str, float]:
    """To be launched: seconds of a step by strategy, with its part of the averages; and those of one "average", by itself.

    A strategy is as in `RunPlan`, or None for a rank that trains alone. The median of three runs of `steps` steps, in turns.
    """
    share = shares[dist.get_rank()]
    seconds = {name: [] for name in (*strategies, "average")}
    for _ in range(4):
        for name, strategy in strategies.items():
            model = build()
            optimizer = make_optimizer(model.parameters())
            hooks = keep_together(strategy, model, optimizer) if strategy else Hooks(model)
            dist.barrier()
            start = time.perf_counter()
            for i in range(steps):
                hooks.step(optimizer, share, _slice_rows(i))
                hooks.after_update()
            hooks.finish()
            seconds[name].append((time.perf_counter() - start) / steps)
        seconds["average"].append(_median_seconds(partial(average_over_ranks, list(model.parameters())), 20))
    return {name: statistics.median(runs[1:]) for name, runs in seconds.items()}


def waiting_on_rank(
    build: Callable, shares: Sequence, make_optimizer: Callable, periods: Sequence[int], steps: int
) -> dict[int, tuple[float, float]]:
    """To be launched: by H, the mean seconds before an average in which this rank waits for the others, and of the average.

    A barrier before each average keeps the two apart. The median of three runs of `steps` steps, in turns.
    """
    share = shares[dist.get_rank()]
    waits = {h: [] for h in periods}
    averages = {h: [] for h in periods}
    for _, h in product(range(4), periods):
        model = build()
        hooks = Hooks(model)
        parameters = list(model.parameters())
        optimizer = make_optimizer(parameters)
        waited = averaged = 0.0
        dist.barrier()
        for i in range(steps):
            hooks.step(optimizer, share, _slice_rows(i))
            if (i + 1) % h == 0:
                arrived = time.perf_counter()
                dist.barrier()
                synchronized = time.perf_counter()
                average_over_ranks(parameters)
                waited += synchronized - arrived
                averaged += time.perf_counter() - synchronized
        waits[h].append(waited / (steps // h))
        averages[h].append(averaged / (steps // h))
    return {h: (statistics.median(waits[h][1:]), statistics.median(averages[h][1:])) for h in periods}


def _slice_rows(step: int) -> slice:
    """A batch of a share's first 512 rows, which come again and again."""
    first = BATCH * step % 512
    return slice(first, first + BATCH)


@torch.no_grad()
def loss_of_mean(model: nn.Module, evaluate_on: tuple) -> float:
    """The loss that the mean of the ranks' parameters has; what this sends is not counted."""
    parameters = list(model.parameters())
    own_parameters = [p.clone() for p in parameters]
    with uncounted():
        average_over_ranks(parameters)
    loss = nn.functional.cross_entropy(model(evaluate_on[0]), evaluate_on[1]).item()
    for parameter, before in zip(parameters, own_parameters, strict=True):
        parameter.copy_(before)
    return loss


def accelerate_on_rank(
    build: Callable,
    shares: Sequence,
    micro_batches: int,
    k: int,
    interval: int,
    announced: bool = True,
    per_update: bool = True,
) -> dict:
    """To be launched: Accelerate's LocalSGD around `micro_batches` of 16 rows in updates of `k`, with SGD.

    `announced` says whether Accelerate is told that it is one rank of several; `per_update` whether its `step` is called
    after each update or, as in its guide, after each micro-batch. Returns the rank's `parameters`, its `kind` of
    distribution, and by collective the `counts`: calls and bytes sent.
    """
    if announced:
        announce()
    from accelerate import Accelerator
    from accelerate.local_sgd import LocalSGD as TheirLocalSGD

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=k)
    model = build()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    inputs, labels = shares[dist.get_rank()]
    with counted() as traffic, TheirLocalSGD(accelerator=accelerator, model=model, local_sgd_steps=interval) as local:
        for rows in torch.arange(16 * micro_batches).split(16):
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.cross_entropy(model(inputs[rows]), labels[rows]))
                optimizer.step()
                optimizer.zero_grad()
                if accelerator.sync_gradients or not per_update:
                    local.step()
    parameters = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    return {"parameters": parameters, "kind": str(accelerator.distributed_type), "counts": traffic.frame()}
