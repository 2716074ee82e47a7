"""Time several variants of one thing in turn, so that a machine whose speed drifts is fair to all of them."""

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Mapping

from course_utils.units import format_seconds


def compare(variants: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each variant in each round; in a round every variant runs once, and every other round in the opposite order."""
    seconds = {name: [] for name in variants}
    for round_ in range(rounds + 1):
        order = list(variants) if round_ % 2 else list(variants)[::-1]
        for name in order:
            start = time.perf_counter()
            variants[name]()
            if round_:  # the first round warms up
                seconds[name].append(time.perf_counter() - start)
    return seconds


def summarize(seconds: Mapping[str, list[float]], unit: int = 1, digits: int = 2) -> dict[str, tuple[str, str]]:
    """The median of each variant, divided by `unit`, and its ratio to the first, round by round: median (min to max)."""
    reference, summaries = next(iter(seconds.values())), {}
    for name, times in seconds.items():
        ratios = [t / r for t, r in zip(times, reference, strict=True)]
        middle, low, high = (f"{ratio:.{digits}f}" for ratio in (statistics.median(ratios), min(ratios), max(ratios)))
        summaries[name] = format_seconds(statistics.median(times) / unit), f"{middle} ({low} to {high})"
    return summaries


def report(seconds: Mapping[str, list[float]], unit: int = 1) -> None:
    """Print what `summarize` says, a line for each variant."""
    width = max(map(len, seconds))
    print(f"{'':{width}s}   median       ratio to the first: median (min to max)")
    for name, (median, ratio) in summarize(seconds, unit, digits=3).items():
        print(f"{name:{width}s}   {median:>10s}   {ratio}")


def print_tables(
    purpose: str, groups: Mapping[str, Mapping], head: str, rows: Callable[[Mapping, int], Iterable[str]]
) -> None:
    """Run a benchmark's command: print `rows(variants, rounds)` below `head`, a Markdown table for each group asked for."""
    parser = argparse.ArgumentParser(description=purpose)
    parser.add_argument("groups", nargs="*", help="which groups; by default all")
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    for name, variants in groups.items():
        if not arguments.groups or name in arguments.groups:
            print(f"\n**{name}**\n\n{head}\n{'|---' * head.count(' |')}|")
            print("\n".join(rows(variants, arguments.rounds)), flush=True)
