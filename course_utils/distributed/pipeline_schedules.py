"""Orders in which the stages of a pipeline work, and the slots that they take.

A stage's order is a list of actions. ("F", i) is the forward pass of micro-batch i and ("B", i) its backward pass. Where the
backward pass is cut in two, ("B", i) makes the gradient of the stage's input, for which the stage before waits, and ("W", i)
those of its weights.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate, product

from course_utils.errors import CourseError

Action = tuple[str, int]
WHOLE_BACKWARD = {"F": 1, "B": 2}
"""Slots that an action takes: a backward pass has two products of matrices for each one of a forward pass."""
SPLIT_BACKWARD = {"F": 1, "B": 1, "W": 1}
"""The same where the backward pass is cut in two."""


def gpipe(stages: int, micro_batches: int) -> list[list[Action]]:
    """The orders of GPipe: all forward passes, then all backward passes (Huang et al. 2019)."""
    return [[(kind, i) for kind in "FB" for i in range(micro_batches)] for _ in range(stages)]


def one_f_one_b(stages: int, micro_batches: int) -> list[list[Action]]:
    """The orders of 1F1B: forward passes until a gradient can come back, then one of each in turn (Narayanan et al. 2019)."""
    orders = []
    for stage in range(stages):
        ahead = min(stages - 1 - stage, micro_batches)
        order = [("F", i) for i in range(ahead)]
        for i in range(micro_batches - ahead):
            order += [("F", ahead + i), ("B", i)]
        orders.append(order + [("B", i) for i in range(micro_batches - ahead, micro_batches)])
    return orders


def zero_bubble(stages: int, micro_batches: int) -> list[list[Action]]:
    """1F1B with backward cut in two: stage s makes gradients of weights s micro-batches late (Qi et al. 2023, ZB-H1).

    Every stage then has as many micro-batches in flight as the first stage of 1F1B.
    """
    orders = []
    for stage, order in enumerate(one_f_one_b(stages, micro_batches)):
        split_order = []
        for kind, i in order:
            split_order += [(kind, i), ("W", i - stage)] if kind == "B" and i >= stage else [(kind, i)]
        orders.append(split_order + [("W", i) for i in range(max(0, micro_batches - stage), micro_batches)])
    return orders


def needs(stage: int, action: Action, stages: int) -> set[tuple[int, str, int]]:
    """The actions that must be done before this one: (stage, kind, micro-batch)."""
    kind, i = action
    if kind == "F":
        return {(stage - 1, "F", i)} if stage else set()
    if kind == "B":
        return {(stage, "F", i)} | ({(stage + 1, "B", i)} if stage < stages - 1 else set())
    return {(stage, "B", i)}


class Schedule:
    """The orders of all stages, and the slots in which each action begins and ends, as soon as what it needs is done.

    `spans` has (begin, end) for each (stage, kind, micro-batch), `end` is the end of the last. `cost` has the slots of each
    kind, by default `WHOLE_BACKWARD` or `SPLIT_BACKWARD`; a message to another stage takes `wire` of them. Raises
    `CourseError` where an order leaves something out or repeats it, and where all stages wait for each other.
    """

    def __init__(self, orders: Sequence[Sequence[Action]], cost: Mapping[str, int] | None = None, wire: int = 0):
        if not orders or not orders[0]:
            raise CourseError(
                "This schedule has no micro-batch; give each stage an order such as [('F', 0), ('B', 0)]."
            )
        self.orders = [list(order) for order in orders]
        self.cost = cost or (SPLIT_BACKWARD if any(kind == "W" for kind, _ in self.orders[0]) else WHOLE_BACKWARD)
        for stage, order in enumerate(self.orders):
            refuse_incomplete(stage, order, self.orders[0])
        stages = len(self.orders)
        self.spans: dict[tuple[int, str, int], tuple[int, int]] = {}
        free = [0] * stages
        left = dict(enumerate(map(list, self.orders)))
        while left:
            ready = [stage for stage in left if needs(stage, left[stage][0], stages) <= self.spans.keys()]
            if not ready:
                raise CourseError(
                    f"This schedule never ends: {', '.join(map(self._wait, left, left.values()))}; change an order."
                )
            for stage in ready:
                action = left[stage].pop(0)
                arrivals = [self.spans[need][1] + wire * (need[0] != stage) for need in needs(stage, action, stages)]
                begin = max([free[stage], *arrivals])
                self.spans[stage, *action] = begin, begin + self.cost[action[0]]
                free[stage] = begin + self.cost[action[0]]
            left = {stage: order for stage, order in left.items() if order}
        self.end = max(free)

    @property
    def bubble(self) -> Fraction:
        """The share of all stages' slots in which they wait."""
        return 1 - Fraction(sum(end - begin for begin, end in self.spans.values()), len(self.orders) * self.end)

    @property
    def in_flight(self) -> list[int]:
        """For each stage, the most micro-batches whose activations it holds at once."""
        change = {"F": 1, "W" if ("W", 0) in self.orders[0] else "B": -1}
        return [max(accumulate(change.get(kind, 0) for kind, _ in order)) for order in self.orders]

    def _wait(self, stage: int, order: Sequence[Action]) -> str:
        other, kind, i = min(needs(stage, order[0], len(self.orders)) - self.spans.keys())
        return f"stage {stage} waits at {order[0][0]}{order[0][1]} for {kind}{i} of stage {other}"


def refuse_incomplete(stage: int, order: Sequence[Action], first: Sequence[Action]) -> None:
    """Raises `CourseError` unless `order` has each action once, of the kinds and micro-batches of the `first` stage's order."""
    expected = set(product({"F", "B", *(kind for kind, _ in first)}, range(1 + max(i for _, i in first))))
    for kind, i in sorted(expected | set(order)):
        times = order.count((kind, i))
        if times != 1 or (kind, i) not in expected:
            right = "once" if (kind, i) in expected else "never, as stage 0"
            raise CourseError(f"Stage {stage} has {kind}{i} {times} times in its order; it should have it {right}.")
