"""An answer used on every rank of a process group at once: its values there, and what it sends.

Values alone cannot tell a ring from a rank that collects everything, so sends are counted where torch.distributed does them.
"""

import copy
import sys
import threading
from collections.abc import Callable, Mapping
from types import TracebackType

import torch.distributed as dist

from course_utils.distributed import Traffic, counted, launch
from course_utils.grading.compare import at_most
from course_utils.grading.foreign import forbid
from course_utils.grading.question import Case
from course_utils.grading.values import plain, same
from course_utils.units import format_counted

RANK_SECONDS = 15.0
"""The time limit of the ranks, start included: below that of a case, so that it can be said what they waited for."""
PATIENCE = 10.0
"""How long the work on a rank may take, which is tiny where nothing else runs."""
MESSAGES, BYTES, PARTNERS, COLLECTIVES = "messages sent", "bytes sent", "ranks sent to", "collectives"
LEFT = "arguments left as they were"
_COUNTED = (MESSAGES, BYTES, PARTNERS, COLLECTIVES)


def case(name: str, calls: dict[str, list[dict]]) -> Case:
    """A case of several calls in one start of the ranks: each has a name, and the inputs of rank 0, rank 1, …"""
    return Case(name, {"calls": calls})


def so_many(count: int) -> str:
    """How many ranks, in words: what a case is called by."""
    return format_counted(count, "rank")


def run_on_ranks(
    use: Callable, answer: Callable, calls: dict, sends: Callable, in_place: tuple[str, ...], replaces: tuple[str, ...]
) -> dict:
    """The values, by call and rank, of `use(answer, **inputs of the rank)`, with those counts that `sends(rank, inputs of all
    ranks)` names; raises as `launch` does. On the ranks nothing of `replaces` can be used.
    """
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
    """What this rank of a running process group gets, by call."""
    forbid(replaces)  # this process was started for it alone
    rank = dist.get_rank()
    return {name: _call(use, answer, by_rank[rank], in_place) for name, by_rank in calls.items()}


def rules_for(exact_or_most: Mapping) -> dict:
    """A rule for each count that is asked for: a float is the most that is allowed, anything else is compared."""
    return {name: at_most(value) if type(value) is float else value for name, value in exact_or_most.items()}


def _normalize_counts(values: dict, exact_or_most: Mapping) -> dict:
    """Drop the counts that nobody asks for, and raise those within their limit to it: how far below it an answer stays is a
    matter of style, and one mistake in two styles should look the same.
    """
    wanted = {name: value for name, value in values.items() if name in exact_or_most or name not in _COUNTED}
    most = {name: limit for name, limit in exact_or_most.items() if type(limit) is float and name in wanted}
    return {**wanted, **{name: max(wanted[name], limit) for name, limit in most.items()}}


def counts(traffic: Traffic) -> dict:
    """Numbers of messages and collectives, bytes, and to whom messages went; a collective's own messages are not counted."""
    sends = [entry for entry in traffic.entries if entry.collective == "send"]
    collectives = [entry for entry in traffic.entries if entry.collective not in ("send", "receive")]
    return {
        MESSAGES: len(sends),
        BYTES: traffic.sent,
        PARTNERS: sorted({entry.to for entry in sends}),
        COLLECTIVES: len(collectives),
    }


def run_with_timeout(seconds: float, work: Callable, *arguments):
    """`work(*arguments)` in a thread of its own; raises `TimeoutError` from where it stands after `seconds`.

    A rank that waits in a collective hears of no signal, so the main thread tells what it waits for.
    """
    ended: dict = {}

    def run() -> None:
        try:
            ended["result"] = work(*arguments)
        except BaseException as error:
            ended["error"] = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not ended:
        late = TimeoutError(
            f"not done after {seconds:g} s; look for a loop, for a message that nobody sends or receives, for an `isend` whose "
            "`wait()` is missing, or for collectives that not all ranks call equally often"
        )
        trace, frame = None, sys._current_frames().get(thread.ident)
        while frame:  # the way to where the thread stands, as an exception raised there would show it
            trace = TracebackType(trace, frame, frame.f_lasti, frame.f_lineno)
            frame = frame.f_back
        raise late.with_traceback(trace)
    if "error" in ended:
        raise ended["error"]
    return ended["result"]


def _call(use: Callable, answer: Callable, inputs: dict, in_place: tuple[str, ...]) -> dict:
    mine = copy.deepcopy(inputs)
    dist.barrier()  # else a fast rank of the next call could be taken for a slow one of this
    with counted() as traffic:
        result = use(answer, **mine)
    values = plain(result if type(result) is dict else {"result": result})
    left = all(same(inputs[name], mine[name]) for name in inputs if name not in in_place)
    return {**values, **{name: plain(mine[name]) for name in in_place}, LEFT: left, **counts(traffic)}
