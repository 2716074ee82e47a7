"""Time several ways of doing one thing in turn, so that a machine whose speed drifts is fair to all of them."""

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Mapping

from course_utils.units import format_seconds


def compare(ways: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each way in each round; in a round every way runs once, and every other round in the opposite order."""
    seconds = {name: [] for name in ways}
    for round_ in range(rounds + 1):
        order = list(ways) if round_ % 2 else list(ways)[::-1]
        for name in order:
            start = time.perf_counter()
            ways[name]()
            if round_:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)
    return seconds


def report(seconds: Mapping[str, list[float]], unit: int = 1) -> None:
    """Print the median of each way, divided by `unit`, and its ratio to the first way, round by round."""
    reference = next(iter(seconds.values()))
    width = max(map(len, seconds))
    print(f"{'':{width}s}   median       ratio to the first: median (min to max)")
    for name, times in seconds.items():
        ratios = sorted(t / r for t, r in zip(times, reference, strict=True))
        spread = f"({ratios[0]:.3f} to {ratios[-1]:.3f})"
        median = format_seconds(statistics.median(times) / unit)
        print(f"{name:{width}s}   {median:>10s}   {statistics.median(ratios):.3f} {spread}")


def print_tables(
    purpose: str, groups: Mapping[str, Mapping], head: str, rows: Callable[[Mapping, int], Iterable[str]]
) -> None:
    """What a benchmark's command does: a Markdown table for each group that was asked for, `rows(ways, rounds)` below `head`."""
    parser = argparse.ArgumentParser(description=purpose)
    parser.add_argument("groups", nargs="*", help="which groups; by default all")
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    for name, ways in groups.items():
        if not arguments.groups or name in arguments.groups:
            print(f"\n**{name}**\n\n{head}\n{'|---' * head.count(' |')}|")
            print("\n".join(rows(ways, arguments.rounds)), flush=True)
