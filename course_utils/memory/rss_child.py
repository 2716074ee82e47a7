"""The process that `peak_rss` starts: reads two functions, runs them, writes what the operating system saw, as JSON."""

import ctypes
import gc
import json
import os
import pickle
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import psutil
import torch

# <malloc.h> and <linux/prctl.h>
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _THP_DISABLE = -1, -3, 41
_THRESHOLD = 65536
_CLEAR_REFS, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
_RESET_HIGH_WATER_MARK = "5"


def main() -> None:
    """Answer on the standard output, which the functions cannot reach: what they print goes to the error stream."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with answers:
        json.dump(_answer(), answers)


def _answer() -> dict:
    advice = "define or import in the notebook all that build and step use"
    try:
        before = pickle.load(sys.stdin.buffer)
        sys.path[:] = before["path"]
        torch.set_num_threads(before["threads"])
        build, step = pickle.load(sys.stdin.buffer)
        advice = "run step(*build()) by itself first"
        return measured(build, step)
    except Exception as error:  # whatever the reader's functions raise
        first_line = traceback.format_exception_only(error)[-1].splitlines()[0]
        return {"error": f"In a process of its own, the step failed ({first_line}); {advice}."}


def measured(build: Callable[[], tuple], step: Callable[..., object]) -> dict:
    """The fields of an `Rss`: bytes before and at the peak of the second step, and who says so."""
    hand_back_freed_memory()
    kept = keeps_freed_memory()
    built = build()
    if not isinstance(built, tuple):
        raise TypeError(f"build must return a tuple, the arguments of step, and returned {type(built).__name__}")
    step(*built)
    gc.collect()
    reset = _reset_high_water_mark()
    resident = psutil.Process().memory_info().rss
    step(*built)
    return {"resident": resident, "peak": max(resident, _high_water_mark()), **_witness(reset, kept)}


def hand_back_freed_memory() -> None:
    """Have the allocator return what is freed to the system, where it can be told to; no effect elsewhere."""
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_MMAP_THRESHOLD, _THRESHOLD)
        library.mallopt(_TRIM_THRESHOLD, _THRESHOLD)
    library.prctl(_THP_DISABLE, 1, 0, 0, 0)  # a huge page would count 2 MiB for the first byte that is touched


def keeps_freed_memory() -> bool:
    """Whether memory freed between blocks in use stays with the process: tried out, since any allocator may be preloaded."""
    blocks = [torch.ones(3 * _THRESHOLD // 2, dtype=torch.uint8) for _ in range(128)]
    full = psutil.Process().memory_info().rss
    freed = sum(block.nbytes for block in blocks[::2])
    del blocks[::2]
    return full - psutil.Process().memory_info().rss < 0.9 * freed


def _reset_high_water_mark() -> bool:
    try:
        _CLEAR_REFS.write_text(_RESET_HIGH_WATER_MARK)
    except OSError:
        return False
    return True


def _high_water_mark() -> int:
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset
    try:
        # Not getrusage: on Linux its figure begins with the size of the process that started this one.
        fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
        return int(fields["VmHWM"].split()[0]) * 1024
    except (OSError, KeyError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _witness(reset: bool, kept: bool) -> dict:
    doubts = [
        *([] if reset else ["the peak is that of the whole process since its start"]),
        *(["the allocator keeps freed memory"] if kept else []),
    ]
    return {"witness": "; ".join(["the operating system's count of resident pages", *doubts]), "weak": bool(doubts)}


if __name__ == "__main__":
    main()
