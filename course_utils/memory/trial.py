"""One recipe tried dry: bytes on the device and on the host, seconds, and bytes on the wire, of a model of any depth."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from course_utils.distributed.traffic import counted
from course_utils.hardware import Machine, OperatorWatch
from course_utils.memory.as_cuda import HOST
from course_utils.memory.dry_run import run_dry
from course_utils.memory.finder import cut
from course_utils.memory.found import Depth, Log
from course_utils.memory.model import Source
from course_utils.memory.recipe import Recipe
from course_utils.memory.workload import Workload


@dataclass(frozen=True)
class Trial:
    """What a step by `recipe` takes. `sent` are the bytes that a rank sends in a step; `how` says what was run dry."""

    recipe: Recipe
    log: Log
    host: int
    seconds: float
    sent: int
    how: str

    @property
    def peak(self) -> int:
        """Bytes at the fullest instant."""
        return self.log.peak

    @cached_property
    def by_phase(self) -> dict[str, dict[str, int]]:
        """Bytes by kind at the fullest instant of each phase."""
        return {phase: self.log.by_kind(place) for phase, place in self.log.fullest().items()}


@dataclass(frozen=True)
class _Run:
    log: Log
    host: Log
    seconds: float
    sent: int


def attempt(source: Source, recipe: Recipe, machine: Machine | None = None) -> Trial:
    """Try `recipe` dry, with seconds where a machine is named.

    A model of many equal blocks is tried with two and with three of them; where the second log is not the first with more put
    in, with all.
    """
    found = cut(source.config, 3)
    if found is not None:
        blocks = found[1]
        fewer, more = (_run(source.with_config(cut(source.config, count)[0]), recipe, machine) for count in (2, 3))
        depth, below = Depth.between(fewer.log, more.log, 3), Depth.between(fewer.host, more.host, 3)
        deeper = (depth, more.log), (below, more.host)
        if depth is not None and below is not None and (depth.sure or _confirmed(depth, more, source, recipe)):
            seconds, sent = (
                b + (b - a) * (blocks - 3) for a, b in ((fewer.seconds, more.seconds), (fewer.sent, more.sent))
            )
            log, host = (d.deepened(one.changes, one.labels, blocks, one.grain) for d, one in deeper)
            return Trial(recipe, log, host.peak, seconds, sent, f"a dry run of 3 of its {blocks} blocks")
    run = _run(source, recipe, machine)
    return Trial(recipe, run.log, run.host.peak, run.seconds, run.sent, "a dry run")


def _confirmed(depth: Depth, more: _Run, source: Source, recipe: Recipe) -> bool:
    """Whether a model of four blocks takes what was worked out from two and three."""
    expected = depth.deepened(more.log.changes, more.log.labels, 4, more.log.grain)
    return np.array_equal(expected.totals, _run(source.with_config(cut(source.config, 4)[0]), recipe, None).log.totals)


def _run(source: Source, recipe: Recipe, machine: Machine | None) -> _Run:
    work, watch, ledgers = Workload(source, recipe), OperatorWatch(HOST if recipe.device == "cuda" else None), []

    @contextmanager
    def watched() -> Iterator[None]:
        with ExitStack() as entered:
            if recipe.ranks > 1:
                ledgers.append(entered.enter_context(counted()))
            if machine is not None:
                entered.enter_context(watch)
            yield

    usage = run_dry(work.build, work.step, recipe.device, recipe.ranks, warm=work.prime, watch=watched)
    seconds = sum(machine.seconds(operator.work) for operator in watch.operators) if machine else float("nan")
    host = Log.of(usage.host) if usage.host is not None else Log.nothing()
    return _Run(Log.of(usage), host, seconds, sum(ledger.sent for ledger in ledgers))
