"""Bytes and rounds of every method, against a ring that passes messages."""

from dataclasses import dataclass
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_utils.distributed.communication import METHODS, communication, zero_bytes_per_rank
from course_utils.errors import CourseError


@dataclass
class Ring:
    """Ranks in a circle that pass chunks of lists to their right-hand neighbors; every message is counted."""

    ranks: int
    sent: int = 0
    rounds: int = 0

    def pass_on(self, buffers, bounds, first, itemsize, receive):
        """In round s, rank r sends chunk r + first - s; all of a round's messages are under way at once."""
        for s in range(self.ranks - 1):
            messages = []
            for r in range(self.ranks):
                low, high = bounds[(r + first - s) % self.ranks]
                messages.append(((r + 1) % self.ranks, low, buffers[r][low:high]))
            for receiver, low, chunk in messages:
                self.sent += len(chunk) * itemsize
                for i, value in enumerate(chunk):
                    buffers[receiver][low + i] = receive(buffers[receiver][low + i], value)
            self.rounds += 1

    def bounds(self, length):
        sizes = [length // self.ranks + (i < length % self.ranks) for i in range(self.ranks)]
        return list(pairwise(accumulate(sizes, initial=0)))

    def reduce_scatter(self, buffers, itemsize):
        self.pass_on(buffers, self.bounds(len(buffers[0])), 0, itemsize, lambda value, incoming: value + incoming)

    def all_gather(self, buffers, itemsize):
        self.pass_on(buffers, self.bounds(len(buffers[0])), 1, itemsize, lambda _, incoming: incoming)

    def all_reduce(self, buffers, itemsize):
        self.reduce_scatter(buffers, itemsize)
        self.all_gather(buffers, itemsize)


@given(ranks=st.integers(2, 7), length=st.integers(1, 30))
def test_the_ring_of_these_tests_really_sums(ranks, length):
    buffers = [[(r + 1) * 100**i for i in range(length)] for r in range(ranks)]
    Ring(ranks).all_reduce(buffers, 4)
    assert buffers == [[sum(range(1, ranks + 1)) * 100**i for i in range(length)]] * ranks


def train(method, ring, length, p, g, k, no_sync, interval, updates):
    """Run the collectives of `updates` updates, each rank with lists of its own."""

    def tensors():
        return [[0] * length for _ in range(ring.ranks)]

    for update in range(1, updates + 1):
        for micro_batch in range(1, k + 1):
            if method == "zero3":
                ring.all_gather(tensors(), p)  # forward
                ring.all_gather(tensors(), p)  # backward
            if no_sync and micro_batch < k:
                continue
            if method == "ddp":
                ring.all_reduce(tensors(), g)
            elif method.startswith("zero"):
                ring.reduce_scatter(tensors(), g)
        if method in ("zero1", "zero2"):
            ring.all_gather(tensors(), p)
        if method == "local-sgd" and update % interval == 0:
            ring.all_reduce(tensors(), p)


@given(
    method=st.sampled_from(METHODS),
    ranks=st.integers(2, 6),
    length=st.integers(1, 40),
    p=st.sampled_from([2, 4]),
    g=st.sampled_from([2, 4]),
    k=st.integers(1, 4),
    no_sync=st.booleans(),
    interval=st.integers(1, 5),
)
def test_bytes_and_rounds_are_those_of_a_ring_that_passes_messages(method, ranks, length, p, g, k, no_sync, interval):
    local = method == "local-sgd"
    ring = Ring(ranks)
    interval = interval if local else 1
    train(method, ring, length, p, g, k, no_sync, interval, updates=2 * interval)
    traffic = communication(
        method,
        length,
        ranks,
        parameter_bytes=p,
        gradient_bytes=g,
        accumulation=k,
        no_sync=None if local else no_sync,
        sync_every=interval,
    )
    assert traffic.bytes == pytest.approx(ring.sent / ranks / (2 * interval))
    assert traffic.rounds == pytest.approx(ring.rounds / (2 * interval))


def test_the_working_is_shown_beside_the_numbers():
    frame = communication("zero2", 1000, 4, gradient_bytes=2, accumulation=3, buckets=5).frame()
    assert list(frame["kind"]) == ["reduce-scatter", "all-gather"]
    assert list(frame["formula"]) == [
        "k × (N − 1) / N × 2P bytes in k × (N − 1) × b rounds",
        "(N − 1) / N × 4P bytes in (N − 1) × b rounds",
    ]
    assert list(frame["bytes"]) == [3 * 3 / 4 * 2000, 3 / 4 * 4000]
    assert list(frame["rounds"]) == [3 * 3 * 5, 3 * 5]


def test_seconds_are_bandwidth_and_latency():
    traffic = communication("ddp", 1000, 5, buckets=2)
    assert traffic.seconds(bandwidth=1e3, latency=0) == pytest.approx(6.4)
    assert traffic.seconds(bandwidth=1e12, latency=1.0) == pytest.approx(16)
    for bandwidth, latency in [(0, 0), (1, -1)]:
        with pytest.raises(CourseError, match="describe no network"):
            traffic.seconds(bandwidth, latency)


def test_the_table_of_zero():
    billions = [zero_bytes_per_rank(7_500_000_000, ranks=64, stage=stage) / 1e9 for stage in range(4)]
    assert [f"{billions[0]:.0f}", *(f"{x:.1f}" for x in billions[1:])] == ["120", "31.4", "16.6", "1.9"]


@given(parameters=st.integers(1, 100), ranks=st.integers(1, 9), stage=st.integers(1, 3))
def test_the_shards_of_all_ranks_hold_everything(parameters, ranks, stage):
    owned = [len(range(r, parameters, ranks)) for r in range(ranks)]
    bytes_kept = [
        4 * parameters + 12 * count if stage == 1 else 2 * parameters + 14 * count if stage == 2 else 16 * count
        for count in owned
    ]
    assert zero_bytes_per_rank(parameters, ranks, stage) == max(bytes_kept)


@pytest.mark.parametrize(
    ("arguments", "options", "says"),
    [
        (("ddp", 10, 1), {}, "ranks=1 .* at least 2"),
        (("zero4", 10, 2), {}, "'zero4'; did you mean zero3"),
        (("local-sgd", 10, 2), {"sync_every": 0}, "sync_every must be a whole number from 1 on, not 0"),
        (("ddp", 10, 2), {"sync_every": 4}, "belongs to local SGD"),
        (("local-sgd", 10, 2), {"no_sync": True}, "leave no_sync out"),
        (("ddp", 10, 2), {"accumulation": 0}, "accumulation must be a whole number from 1 on, not 0"),
        (("ddp", 0, 2), {}, "parameters must be a whole number from 1 on, not 0"),
        (("ddp", 10, 2), {"buckets": 1.5}, "buckets must be a whole number from 1 on, not 1.5"),
    ],
)
def test_a_contradiction_is_told_in_one_sentence(arguments, options, says):
    with pytest.raises(CourseError, match=says):
        communication(*arguments, **options)


@pytest.mark.parametrize(
    ("ranks", "stage", "says"),
    [(4, 4, "no stage 4; use 0, 1, 2 or 3"), (0, 1, "ranks must be a whole number")],
)
def test_zero_refuses_what_it_does_not_know(ranks, stage, says):
    with pytest.raises(CourseError, match=says):
        zero_bytes_per_rank(10, ranks, stage)
