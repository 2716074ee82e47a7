"""The staff's part of `course`. Each command is a module here with `HELP`, `add_arguments` and `run`, named in pyproject.toml."""

import argparse
import os


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def seconds(text: str) -> float:
    """The time limit that a user typed; raises `ArgumentTypeError` for a text that is not one."""
    try:
        limit = float(text)
    except ValueError:
        limit = 0.0
    if not 0 < limit < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a time; give seconds, such as 20")
    return limit
