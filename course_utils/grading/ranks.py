"""Runs an answer on every rank of a process group, and counts what it sends.

Values alone cannot tell a ring from a rank that collects everything, so sends are counted inside torch.distributed.
"""

import copy
import sys
import threading
from collections.abc import Callable, Mapping
from types import TracebackType

import torch.distributed as dist

from course_utils.distributed import Traffic, counted, launch
from course_utils.grading.compare import at_most
from course_utils.grading.foreign import disable
from course_utils.grading.question import Case
from course_utils.grading.values import plain, same
from course_utils.units import format_counted

RANK_SECONDS = 15.0
"""The time limit of the ranks and their start: less than that of a case, so that its sentence can say what they waited for."""
PATIENCE = 10.0
"""The seconds that the work on a rank may take."""
MESSAGES, BYTES, PARTNERS, COLLECTIVES = "messages sent", "bytes sent", "ranks sent to", "collectives"
LEFT = "arguments left as they were"
_COUNTED = (MESSAGES, BYTES, PARTNERS, COLLECTIVES)


def case(name: str, calls: dict[str, list[dict]]) -> Case:
    """A case of several calls in one start of the ranks: by each call's name, the inputs of rank 0, rank 1, …"""
    return Case(name, {"calls": calls})


def so_many(count: int) -> str:
    """The number of ranks in words, as the name of a case."""
    return format_counted(count, "rank")


def run_on_ranks(
    use: Callable, answer: Callable, calls: dict, sends: Callable, in_place: tuple[str, ...], replaces: tuple[str, ...]
) -> dict:
    """By call and rank, the values of `use(answer, **inputs of the rank)` and the counts that `sends(rank, inputs of all ranks)`
    names. On the ranks `replaces` is disabled. Raises as `launch` does."""
    work = (on_rank, use, answer, calls, in_place, replaces)
    by_rank = list(enumerate(launch(run_with_timeout, world_size(calls), PATIENCE, *work, seconds=RANK_SECONDS)))
    return {
        call: {f"rank {rank}": _normalize_counts(values[call], sends(rank, of_all)) for rank, values in by_rank}
        for call, of_all in calls.items()
    }


def world_size(calls: dict[str, list[dict]]) -> int:
    """How many ranks the calls are for."""
    return len(next(iter(calls.values())))


def on_rank(use: Callable, answer: Callable, calls: dict, in_place: tuple[str, ...], replaces: tuple[str, ...]) -> dict:
    """The values of this rank of a running process group, by call."""
    rank = dist.get_rank()
    with disable(replaces):
        return {name: _call(use, answer, by_rank[rank], in_place) for name, by_rank in calls.items()}


def expected_counts(exact_or_most: Mapping) -> dict:
    """The expected counts, with a rule for each float, which is a limit."""
    return {name: at_most(value) if type(value) is float else value for name, value in exact_or_most.items()}


def _normalize_counts(values: dict, exact_or_most: Mapping) -> dict:
    """Drop counts that are not asked for, and raise those within a limit to it, so that a mistake looks alike in all styles."""
    relevant = {name: value for name, value in values.items() if name in exact_or_most or name not in _COUNTED}
    limits = {name: limit for name, limit in exact_or_most.items() if type(limit) is float and name in relevant}
    return {**relevant, **{name: max(relevant[name], limit) for name, limit in limits.items()}}


def counts(traffic: Traffic) -> dict:
    """The numbers of messages, bytes and collectives, and the ranks sent to; a collective's own messages are not counted."""
    sends = [entry for entry in traffic.entries if entry.collective == "send"]
    collectives = [entry for entry in traffic.entries if entry.collective not in ("send", "receive")]
    return {
        MESSAGES: len(sends),
        BYTES: traffic.sent,
        PARTNERS: sorted({entry.to for entry in sends}),
        COLLECTIVES: len(collectives),
    }


def run_with_timeout(seconds: float, work: Callable[..., dict], *arguments) -> dict:
    """`work(*arguments)` in a thread; after `seconds`, raises `TimeoutError` with the thread's traceback.

    A rank that waits in a collective gets no signals, so the main thread reports what it waits for.
    """
    outcome: dict = {}

    def run() -> None:
        try:
            outcome["result"] = work(*arguments)
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        timeout = TimeoutError(
            f"not done after {seconds:g} s; look for a loop, for a message that nobody sends or receives, for an `isend` whose "
            "`wait()` is missing, or for collectives that not all ranks call equally often"
        )
        trace = None
        frame = sys._current_frames().get(thread.ident)
        while frame:  # the traceback that an exception raised by the thread now would have
            trace = TracebackType(trace, frame, frame.f_lasti, frame.f_lineno)
            frame = frame.f_back
        raise timeout.with_traceback(trace)
    if "error" in outcome:
        raise outcome["error"]
    return outcome["result"]


def _call(use: Callable, answer: Callable, inputs: dict, in_place: tuple[str, ...]) -> dict:
    arguments = copy.deepcopy(inputs)
    dist.barrier()  # so that a fast rank's next call never meets this call of a slow one
    with counted() as traffic:
        result = use(answer, **arguments)
    values = plain(result if type(result) is dict else {"result": result})
    in_place_values = {name: plain(arguments[name]) for name in in_place}
    are_others_left = all(same(inputs[name], arguments[name]) for name in inputs if name not in in_place)
    return {**values, **in_place_values, LEFT: are_others_left, **counts(traffic)}
