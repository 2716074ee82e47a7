"""The staff's part of `course`. Each command is a module here with `HELP`, `add_arguments` and `run`, named in pyproject.toml."""

import os


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
