"""One recipe tried dry: bytes on the device and on the host, seconds, and bytes on the wire, of a model of any depth."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import nan
from typing import NamedTuple

import numpy as np
import torch

from course_utils.distributed.traffic import counted
from course_utils.errors import CourseError
from course_utils.hardware import Machine, OperatorWatch
from course_utils.memory.as_cuda import HOST
from course_utils.memory.depth import Depth
from course_utils.memory.dry_run import run_dry
from course_utils.memory.log import Log
from course_utils.memory.model import Source, source_of
from course_utils.memory.phases import observed_by
from course_utils.memory.recipe import Recipe
from course_utils.memory.usage import Usage
from course_utils.memory.workload import Workload


@dataclass(frozen=True)
class Trial:
    """What a step by `recipe` takes; `how` says what was run dry.

    `clock` are the seconds of each phase and operator, empty without a machine; `traffic` are the bytes that a rank sends, and
    the messages, by collective. `smaller` are the logs of two and of three blocks where they gave that of the whole, and
    `blocks` how many that has.
    """

    recipe: Recipe
    log: Log
    host: Log
    clock: Mapping[tuple[str, str], float] = field(repr=False)
    traffic: Mapping[str, tuple[int, int]]
    how: str = "a dry run of just this step"
    smaller: tuple[Log, Log] | None = None
    blocks: int = 0

    @property
    def peak(self) -> int:
        """Bytes at the fullest instant."""
        return self.log.peak

    @property
    def seconds(self) -> float:
        """Of all operators, one after the other; NaN without a machine."""
        return sum(self.clock.values()) if self.clock else nan

    @property
    def sent(self) -> int:
        """Bytes that a rank sends."""
        return sum(sent for sent, _ in self.traffic.values())

    @cached_property
    def by_phase(self) -> dict[str, dict[str, int]]:
        """Bytes by kind at the fullest instant of each phase."""
        return {phase: self.log.by_kind(place) for phase, place in self.log.fullest().items()}


def attempt(source: Source, recipe: Recipe, machine: Machine | None = None, *, traffic: bool = True) -> Trial:
    """Try `recipe` dry, with seconds where a machine is named. Without `traffic` its bytes on the wire may be too few.

    A model of many equal blocks is tried with two and with three of them; where the second log is not the first with more put
    in, with all.
    """
    found = _extrapolate(source, recipe, machine, traffic) or run_once(source, recipe, machine, traffic)
    of_two = f", of 2 of its {recipe.accumulation} micro-batches" if recipe.accumulation > 2 else ""
    return replace(found, how=found.how + of_two)


def _extrapolate(source: Source, recipe: Recipe, machine: Machine | None, traffic: bool) -> Trial | None:
    if recipe.segments is not None or source.blocks is None:  # how long a segment is depends on all blocks
        return None
    blocks = source.blocks.count
    try:
        two, three = (run_once(source.with_blocks(count), recipe, machine, traffic) for count in (2, 3))
    except CourseError:  # it may name blocks by their places; what is wrong with the whole, that says itself
        return None
    depth, below = Depth.between(two.log, three.log), Depth.between(two.host, three.host)
    if depth is None or below is None:
        return None
    if not depth.sure:
        four = run_once(source.with_blocks(4), recipe, traffic=False).log
        if not np.array_equal(depth.deepen(three.log, 4).totals, four.totals):
            return None
    period = source.blocks.period
    what = "blocks" if period == 1 else f"groups of {period} blocks"
    return Trial(
        recipe,
        depth.deepen(three.log, blocks),
        below.deepen(three.host, blocks),
        *grown(two, three, blocks - 3),
        f"a dry run of 3 of its {blocks} {what}",
        (two.log, three.log),
        blocks,
    )


def grown(few: Trial, many: Trial, times: int) -> tuple[dict, dict]:
    """Clock and traffic where what `many` has more than `few` comes so many times more."""
    clock = {call: seconds + (seconds - few.clock.get(call, 0.0)) * times for call, seconds in many.clock.items()}
    traffic = {
        name: tuple(b + (b - a) * times for a, b in zip(few.traffic.get(name, (0, 0)), both, strict=True))
        for name, both in many.traffic.items()
    }
    return clock, traffic


def run_once(source: Source, recipe: Recipe, machine: Machine | None = None, traffic: bool = True) -> Trial:
    """The dry run of just this model.

    Of many micro-batches one and two are run: each further one takes the seconds and bytes on the wire that the second added,
    and its inputs.
    """
    more = recipe.accumulation - 2
    if more <= 0:
        return run_in_parts(source, recipe, machine)
    found = run_in_parts(source, replace(recipe, accumulation=2), machine)
    inputs = found.log.by_kind(found.log.resident - 1)["inputs"] // 2
    log = found.log.with_event(0, inputs * more, ("", "inputs", "", ""))
    if machine is None and not (traffic and recipe.ranks > 1):  # then there is nothing to be counted
        return replace(found, recipe=recipe, log=log)
    clock, sent = grown(run_in_parts(source, replace(recipe, accumulation=1), machine), found, more)
    return replace(found, recipe=recipe, log=log, clock=clock, traffic=sent)


def run_whole(
    source: Source, recipe: Recipe, machine: Machine | None = None, idle: frozenset[str] = frozenset()
) -> Trial:
    """The dry run of all of this step; the parameters that are `idle` get no gradient in it, and so have no state."""
    work = Workload(source, recipe, idle=idle)
    usage, clock, traffic = _watch(work, machine, work.build, work.step, work.prime)
    if work.idle != idle:  # only a step tells
        return run_whole(source, recipe, machine, work.idle)
    return _trial(recipe, usage, clock, traffic)


def run_in_parts(source: Source, recipe: Recipe, machine: Machine | None = None) -> Trial:
    """As `run_whole`, to the byte: forward and backward from one dry run and the update from another, where they separate.

    Each is kept, since many recipes have one of them in common.
    """
    if source.key is not None and separates(recipe):
        passes = _run_passes(_Question(source, replace(recipe, optimizer="sgd", clipping=False), machine))
        usual = {name: getattr(Recipe, name) for name in _ONLY_IN_PASSES}
        update = _run_update(_Question(source, replace(recipe, **usual), machine, passes.idle))
        usage = joined(passes.usage, update.usage)
        if usage is not None:
            ours = {call: seconds for call, seconds in passes.clock.items() if call[0] != "update"}
            return _trial(recipe, usage, ours | update.clock, {})
    return run_whole(source, recipe, machine) if source.key is None else _run_kept(_Question(source, recipe, machine))


_ONLY_IN_PASSES = (
    *("batch", "sequence", "accumulation", "packed", "keeps_outputs", "attention", "use_cache", "label_smoothing"),
    *("chunked_loss", "trl_loss", "checkpointing", "segments", "offload_activations", "saved_on_disk", "teacher"),
)
"""What an update knows nothing of."""


def separates(recipe: Recipe) -> bool:
    """Whether forward and backward know nothing of the optimizer, and the update of nothing but parameters and gradients."""
    one_after_the_other = not (recipe.in_backward or recipe.galore or recipe.offload or recipe.eval_batch)
    return (
        one_after_the_other
        and recipe.ranks == 1
        and isinstance(recipe.optimizer, str)
        and "adafactor" not in recipe.optimizer  # whose temporaries' deaths come in another order
        and recipe.precision in ("fp32", "bf16", "autocast")
        and recipe.zero_grad == "after-update"
    )


def joined(passes: Usage, update: Usage) -> Usage | None:
    """A step of the forward and backward passes of one log, and the update of another; None where they cannot be told apart."""
    nothing = Usage((), tuple(event for event in passes.events if event[1] < 0))
    on_host = None
    if passes.host is not None or update.host is not None:
        on_host = joined(passes.host or nothing, update.host or Usage((), ()))
        if on_host is None:
            return None
    pieces, theirs = passes.pieces, update.pieces
    begin = next((n for n, (_, _, phase) in enumerate(passes.events) if phase == "update"), len(passes.events))
    mine = [n for n, event in enumerate(update.events) if event[1] >= 0 and theirs[event[1]].kind != "gradients"]
    last_birth = max((n for n in mine if update.events[n][0] > 0), default=-1)
    gradients = [n for n, event in enumerate(update.events) if event[1] >= 0 and n not in set(mine)]
    if (
        any(change > 0 for change, _, _ in passes.events[begin:])
        or min(gradients, default=len(update.events)) < last_birth
    ):
        return None
    there = sum(piece.was_there and piece.kind in ("parameters", "gradients", "buffers") for piece in pieces)
    state = [n for n, piece in enumerate(theirs) if piece.was_there and piece.kind == "optimizer state"]
    born = [n for n, piece in enumerate(theirs) if not piece.was_there]
    place_of = {n: there + new for new, n in enumerate(state)}
    place_of |= {n: len(pieces) + len(state) + new for new, n in enumerate(born)}
    if not all(update.events[n][1] in place_of for n in mine):
        return None
    ours = [(change, n + len(state) if n >= there else n, phase) for change, n, phase in passes.events]
    added = [(change, place_of[n], phase) for change, n, phase in (update.events[n] for n in mine)]
    return Usage(
        (*pieces[:there], *(theirs[n] for n in state), *pieces[there:], *(theirs[n] for n in born)),
        (*ours[: begin + 1], *added, *ours[begin + 1 :]),
        passes.grain,
        on_host,
    )


@dataclass(frozen=True)
class _Question:
    """A model and a recipe; equal where the answers are."""

    source: Source = field(compare=False)
    recipe: Recipe
    machine: Machine | None = field(default=None, compare=False)
    idle: frozenset[str] = frozenset()
    names: tuple[str | None, ...] = ()

    def __post_init__(self):
        teacher = source_of(self.recipe.teacher).key if self.recipe.teacher else None  # what its file holds today
        object.__setattr__(self, "names", (self.source.key, teacher, repr(self.machine)))


class _Part(NamedTuple):
    usage: Usage
    clock: Mapping[tuple[str, str], float]
    idle: frozenset[str]


@lru_cache(maxsize=128)
def _run_kept(asked: _Question) -> Trial:
    return run_whole(asked.source, asked.recipe, asked.machine)


@lru_cache(maxsize=128)
def _run_passes(asked: _Question) -> _Part:
    """A step whose update keeps and makes nothing; and which parameters get no gradient in it."""
    work = Workload(asked.source, asked.recipe)
    usage, clock, _ = _watch(work, asked.machine, work.build, work.step, work.prime)
    return _Part(usage, clock, work.idle)


@lru_cache(maxsize=128)
def _run_update(asked: _Question) -> _Part:
    """The update alone, of parameters that have their gradients."""
    work, scaler = Workload(asked.source, asked.recipe, idle=asked.idle), torch.amp.GradScaler("cpu", enabled=False)

    def build() -> tuple:
        model = work.make_model()
        return model, work.make_optimizer(model), []

    def warm(*built) -> None:
        work.prime(*built)
        work.give_gradients(built[0])

    usage, clock, _ = _watch(work, asked.machine, build, lambda *built: work.update(*built[:2], scaler), warm)
    return _Part(usage, {call: seconds for call, seconds in clock.items() if call[0] == "update"}, asked.idle)


def _watch(
    work: Workload, machine: Machine | None, build: Callable, step: Callable, warm: Callable
) -> tuple[Usage, dict, dict]:
    """What a dry run uses, the seconds of each phase and operator, and what is sent, by collective."""
    recipe, watch = work.recipe, OperatorWatch(HOST if work.recipe.device == "cuda" else None)
    entries: list = []
    clock, traffic = Counter(), {}

    @contextmanager
    def timed(phase: str) -> Iterator[None]:
        begin = len(watch.operators)
        yield
        for name, asked in watch.operators[begin:]:
            clock[phase, name] += machine.seconds(asked)

    @contextmanager
    def watched() -> Iterator[None]:
        with ExitStack() as entered:
            if recipe.ranks > 1:
                entries.append(entered.enter_context(counted()))
            if machine is not None:
                entered.enter_context(watch)
                entered.enter_context(observed_by(timed))
            yield

    usage = run_dry(build, step, recipe.device, recipe.ranks, warm=warm, watch=watched)
    for entry in (entry for one in entries for entry in one.entries):
        sent, messages = traffic.get(entry.collective, (0, 0))
        traffic[entry.collective] = sent + entry.sent, messages + entry.messages
    return usage, clock, traffic


def _trial(recipe: Recipe, usage: Usage, clock: Mapping, traffic: Mapping) -> Trial:
    host = Log.of(usage.host) if usage.host is not None else Log.nothing()
    return Trial(recipe, Log.of(usage), host, clock, traffic)
