"""What data-parallel training sends: bytes and rounds around a ring of ranks, and what each rank keeps under ZeRO.

Symbols: N ranks, P parameters, k micro-batches of an update, H updates between two averages, b buckets.
"""

from dataclasses import dataclass
from fractions import Fraction
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from course_utils.errors import CourseError, require_count, suggest

if TYPE_CHECKING:
    import pandas as pd

METHODS = ("ddp", "zero1", "zero2", "zero3", "local-sgd")
# Every piece but a rank's own goes around the ring once; an all-reduce is a reduce-scatter and then an all-gather.
_TIMES_AROUND = {"reduce-scatter": 1, "all-gather": 1, "all-reduce": 2}


class Times(NamedTuple):
    """How often an update does something, as a number and as it stands in the formula."""

    number: Fraction
    symbol: str


@dataclass(frozen=True)
class Collective:
    """One kind of collective of an update: what `bytes`, `rounds` and `formula` say is per rank and per update.

    `payload` is the number of bytes that every rank has before or after it; `times` is how often an update does it.
    """

    kind: str
    payload_of: str
    payload: int
    ranks: int
    times: Times
    buckets: int

    @property
    def bytes(self) -> float:
        """Bytes that a rank sends: the mean over the ranks, which differ by a few where N does not divide the elements."""
        return float(self._steps * Fraction(self.payload, self.ranks))

    @property
    def rounds(self) -> float:
        """Messages that a rank sends one after the other, each waiting for the one before."""
        return float(self._steps * self.buckets)

    @property
    def formula(self) -> str:
        """The two formulas, to be read beside `bytes` and `rounds`."""
        repeats = f"{self.times.symbol} × " if self.times.symbol else ""
        steps = "2(N − 1)" if _TIMES_AROUND[self.kind] == 2 else "(N − 1)"
        buckets = " × b" if self.buckets > 1 else ""
        return f"{repeats}{steps} / N × {self.payload_of} bytes in {repeats}{steps}{buckets} rounds"

    @property
    def _steps(self) -> Fraction:
        return self.times.number * _TIMES_AROUND[self.kind] * (self.ranks - 1)


@dataclass(frozen=True)
class Communication:
    """What one rank sends in one update, collective by collective; it receives as much."""

    terms: tuple[Collective, ...]

    @property
    def bytes(self) -> float:
        """Bytes that a rank sends in an update; the whole ring sends N times as many."""
        return sum(term.bytes for term in self.terms)

    @property
    def rounds(self) -> float:
        """Messages one after the other in an update."""
        return sum(term.rounds for term in self.terms)

    def seconds(self, bandwidth: float, latency: float) -> float:
        """Seconds of an update on links of `bandwidth` bytes/s in each direction and `latency` s a message, none hidden.

        bytes / bandwidth + rounds × latency. What overlaps with computation need not be waited for. Raises `CourseError`
        unless the bandwidth is above zero and the latency not below.
        """
        if bandwidth <= 0 or latency < 0:
            raise CourseError(
                f"bandwidth={bandwidth} and latency={latency} describe no network; "
                "give bytes per second above 0 and seconds not below 0."
            )
        return self.bytes / bandwidth + self.rounds * latency

    def frame(self) -> "pd.DataFrame":
        """A row per collective: what, how much, and by which formula."""
        import pandas as pd  # ranks need none, and have to start quickly

        names = ("kind", "payload_of", "bytes", "rounds", "formula")
        return pd.DataFrame(map(attrgetter(*names), self.terms), columns=list(names))


def communication(
    method: str,
    parameters: int,
    ranks: int,
    *,
    parameter_bytes: int = 4,
    gradient_bytes: int = 4,
    accumulation: int = 1,
    no_sync: bool | None = None,
    sync_every: int = 1,
    buckets: int = 1,
) -> Communication:
    """What `method` sends per update, for a model of `parameters` trained elements on a ring of `ranks`.

    - `ddp` (Li et al. 2020): an all-reduce of the gradients.
    - `zero1`, `zero2` (Rajbhandari et al. 2020, section 7): a reduce-scatter of the gradients, and after the update an
      all-gather of the parameters: together as much as `ddp`. (FSDP without resharding after forward stands in for
      `zero2`; it gathers the parameters before every forward pass instead.)
    - `zero3`, FSDP's full sharding: all-gathers of the parameters for every forward and every backward pass, and a
      reduce-scatter of the gradients: half as much again.
    - `local-sgd` (Stich 2019): an all-reduce of the parameters after `sync_every` updates.

    `accumulation` is the number of micro-batches in an update. With `no_sync` gradients are added up on each rank and
    sent once an update, without it once a micro-batch. By default as usual: without it only where a rank keeps no more
    than its shard of the gradients, in `zero2` and `zero3`. `parameter_bytes` and `gradient_bytes` are those of one element
    as sent (2 in bfloat16), `buckets` the pieces in which a whole model is sent one after the other (DDP's buckets, FSDP's
    blocks): the bytes stay, the rounds multiply.

    Ring algorithms (Patarasuk & Yuan 2009): N − 1 rounds, each sending one N-th, for a reduce-scatter or an all-gather, and
    both for an all-reduce. Raises `CourseError` for an unknown method, fewer than two ranks, counts below 1, and a setting
    that the method does not have.
    """
    _check_method(method, sync_every, no_sync)
    sizes = {"parameters": parameters, "parameter_bytes": parameter_bytes, "gradient_bytes": gradient_bytes}
    counts = {"accumulation": accumulation, "sync_every": sync_every, "buckets": buckets, "ranks": ranks}
    for name, count in (sizes | counts).items():
        require_count(name, count)
    if ranks < 2:
        raise CourseError(f"ranks={ranks} leaves nobody to send to; use at least 2.")
    payloads = {
        "gradients": (f"{gradient_bytes}P", parameters * gradient_bytes),
        "parameters": (f"{parameter_bytes}P", parameters * parameter_bytes),
    }
    terms = _collectives(method, Fraction(accumulation), no_sync, Fraction(sync_every))
    return Communication(tuple(Collective(kind, *payloads[name], ranks, times, buckets) for kind, name, times in terms))


def zero_bytes_per_rank(
    parameters: int,
    ranks: int,
    stage: int,
    parameter_bytes: int = 2,
    gradient_bytes: int = 2,
    optimizer_bytes: int = 12,
) -> int:
    """Bytes of parameters, gradients and optimizer state that the fullest of `ranks` keeps under ZeRO stage 0 to 3.

    Stage 1 shares out the optimizer state, 2 also the gradients, 3 also the parameters (Rajbhandari et al. 2020, figure 1);
    stage 0 nothing. Bytes are per element; the defaults are the paper's mixed precision with Adam, K = 12 being float32
    parameters and two averages. Activations, buffers and, in stage 3, the parameters gathered for the moment come on top.
    Raises `CourseError` for another stage or a count below 1.
    """
    if stage not in range(4):
        raise CourseError(f"ZeRO has no stage {stage!r}; use 0, 1, 2 or 3.")
    require_count("parameters", parameters)
    require_count("ranks", ranks)
    shard = -(-parameters // ranks)
    first_shared = ((optimizer_bytes, 1), (gradient_bytes, 2), (parameter_bytes, 3))
    return sum(size * (shard if stage >= first else parameters) for size, first in first_shared)


def _collectives(method: str, k: Fraction, no_sync: bool | None, sync_every: Fraction) -> list[tuple[str, str, Times]]:
    """Kind of collective, what it carries, how often per update."""
    once, per_micro_batch, per_average = Times(Fraction(1), ""), Times(k, "k"), Times(1 / sync_every, "1/H")
    whole_gradients = method in ("ddp", "zero1") if no_sync is None else no_sync
    reductions = once if whole_gradients else per_micro_batch
    if method == "ddp":
        return [("all-reduce", "gradients", reductions)]
    if method == "local-sgd":
        return [("all-reduce", "parameters", per_average)]
    gathers = 2 * [per_micro_batch] if method == "zero3" else [once]
    return [("reduce-scatter", "gradients", reductions), *(("all-gather", "parameters", times) for times in gathers)]


def _check_method(method: str, sync_every: int, no_sync: bool | None) -> None:
    if method not in METHODS:
        raise CourseError(f"No method is called {method!r}; {suggest(method, METHODS)}")
    if method == "local-sgd" and no_sync is not None:
        raise CourseError("Local SGD never sends gradients; leave no_sync out.")
    if method != "local-sgd" and sync_every != 1:
        raise CourseError(f"sync_every={sync_every} belongs to local SGD; leave it out, or choose method='local-sgd'.")
