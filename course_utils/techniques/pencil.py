"""Checkpointing on paper: what is kept when, in multiples of a boundary, and how often blocks are computed."""

from typing import NamedTuple

from course_utils.techniques.segments import segment_ranges


class Moment(NamedTuple):
    """What is kept from `time` on, in boundaries; time counts forward passes of one block, and its backward takes two."""

    time: int
    boundaries: float
    activations: float


def walk(blocks: int, segments: int | None, activations: float) -> list[Moment]:
    """Forward and backward through `blocks`, each of which saves `activations` times as much as its input has.

    With `segments` each keeps its input, a boundary, and is computed again as a whole; with None everything is kept.
    Raises `CourseError` as `segment_ranges` does.
    """
    if segments is None:
        forward = [Moment(index, 0, activations * (index + 1)) for index in range(blocks)]
        back = [Moment(blocks + 2 * (index + 1), 0, activations * (blocks - index - 1)) for index in range(blocks)]
        return [*forward, *back]
    ranges = segment_ranges(blocks, segments)
    moments = [Moment(run[0], number + 1, 0) for number, run in enumerate(ranges)]
    time = blocks
    for number, run in reversed(list(enumerate(ranges))):
        moments += [Moment(time + index, number + 1, activations * (index + 1)) for index in range(len(run))]
        time += len(run)
        for left in reversed(range(len(run))):
            time += 2
            moments.append(Moment(time, number + (left > 0), activations * left))
    return moments


def peak(blocks: int, segments: int | None, activations: float) -> float:
    """The fullest moment of `walk`, in boundaries: for a segment of n blocks with j boundaries, j + n · `activations`."""
    return max(moment.boundaries + moment.activations for moment in walk(blocks, segments, activations))


def best_segments(blocks: int, activations: float) -> int:
    """The number of segments with the lowest peak, the smallest such number."""
    return min(range(1, blocks + 1), key=lambda segments: peak(blocks, segments, activations))
