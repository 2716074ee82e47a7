"""Chapter 10: what a rank did in a real step, and when."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from course_utils import models
from course_utils.lessons.c10_fsdp_and_zero import STRATEGIES, batch_of
from course_utils.memory import Recipe
from course_utils.memory.trace.allocator import quiet
from course_utils.training.profile import PHASES

if TYPE_CHECKING:
    from transformers import PretrainedConfig

COLLECTIVES = {"allgather": "all-gather", "reduce_scatter": "reduce-scatter", "allreduce": "all-reduce"}


@dataclass(frozen=True)
class Activity:
    """What a rank did from `start` to `end`, in seconds of a clock that all ranks share: a phase, or a collective."""

    name: str
    start: float
    end: float

    @property
    def computes(self) -> bool:
        return self.name in PHASES


def trace_on_rank(
    runs: dict[str, tuple[str, dict]], config: "PretrainedConfig", recipe: Recipe
) -> dict[str, list[Activity]]:
    """To be launched: what this rank does in the third step of each run by one of `STRATEGIES` with options."""
    activities = {}
    for name, (strategy, options) in runs.items():
        setup = STRATEGIES[strategy](models.from_configuration(config), **options)
        batch = batch_of(config, recipe, dist.get_rank())
        for _ in range(2):
            setup.step(batch)
        dist.barrier()
        profiler = profile(activities=[ProfilerActivity.CPU])
        with quiet():
            profiler.start()
        setup.step(batch)
        with quiet():
            profiler.stop()
        events = profiler.profiler.kineto_results.events()
        (computing,) = {e.start_thread_id() for e in events if e.name() in PHASES}
        # gloo's own thread copies in its collectives: that is no computing of the step.
        of_step = (e for e in events if e.start_thread_id() == computing or not e.name().startswith("aten::"))
        activities[name] = read_activities([(e.name(), e.start_ns() / 1e9, e.end_ns() / 1e9) for e in of_step])
    return activities


def read_activities(events: Sequence[tuple[str, float, float]]) -> list[Activity]:
    """The phases' runs of operators without a gap, and the collectives, from the profiler's events as (name, start, end)."""
    events = sorted(events, key=lambda event: event[1])
    activities: list[Activity] = []
    for phase, begin, end in (event for event in events if event[0] in PHASES):
        stretches: list[list[float]] = []
        for _, a, b in (e for e in events if e[0].startswith("aten::") and begin <= e[1] < end):
            if stretches and a <= stretches[-1][1] + 150e-6:  # a short gap is Python between two operators
                stretches[-1][1] = max(stretches[-1][1], b)
            else:
                stretches.append([a, b])
        activities += [Activity(phase, a, b) for a, b in stretches]
    calls = [name for name, *_ in events if name.startswith("c10d::")]
    kinds = (kind for name in calls for part, kind in COLLECTIVES.items() if part in name)
    # gloo works in a thread of its own, in the order of the calls, and may name one collective after another.
    works = [event for event in events if event[0].startswith("gloo:")]
    activities += [Activity(kind, a, b) for kind, (_, a, b) in zip(kinds, works, strict=False)]
    return sorted(activities, key=lambda activity: activity.start)


def overlap(activities: Sequence[Activity]) -> float:
    """The share of the time of collectives in which the rank also computed."""
    sent, computed = ([a for a in activities if a.computes == computes] for computes in (False, True))
    shared = sum(max(0.0, min(a.end, b.end) - max(a.start, b.start)) for a in sent for b in computed)
    return min(1.0, shared / sum(a.end - a.start for a in sent)) if sent else 0.0
