"""Ranks that train on shares of the data and keep together in one way or another: what each way costs and gives."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn

from course_utils.distributed import DDP, LocalSGD, Outer, Traffic, counted
from course_utils.distributed.local_sgd import drift, mean_over_ranks
from course_utils.distributed.torchrun import announce
from course_utils.distributed.traffic import unbooked


@dataclass(frozen=True)
class Plan:
    """How a rank trains: `optimizer(parameters)`, `steps` batches of `batch` rows, and how ranks keep together.

    `every`, `state` and `outer` are those of `LocalSGD`; with `every=0` gradients are averaged at each step by DDP, and with
    `gradients` by what `gradients(parameters)` gives, such as `QuantizedMean`. `look` is the number of steps between
    two looks at the ranks' mean, and `watch` looks at the drift after every step; what looking sends is in no ledger. With
    another `seed` the ranks draw other batches; they begin with the same parameters.

    Two slips: without `finish` a last, shorter round stays apart; where ranks are not `alike` each begins with parameters of
    its own, put there after what keeps them together has made them alike.
    """

    optimizer: Callable
    steps: int
    every: int = 0
    state: str = "keep"
    outer: Outer | None = None
    gradients: Callable | None = None
    finish: bool = True
    alike: bool = True
    batch: int = 16
    look: int = 40
    watch: bool = False
    seed: int = 0


@dataclass
class Path:
    """What came of a plan, on one rank: after `steps` the mean of the ranks had `losses` on the judged data, and each rank
    had sent `sent` bytes in `messages`; `drifts` is the distance to the mean at the start and after every step, before and
    after averaging; `own` is the loss of this rank's parameters at the end."""

    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    messages: list[int] = field(default_factory=list)
    drifts: list[tuple[int, float]] = field(default_factory=list)
    own: float = 0.0


def train_on_rank(
    build: Callable[[], nn.Module],
    kinds: Mapping[str, Sequence[tuple[torch.Tensor, torch.Tensor]]],
    judged_on: tuple[torch.Tensor, torch.Tensor],
    plans: Mapping[str, Plan],
) -> dict[str, dict[str, Path]]:
    """To be launched: on each kind of data every plan from the same beginning, on this rank's share.

    `kinds` are shares by name, one for each rank: (inputs, labels), with a row each, as is `judged_on`. `build` gives a
    classifier without dropout, whose parameters are alike on all ranks. Returns paths by kind and plan.
    """
    rank = dist.get_rank()
    return {
        kind: {name: _follow(plan, build(), shares[rank], judged_on) for name, plan in plans.items()}
        for kind, shares in kinds.items()
    }


def _follow(plan: Plan, model: nn.Module, share: tuple, judged_on: tuple) -> Path:
    path, draw = Path(), torch.Generator().manual_seed(plan.seed * dist.get_world_size() + dist.get_rank())
    optimizer = plan.optimizer(model.parameters())
    with unbooked():
        forward, after_backward, after_update, finish = _together(plan, model, optimizer)
    if not plan.alike:
        _begin_apart(model)
    if plan.watch:
        path.drifts.append((0, drift(model.parameters())))
    with counted() as ledger:
        for step in range(1, plan.steps + 1):
            rows = torch.randint(len(share[1]), (plan.batch,), generator=draw)
            nn.functional.cross_entropy(forward(share[0][rows]), share[1][rows]).backward()
            after_backward()
            optimizer.step()
            optimizer.zero_grad()
            if plan.watch:
                path.drifts.append((step, drift(model.parameters())))
            if after_update():
                path.drifts.append((step, 0.0))
            if step == plan.steps and plan.finish:
                finish()
            if step % plan.look == 0 or step == plan.steps:
                _look(path, step, model, judged_on, ledger)
    path.own = _loss(model, judged_on)
    return path


def _together(plan: Plan, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Callable, ...]:
    """The forward pass, and what is to be done after backward, after an update, and at the end."""

    def nothing() -> bool:
        return False

    if plan.every:
        local = LocalSGD(optimizer, plan.every, state=plan.state, outer=plan.outer)
        return model, nothing, local.step, local.finish
    if plan.gradients:
        return model, plan.gradients(model.parameters()).average, nothing, nothing
    return DDP(model), nothing, nothing, nothing


def _look(path: Path, step: int, model: nn.Module, judged_on: tuple, ledger: Traffic) -> None:
    path.steps.append(step)
    path.sent.append(ledger.sent)
    path.messages.append(ledger.messages)
    path.losses.append(_loss_of_mean(model, judged_on))


def _begin_apart(model: nn.Module) -> None:
    torch.manual_seed(1 + dist.get_rank())
    for module in model.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()


@torch.no_grad()
def _loss(model: nn.Module, judged_on: tuple) -> float:
    return nn.functional.cross_entropy(model(judged_on[0]), judged_on[1]).item()


@torch.no_grad()
def _loss_of_mean(model: nn.Module, judged_on: tuple) -> float:
    parameters = list(model.parameters())
    own = [p.clone() for p in parameters]
    with unbooked():
        mean_over_ranks(parameters)
    loss = _loss(model, judged_on)
    for parameter, kept in zip(parameters, own, strict=True):
        parameter.copy_(kept)
    return loss


def accelerate_on_rank(
    build: Callable[[], nn.Module],
    shares: Sequence[tuple[torch.Tensor, torch.Tensor]],
    micro_batches: int,
    k: int,
    every: int,
    announced: bool = True,
    per_update: bool = True,
) -> dict:
    """To be launched: Accelerate's LocalSGD around `micro_batches` of 16 rows in updates of `k`, with SGD.

    `announced` says whether Accelerate is told that it is one rank of several; `per_update` whether its `step` is called
    after each update or, as in its guide, after each micro-batch. Returns the rank's `parameters`, its `kind` of
    distribution, and by collective the `counts`: calls and bytes sent.
    """
    from accelerate import Accelerator
    from accelerate.local_sgd import LocalSGD

    if announced:
        announce()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=k)
    model = build()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    inputs, labels = shares[dist.get_rank()]
    with counted() as ledger, LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=every) as local:
        for rows in torch.arange(16 * micro_batches).split(16):
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.cross_entropy(model(inputs[rows]), labels[rows]))
                optimizer.step()
                optimizer.zero_grad()
                if accelerator.sync_gradients or not per_update:
                    local.step()
    parameters = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    return {"parameters": parameters, "kind": str(accelerator.distributed_type), "counts": ledger.frame()}
