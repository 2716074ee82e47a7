"""One recipe tried dry: bytes on the device and on the host, seconds, and bytes on the wire, of a model of any depth."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import nan

import numpy as np

from course_utils.distributed.traffic import counted
from course_utils.errors import CourseError
from course_utils.hardware import Machine, OperatorWatch
from course_utils.memory.formulas.depth import Depth
from course_utils.memory.step.model import Source, source_of
from course_utils.memory.step.recipe import Recipe
from course_utils.memory.step.workload import Workload
from course_utils.memory.trace.as_cuda import HOST
from course_utils.memory.trace.dry_run import dry_run
from course_utils.memory.trace.log import Log
from course_utils.memory.trace.phases import observe_phases


@dataclass(frozen=True)
class Trial:
    """What a step by `recipe` takes."""

    recipe: Recipe
    log: Log
    host: Log
    clock: Mapping[tuple[str, str], float] = field(repr=False)  # seconds by phase and operator; empty without a machine
    traffic: Mapping[str, tuple[int, int]]  # by collective, the bytes and messages that a rank sends
    how: str = "a dry run of just this step"
    smaller: tuple[Log, Log] | None = None  # logs of two and of three blocks, if that of all was extrapolated from them
    block_count: int = 0

    @property
    def peak(self) -> int:
        """Bytes at the fullest instant."""
        return self.log.peak

    @property
    def seconds(self) -> float:
        """Seconds of all operators, one after the other; NaN without a machine."""
        return sum(self.clock.values()) if self.clock else nan

    @property
    def sent(self) -> int:
        """Bytes that a rank sends."""
        return sum(sent for sent, _ in self.traffic.values())

    @cached_property
    def kinds_by_phase(self) -> dict[str, dict[str, int]]:
        """Bytes by kind at the fullest instant of each phase."""
        return {phase: self.log.by_kind(place) for phase, place in self.log.fullest().items()}


def keys_of(source: Source, recipe: Recipe) -> tuple[str | None, str | None]:
    """Keys of the model and its teacher with their files as they are now; None without a teacher or a key."""
    return source.key, source_of(recipe.teacher).key if recipe.teacher else None


def try_recipe(source: Source, recipe: Recipe, machine: Machine | None = None, *, traffic: bool = True) -> Trial:
    """Run the step of `recipe` dry, with seconds if there is a machine. Without `traffic` its bytes on the wire may be too few.

    A model of many equal blocks is run with two and with three of them. Where the second log is not the first with more put
    in, all blocks are run.
    """
    trial = _extrapolate_blocks(source, recipe, machine, traffic) or run_few_batches(source, recipe, machine, traffic)
    of_two = f", of 2 of its {recipe.accumulation} micro-batches" if recipe.accumulation > 2 else ""
    return replace(trial, how=trial.how + of_two)


def _extrapolate_blocks(source: Source, recipe: Recipe, machine: Machine | None, traffic: bool) -> Trial | None:
    if recipe.segments is not None or source.repeated is None:  # how long a segment is depends on all blocks
        return None
    blocks = source.repeated.count
    try:
        two, three = (run_few_batches(source.with_blocks(count), recipe, machine, traffic) for count in (2, 3))
    except CourseError:  # it may name blocks by their places; what is wrong with the whole, that says itself
        return None
    depth, below = Depth.between(two.log, three.log), Depth.between(two.host, three.host)
    if depth is None or below is None:
        return None
    if not depth.sure:
        four = run_few_batches(source.with_blocks(4), recipe, traffic=False).log
        if not np.array_equal(depth.deepen(three.log, 4).totals, four.totals):
            return None
    period = source.repeated.period
    what = "blocks" if period == 1 else f"groups of {period} blocks"
    how = f"a dry run of 3 of its {blocks} {what}"
    log, host = depth.deepen(three.log, blocks), below.deepen(three.host, blocks)
    clock, sent = extrapolate_counts(two, three, blocks - 3)
    return Trial(recipe, log, host, clock, sent, how, smaller=(two.log, three.log), block_count=blocks)


def extrapolate_counts(few: Trial, many: Trial, times: int) -> tuple[dict, dict]:
    """Clock and traffic with what `many` has more than `few` added `times` more."""
    clock = {call: seconds + (seconds - few.clock.get(call, 0.0)) * times for call, seconds in many.clock.items()}
    traffic = {
        name: tuple(b + (b - a) * times for a, b in zip(few.traffic.get(name, (0, 0)), both, strict=True))
        for name, both in many.traffic.items()
    }
    return clock, traffic


def run_few_batches(source: Source, recipe: Recipe, machine: Machine | None = None, traffic: bool = True) -> Trial:
    """The trial of just this model, from dry runs of at most two micro-batches.

    Each further micro-batch adds its inputs, and the seconds and bytes on the wire that the second added to the first.
    """
    more = recipe.accumulation - 2
    if more <= 0:
        return _recall_or_run(source, recipe, machine)
    second = _recall_or_run(source, replace(recipe, accumulation=2), machine)
    log = second.log.with_micro_batches(more)
    if machine is None and not (traffic and recipe.ranks > 1):  # then there is nothing to be counted
        return replace(second, recipe=recipe, log=log)
    clock, sent = extrapolate_counts(_recall_or_run(source, replace(recipe, accumulation=1), machine), second, more)
    return replace(second, recipe=recipe, log=log, clock=clock, traffic=sent)


MOST_RECALLED = 128
"""Dry runs that a process keeps."""
_recalled: dict[tuple, Trial] = {}


def _recall_or_run(source: Source, recipe: Recipe, machine: Machine | None) -> Trial:
    """A dry run, or the stored one by the same recipe, since a plan needs many recipes several times."""
    if source.key is None:
        return run_step(source, recipe, machine)
    key = *keys_of(source, recipe), recipe, repr(machine)
    if key not in _recalled:
        if len(_recalled) == MOST_RECALLED:
            del _recalled[next(iter(_recalled))]
        _recalled[key] = run_step(source, recipe, machine)
    return _recalled[key]


def run_step(source: Source, recipe: Recipe, machine: Machine | None = None, idle: frozenset = frozenset()) -> Trial:
    """The dry run of the whole step; parameters that are `idle` get no gradient in it, and so have no state."""
    workload, watch = Workload(source, recipe, idle=idle), OperatorWatch(HOST if recipe.device == "cuda" else None)
    clock, traffic, counts = Counter(), {}, []

    @contextmanager
    def timed(phase: str) -> Iterator[None]:
        begin = len(watch.operators)
        yield
        for name, work in watch.operators[begin:]:
            clock[phase, name] += machine.seconds(work)

    @contextmanager
    def watched() -> Iterator[None]:
        with ExitStack() as entered:
            if recipe.ranks > 1:
                counts.append(entered.enter_context(counted()))
            if machine is not None:
                entered.enter_context(watch)
                entered.enter_context(observe_phases(timed))
            yield

    prime = workload.prime
    usage = dry_run(workload.build, workload.step, recipe.device, ranks=recipe.ranks, prime=prime, watch=watched)
    if workload.idle != idle:  # only a step tells
        return run_step(source, recipe, machine, workload.idle)
    host = Log.of(usage.host) if usage.host is not None else Log.nothing()
    for entry in (entry for count in counts for entry in count.entries):
        size, messages = traffic.get(entry.collective, (0, 0))
        traffic[entry.collective] = size + entry.sent, messages + entry.messages
    return Trial(recipe, Log.of(usage), host, clock, traffic)
