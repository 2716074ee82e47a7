"""Chapter 09: ranks that train on shares of the data and keep together in one way or another, and its figures."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from torch import nn

from course_utils.distributed import DDP, QSGD, LocalSGD, counted
from course_utils.distributed.local_sgd import average_over_ranks, drift
from course_utils.distributed.torchrun import announce
from course_utils.distributed.traffic import uncounted
from course_utils.units import format_bytes, format_counted, format_seconds
from course_utils.viz.parts import byte_unit, patches, second_unit, subplots
from course_utils.viz.style import COLORS, MARKS, SERIES

BATCH = 16


@dataclass(frozen=True)
class Plan:
    """How a rank trains: `optimizer(parameters)`, so many `steps`, and a `way` to keep ranks together.

    The way is `DDP`, or `LocalSGD` or `QSGD` with their options, as `partial(LocalSGD, sync_every=20)`. Every `look` steps we
    judge the mean of the ranks; `watch` notes the drift after every step. Another `seed` draws other batches. Two slips: without
    `finish` a last, shorter round stays apart; without `same_start` each rank begins with parameters of its own, put there
    after the way has made them equal.
    """

    optimizer: Callable
    steps: int
    way: Callable = DDP
    finish: bool = True
    same_start: bool = True
    look: int = 40
    watch: bool = False
    seed: int = 0


@dataclass
class Run:
    """What came of a plan on one rank: after `steps` the mean of the ranks had `losses`, and each rank had sent `sent` bytes
    in `messages`. `drifts` are (step, distance to the mean), before and after averages; `own` is this rank's loss at the end.
    """

    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    messages: list[int] = field(default_factory=list)
    drifts: list[tuple[int, float]] = field(default_factory=list)
    own: float = 0.0


def train_on_rank(build: Callable, kinds: Mapping, judged_on: tuple, plans: Mapping[str, Plan]) -> dict:
    """To be launched: on each kind of data every plan from the same beginning, on this rank's share.

    `kinds` are shares by name, one for each rank: (inputs, labels), with a row each, as is `judged_on`. `build` gives a
    classifier, the same on all ranks. Returns a `Run` by kind and plan.
    """
    rank = dist.get_rank()
    return {
        kind: {name: follow(plan, build(), shares[rank], judged_on) for name, plan in plans.items()}
        for kind, shares in kinds.items()
    }


def follow(plan: Plan, model: nn.Module, share: tuple, judged_on: tuple) -> Run:
    """Train `model` on this rank as the plan says."""
    run, draw = Run(), torch.Generator().manual_seed(plan.seed * dist.get_world_size() + dist.get_rank())
    optimizer = plan.optimizer(model.parameters())
    with uncounted():
        forward, after_backward, after_update, finish = keep_together(plan, model, optimizer)
    if not plan.same_start:
        torch.manual_seed(1 + dist.get_rank())
        for module in model.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
    if plan.watch:
        run.drifts.append((0, drift(model.parameters())))
    with counted() as traffic:
        for step in range(1, plan.steps + 1):
            rows = torch.randint(len(share[1]), (BATCH,), generator=draw)
            nn.functional.cross_entropy(forward(share[0][rows]), share[1][rows]).backward()
            after_backward()
            optimizer.step()
            optimizer.zero_grad()
            if plan.watch:
                run.drifts.append((step, drift(model.parameters())))
            if after_update():
                run.drifts.append((step, 0.0))
            if step == plan.steps and plan.finish:
                finish()
            if step % plan.look == 0 or step == plan.steps:
                run.steps.append(step)
                run.sent.append(traffic.sent)
                run.messages.append(traffic.messages)
                run.losses.append(loss_of_mean(model, judged_on))
    with torch.no_grad():
        run.own = nn.functional.cross_entropy(model(judged_on[0]), judged_on[1]).item()
    return run


def keep_together(plan: Plan, model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Callable, ...]:
    """The forward pass, and what is to be done after backward, after an update, and at the end."""
    way, nothing = getattr(plan.way, "func", plan.way), lambda: False
    if way is LocalSGD:
        local = plan.way(optimizer)
        return model, nothing, local.step, local.finish
    if way is QSGD:
        return model, plan.way(model.parameters()).average, nothing, nothing
    return plan.way(model), nothing, nothing, nothing


@torch.no_grad()
def loss_of_mean(model: nn.Module, judged_on: tuple) -> float:
    """The loss that the mean of the ranks' parameters has; what this sends is not counted."""
    parameters = list(model.parameters())
    own = [p.clone() for p in parameters]
    with uncounted():
        average_over_ranks(parameters)
    loss = nn.functional.cross_entropy(model(judged_on[0]), judged_on[1]).item()
    for parameter, kept in zip(parameters, own, strict=True):
        parameter.copy_(kept)
    return loss


def accelerate_on_rank(
    build: Callable,
    shares: Sequence,
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
    if announced:
        announce()
    from accelerate import Accelerator
    from accelerate.local_sgd import LocalSGD as TheirLocalSGD

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=k)
    model = build()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    inputs, labels = shares[dist.get_rank()]
    with counted() as traffic, TheirLocalSGD(accelerator=accelerator, model=model, local_sgd_steps=every) as local:
        for rows in torch.arange(16 * micro_batches).split(16):
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.cross_entropy(model(inputs[rows]), labels[rows]))
                optimizer.step()
                optimizer.zero_grad()
                if accelerator.sync_gradients or not per_update:
                    local.step()
    parameters = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    return {"parameters": parameters, "kind": str(accelerator.distributed_type), "counts": traffic.frame()}


# Figures.


def local_rounds_figure(ranks: int = 3, every: int = 4, steps: int = 8) -> tuple[Figure, str]:
    """The idea: ranks that send after every step, above ranks that send after `every` steps and diverge in between."""
    sending = 0.8  # of a step's time
    figure, axes = subplots(2, 1, figsize=(7.6, 3.6), layout="constrained", sharex=True)
    titles = (
        "an average of gradients at each step",
        f"H = {every}: an average of parameters at each round of {every} steps",
    )
    for panel, h, title in zip(axes, (1, every), titles, strict=True):
        for rank in range(ranks):
            edge = 0.0
            for step in range(1, steps + 1):
                panel.add_patch(Rectangle((edge + 0.04, rank - 0.32), 0.92, 0.64, color=COLORS["first"]))
                edge += 1
                if step % h == 0:
                    panel.add_patch(Rectangle((edge, rank - 0.5), sending, 1, color=COLORS["gradients"]))
                    edge += sending
        panel.set(title=title, xlim=(0, steps * (1 + sending) + 0.1), ylim=(ranks - 0.4, -0.6), xticks=[])
        panel.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
        panel.grid(visible=False)
        panel.tick_params(length=0)
    axes[1].set(xlabel="time")
    handles, labels = patches(("a step of a rank", "first"), ("all ranks send", "gradients"))
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure, (
        f"{ranks} ranks make {steps} steps each. Above all ranks send after every step, {steps} times. Below they send after "
        f"every {every} steps, {steps // every} times, and are done sooner; within a round the ranks' parameters part."
    )


def busy_figure(computing: float, sending: Mapping[str, float], everies: Sequence[int]) -> tuple[Figure, str]:
    """The share of time in which ranks compute: a row per network, a mark per number of steps between two averages.

    `computing` is the seconds of a step, `sending` by network those of one average; nothing overlaps.
    """
    figure, axes = subplots(figsize=(7.6, 1.1 + 0.45 * len(sending)), layout="constrained")
    names = list(sending)
    for every, color, marker in zip(everies, SERIES, MARKS, strict=False):
        shares = [computing / (computing + sending[name] / every) for name in names]
        style = {"color": COLORS[color], "markersize": 9, "markeredgecolor": COLORS["paper"]}
        axes.plot([100 * s for s in shares], names, marker, label=f"H = {every:,}", clip_on=False, **style)
    axes.set(xlim=(-2, 102), xlabel="share of time in which the ranks compute, %")
    axes.invert_yaxis()
    axes.margins(y=0.15)
    figure.legend(loc="outside upper center", ncols=len(everies))
    said = "; ".join(
        f"{name}: " + ", ".join(f"{computing / (computing + sending[name] / h):.0%} at H = {h:,}" for h in everies)
        for name in names
    )
    return figure, f"A step computes for {format_seconds(computing)}. Share of the time spent computing, {said}."


def drift_figure(
    drifts: Mapping[str, Mapping[str, Sequence[tuple[int, float]]]], tops: Mapping[str, float] | None = None
) -> tuple[Figure, str]:
    """How far a rank is from the mean of all, against its steps: a panel per group, in it a line per run.

    A line is `(step, distance)` in order. Panels share their height, unless `tops` gives one of them the highest distance it
    is to show.
    """
    figure, panels = subplots(1, len(drifts), figsize=(7.6, 3.2), layout="constrained", sharey=not tops, squeeze=False)
    names = list(dict.fromkeys(name for lines in drifts.values() for name in lines))
    colors = dict(zip(names, SERIES, strict=False))
    for axes, (group, lines) in zip(panels[0], drifts.items(), strict=True):
        # The first lines are the thicker ones, so that a later one on top leaves them visible.
        for width, (name, points) in zip(range(len(lines), 0, -1), lines.items(), strict=True):
            axes.plot(*zip(*points, strict=True), color=COLORS[colors[name]], linewidth=0.4 + width, label=name)
        axes.set(xlabel="step", title=group)
    for axes, group in zip(panels[0], drifts, strict=True):
        top = (tops or {}).get(group, axes.get_ylim()[1])
        axes.set_ylim(-0.03 * top, top)  # a line at 0 stands clear of the axis
    panels[0][0].set(ylabel="distance to the mean")
    handles = {label: h for axes in panels[0] for h, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=min(4, len(handles)))
    said = "; ".join(
        f"{group}: "
        + ", ".join(
            f"{name} at most {max(d for _, d in points):.2g}, {points[-1][1]:.2g} at the end"
            for name, points in lines.items()
        )
        for group, lines in drifts.items()
        if group not in (tops or {})
    )
    return figure, f"Distance of a rank to the mean of all ranks against steps. {said}."


def losses_of_ways_figure(
    runs: Mapping[str, Run], computing: float, network: tuple[float, float], name: str
) -> tuple[Figure, str]:
    """Loss of the ranks' mean at equal steps, at equal bytes, at equal seconds on a stated network.

    `computing` is the seconds of a step; `network` is bytes a second out of a rank and seconds a message, and has a `name`.
    The axis of bytes begins with 0, where nothing was sent yet, and goes on in powers of ten.
    """
    figure, panels = subplots(1, 3, figsize=(7.6, 3.2), layout="constrained", sharey=True)
    _, size = unit = byte_unit(max(run.sent[-1] for run in runs.values()))
    bandwidth, latency = network
    times = {
        way: [
            step * computing + sent / bandwidth + messages * latency
            for step, sent, messages in zip(run.steps, run.sent, run.messages, strict=True)
        ]
        for way, run in runs.items()
    }
    time_unit, second = second_unit(max(max(line) for line in times.values()))
    sent = {way: [sent / size for sent in run.sent] for way, run in runs.items()}
    times_shown = {way: [t / second for t in line] for way, line in times.items()}
    for (way, run), color in zip(runs.items(), SERIES, strict=False):
        for panel, x in zip(panels, (run.steps, sent[way], times_shown[way]), strict=True):
            panel.plot(x, run.losses, color=COLORS[color], label=way)
    panels[0].set(xlabel="steps", ylabel="loss of the mean")
    panels[1].set(xlabel=f"sent by a rank, {unit[0]}")
    panels[2].set(xlabel=f"time, {time_unit}\n({name})")
    _decades(panels[1], [x for line in sent.values() for x in line])
    _decades(panels[2], [x for line in times_shown.values() for x in line])
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=min(4, len(runs)))
    said = "; ".join(
        f"{way}: {run.losses[-1]:.2f} after {run.steps[-1]} steps, {format_bytes(run.sent[-1])} sent, "
        f"{format_seconds(times[way][-1])}"
        for way, run in runs.items()
    )
    return figure, f"Loss of the ranks' mean against steps, bytes sent and seconds on {name}. {said}."


def _decades(axes: Axes, values: Sequence[float]) -> None:
    """A scale in powers of ten, with a straight piece down to 0 where some of the values are 0."""
    low, high = min(v for v in values if v > 0), max(values)
    zero = [0.0] if 0 in values else []
    scale = {"value": "symlog", "linthresh": low, "linscale": 0.5} if zero else {"value": "log"}
    axes.set_xscale(**scale)
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    axes.xaxis.set_major_locator(FixedLocator([*zero, *(10.0**p for p in powers if 10.0**p >= low)]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def losses_against_every_figure(
    ends: Mapping[str, Mapping[int, float]], levels: Mapping[str, float]
) -> tuple[Figure, str]:
    """The loss after equally many steps against H: a line per kind of data, dotted at what averaged gradients give."""
    figure, axes = subplots(figsize=(7.6, 3.2), layout="constrained")
    for (name, line), color, marker in zip(ends.items(), SERIES, MARKS, strict=False):
        axes.plot(list(line), list(line.values()), marker=marker, color=COLORS[color], label=name)
        axes.axhline(levels[name], color=COLORS[color], linestyle=":", linewidth=1.4, label=f"{name}, DDP")
    everies = sorted({h for line in ends.values() for h in line})
    axes.set(xscale="log", xlabel="H, steps between two averages", ylabel="loss of the mean\nafter equally many steps")
    axes.set_xticks(everies, [f"{h}" for h in everies])
    axes.minorticks_off()
    figure.legend(loc="outside upper center", ncols=4)
    said = "; ".join(
        f"{name}: " + ", ".join(f"{v:.2f} at H = {h}" for h, v in line.items()) + f", DDP {levels[name]:.2f}"
        for name, line in ends.items()
    )
    return figure, f"Loss of the ranks' mean against H. {said}."


# To play with: ranks that descend in bowls of their own.


def bowls(ranks: int, heterogeneity: float) -> tuple[np.ndarray, np.ndarray]:
    """A quadratic bowl for each rank: matrices [ranks, 2, 2], each steep in another direction, and lowest points [ranks, 2],
    on a circle of radius `heterogeneity` around (0, 0)."""
    angles = 0.4 + 2 * np.pi * np.arange(ranks) / ranks
    steep = np.stack([np.cos(angles / 2), np.sin(angles / 2)], axis=1)
    matrices = 0.12 * np.eye(2) + 0.88 * steep[:, :, None] * steep[:, None, :]
    centers = heterogeneity * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return matrices, centers


def joint_minimum(matrices: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """Where the mean of the bowls is lowest: (Σ A)⁻¹ Σ A c."""
    return np.linalg.solve(matrices.sum(0), np.einsum("rij,rj->i", matrices, centers))


def local_paths(
    every: int, matrices: np.ndarray, centers: np.ndarray, rate: float, start=(-2.2, 1.4), steps: int = 60
) -> np.ndarray:
    """Every rank's place before and after each of `steps` local steps, [steps + 1, ranks, 2]; after `every` steps all go
    on from their mean, which is then the place of that step. θ ← θ − α A (θ − c)."""
    place = np.tile(np.asarray(start, dtype=float), (len(centers), 1))
    places = [place]
    for step in range(1, steps + 1):
        place = place - rate * np.einsum("rij,rj->ri", matrices, place - centers)
        places.append(place)
        if step % every == 0:
            place = np.tile(place.mean(0), (len(place), 1))
    return np.stack(places)


def play_local_drift(
    every: int = 10, heterogeneity: float = 1.0, ranks: int = 3, rate: float = 0.3
) -> tuple[Figure, str]:
    """Play: ranks in bowls of their own, where they go between averages, and where their mean ends."""
    matrices, centers = bowls(ranks, heterogeneity)
    places, lowest = local_paths(every, matrices, centers, rate), joint_minimum(matrices, centers)
    figure, (plane, line) = subplots(1, 2, figsize=(7.6, 3.6), layout="constrained", width_ratios=(1.5, 1))
    x, y = np.meshgrid(np.linspace(-2.7, 2.7, 80), np.linspace(-2.4, 2.4, 80))
    apart = np.stack([x, y], axis=-1)[None] - centers[:, None, None, :]
    height = 0.5 * np.einsum("rxyi,rij,rxyj->xy", apart, matrices, apart) / ranks
    plane.contour(x, y, height, levels=9, colors=COLORS["grid"], linewidths=1)
    plane.grid(visible=False)
    means = places.mean(1)
    for rank in range(ranks):
        color = COLORS[SERIES[rank % 4]]
        for begin in range(0, len(places) - 1, every):  # a round starts from the mean, not from where the rank was
            track = np.vstack([means[begin], places[begin + 1 : begin + every + 1, rank]])
            plane.plot(*track.T, color=color, linewidth=1)
        plane.plot(*centers[rank], "x", color=color, markersize=8, markeredgewidth=2)
    plane.plot(*means[::every].T, "o-", color=COLORS["ink"], markersize=4, linewidth=2, label="mean")
    star = {"color": COLORS["inputs"], "markersize": 15, "markeredgecolor": COLORS["ink"]}
    plane.plot(*lowest, "*", **star, label="joint minimum")
    plane.set(xlabel="first parameter", ylabel="second parameter", xlim=(-2.7, 2.7), ylim=(-2.4, 2.4), aspect="equal")
    plane.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2)
    drifts = _sawtooth(places, every)
    line.plot(*zip(*drifts, strict=True), color=COLORS["first"])
    line.set(xlabel="step", ylabel="distance to the mean\n(over all ranks)", xlim=(0, None), ylim=(0, None))
    steps = len(places) - 1
    off = float(np.linalg.norm(places[steps - steps % every].mean(0) - lowest))
    rounds = format_counted(steps // every, "average")
    figure.suptitle(f"{rounds} in {steps} steps; the last is {off:.2f} from the joint minimum", fontsize=11)
    return figure, (
        f"{ranks} ranks in bowls whose lowest points are {heterogeneity:g} from the middle, H = {every}, learning rate {rate:g}. "
        f"They drift at most {max(d for _, d in drifts):.2f} from their mean; after {rounds} the mean is {off:.2f} from "
        "the joint minimum."
    )


def _sawtooth(places: np.ndarray, every: int) -> list[tuple[int, float]]:
    """Root mean square distance of the ranks to their mean, before and after each average."""
    spread = np.sqrt(((places - places.mean(1, keepdims=True)) ** 2).sum(2).mean(1))
    points = [(0, 0.0)]
    for step in range(1, len(places)):
        points.append((step, float(spread[step])))
        if step % every == 0:
            points.append((step, 0.0))
    return points
