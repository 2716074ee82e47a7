"""Dry runs of a recipe with a model of any depth: bytes on the device and on the host, seconds, and bytes sent."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np

from course_utils.distributed.traffic import Traffic, counted
from course_utils.errors import CourseError
from course_utils.hardware import Machine, OperatorWatch
from course_utils.memory.formulas.depth import DepthRule
from course_utils.memory.formulas.prediction import Trial
from course_utils.memory.step.model import Source, source_of
from course_utils.memory.step.recipe import Recipe
from course_utils.memory.step.workload import Workload
from course_utils.memory.trace.as_cuda import HOST
from course_utils.memory.trace.dry_run import dry_run
from course_utils.memory.trace.log import Log
from course_utils.memory.trace.phases import observe_phases


def keys_of(source: Source, recipe: Recipe) -> tuple[str | None, str | None]:
    """Keys of the model and of its teacher, from their files as they are now; None for a missing teacher or key."""
    return source.key, source_of(recipe.teacher).key if recipe.teacher else None


def try_recipe(source: Source, recipe: Recipe, machine: Machine | None = None, *, traffic: bool = True) -> Trial:
    """Run the step of `recipe` dry, with seconds if there is a machine. Without `traffic` the bytes sent may be too few.

    A model of many equal blocks is run with two and with three of them. If the second log is not the first with insertions, all
    blocks are run.
    """
    trial = _extrapolate_blocks(source, recipe, machine, traffic) or run_few_batches(source, recipe, machine, traffic)
    of_two = f", of 2 of its {recipe.accumulation} micro-batches" if recipe.accumulation > 2 else ""
    return replace(trial, basis=trial.basis + of_two)


def _extrapolate_blocks(source: Source, recipe: Recipe, machine: Machine | None, traffic: bool) -> Trial | None:
    if recipe.segments is not None or source.blocks is None:  # how long a segment is depends on all blocks
        return None
    count = source.blocks.count
    try:
        two, three = (run_few_batches(source.with_blocks(blocks), recipe, machine, traffic) for blocks in (2, 3))
    except CourseError:
        # The error may name blocks by wrong numbers; if the whole model fails too, its own error is raised.
        return None
    depth = DepthRule.between(two.log, three.log)
    depth_on_host = DepthRule.between(two.host, three.host)
    if depth is None or depth_on_host is None:
        return None
    if not depth.is_sure:
        four = run_few_batches(source.with_blocks(4), recipe, traffic=False).log
        if not np.array_equal(depth.deepen(three.log, 4).totals, four.totals):
            return None
    period = source.blocks.period
    groups = "blocks" if period == 1 else f"groups of {period} blocks"
    return Trial(
        recipe,
        depth.deepen(three.log, count),
        depth_on_host.deepen(three.host, count),
        **_extrapolate_counts(two, three, count - 3),
        basis=f"a dry run of 3 of its {count} {groups}",
        smaller=(two.log, three.log),
        block_count=count,
    )


def _extrapolate_counts(smaller: Trial, larger: Trial, times: int) -> dict[str, dict]:
    """Clock and traffic of `larger`, plus `times` the difference between `larger` and `smaller`."""
    clock, traffic = {}, {}
    for call, seconds in larger.clock.items():
        clock[call] = seconds + (seconds - smaller.clock.get(call, 0.0)) * times
    for name, counts in larger.traffic.items():
        before = smaller.traffic.get(name, (0, 0))
        traffic[name] = tuple(b + (b - a) * times for a, b in zip(before, counts, strict=True))
    return {"clock": clock, "traffic": traffic}


def run_few_batches(source: Source, recipe: Recipe, machine: Machine | None = None, traffic: bool = True) -> Trial:
    """The trial of this model as it is, from dry runs of at most two micro-batches.

    Each further micro-batch adds its inputs, and the seconds and bytes sent that the second added to the first.
    """
    further = recipe.accumulation - 2
    if further <= 0:
        return _recall_or_run(source, recipe, machine)
    of_two = _recall_or_run(source, replace(recipe, accumulation=2), machine)
    trial = replace(of_two, recipe=recipe, log=of_two.log.with_micro_batches(further))
    if machine is None and not (traffic and recipe.ranks > 1):  # no seconds or bytes sent are asked for
        return trial
    of_one = _recall_or_run(source, replace(recipe, accumulation=1), machine)
    return replace(trial, **_extrapolate_counts(of_one, of_two, further))


MAX_RECALLED_TRIALS = 128
"""The most dry runs that a process keeps."""
_recalled_trials: dict[tuple, Trial] = {}


def _recall_or_run(source: Source, recipe: Recipe, machine: Machine | None) -> Trial:
    """A dry run, or the stored one by the same recipe, since a plan needs many recipes several times."""
    if source.key is None:
        return run_step(source, recipe, machine)
    key = *keys_of(source, recipe), recipe, repr(machine)
    if key not in _recalled_trials:
        if len(_recalled_trials) == MAX_RECALLED_TRIALS:
            del _recalled_trials[next(iter(_recalled_trials))]
        _recalled_trials[key] = run_step(source, recipe, machine)
    return _recalled_trials[key]


# Dry runs of a step, until one has no gradients where the one before had none.
_MAX_RUNS = 5


def run_step(source: Source, recipe: Recipe, machine: Machine | None = None) -> Trial:
    """The dry run of the whole step, of all blocks and micro-batches.

    Which parameters get no gradient, and so have no state, shows only in a step; where there are any, it is run once more. Raises
    `CourseError` if they are others each time.
    """
    idle: frozenset[str] = frozenset()
    for _ in range(_MAX_RUNS):
        workload = Workload(source, recipe, idle=idle)
        trial = _run_workload(workload, machine)
        if workload.seen_idle == idle:
            return trial
        idle = workload.seen_idle
    raise CourseError(
        f"In each of {_MAX_RUNS} dry runs other parameters got no gradient; let the model use the same ones in every step."
    )


def _run_workload(workload: Workload, machine: Machine | None) -> Trial:
    recipe = workload.recipe
    watch = OperatorWatch(HOST if recipe.device == "cuda" else None)
    clock: Counter = Counter()
    counts: list[Traffic] = []

    @contextmanager
    def add_seconds(phase: str) -> Iterator[None]:
        begin = len(watch.operators)
        yield
        for name, work in watch.operators[begin:]:
            clock[phase, name] += machine.seconds(work)

    @contextmanager
    def watch_step() -> Iterator[None]:
        with ExitStack() as stack:
            if recipe.ranks > 1:
                counts.append(stack.enter_context(counted()))
            if machine is not None:
                stack.enter_context(watch)
                stack.enter_context(observe_phases(add_seconds))
            yield

    prime = workload.prime
    usage = dry_run(workload.build, workload.step, recipe.device, ranks=recipe.ranks, prime=prime, watch=watch_step)
    host = Log.empty() if usage.host is None else Log.from_usage(usage.host)
    return Trial(recipe, Log.from_usage(usage), host, clock, _sum_traffic(counts))


def _sum_traffic(counts: list[Traffic]) -> dict[str, tuple[int, int]]:
    traffic: dict[str, tuple[int, int]] = {}
    for count in counts:
        for entry in count.entries:
            size, messages = traffic.get(entry.collective, (0, 0))
            traffic[entry.collective] = size + entry.sent, messages + entry.messages
    return traffic
