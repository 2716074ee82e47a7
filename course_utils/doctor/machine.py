"""The machine: its disk, memory, display and GPUs."""

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from course_utils.doctor.choices import LARGE_MODEL
from course_utils.doctor.finding import Finding
from course_utils.settings import variables
from course_utils.units import GiB, format_bytes

# Measured: a notebook's process that has imported every library and trained at laptop scale holds 0.6 GiB, a worker with torch
# alone 0.25 GiB. With four workers that is 1.6 GiB; the rest is for the browser's page. The models add less than 0.1 GiB.
_PROCESSES = 2 * GiB
NEEDED_MEMORY = {"smoke": _PROCESSES, "laptop": _PROCESSES, "gpu": _PROCESSES + LARGE_MODEL}
# Executed copies, checkpoints of the largest model with its optimizer's state.
NEEDED_DISK = 3 * GiB


def probe_home(home: Path) -> Finding:
    """Whether the folder for cache, checkpoints and ledger can be written, with the free disk there."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home):
            free = shutil.disk_usage(home).free
    except OSError as error:
        remedy = "Set COURSE_HOME to a folder of your own, or make this one writable."
        return Finding("fix", f"{home} cannot be written to ({error.strerror or error}).", remedy)
    return judge_disk(home, free)


def judge_disk(home: Path, free: int) -> Finding:
    """Whether `free` bytes are enough."""
    text = f"Cache, checkpoints and ledger go to {home}, where {format_bytes(free)} are free"
    if free >= NEEDED_DISK:
        return Finding("ok", text)
    return Finding(
        "note", f"{text}; up to {format_bytes(NEEDED_DISK)} are used.", "Set COURSE_HOME to a folder on a larger disk."
    )


def find_memory(scale: str, device: str) -> Finding:
    """`probe_memory` on this machine, as it is now."""
    try:
        import psutil
    except ModuleNotFoundError:
        return Finding("note", "How much memory is available cannot be told without psutil.")
    memory = psutil.virtual_memory()
    return probe_memory(scale, device, os.cpu_count() or 1, memory.available, memory.total)


def probe_memory(scale: str, device: str, cores: int, available: int, total: int) -> Finding:
    """Whether `available` bytes of main memory are enough for the scale on the device."""
    text = f"{cores} cores, {format_bytes(available)} of {format_bytes(total)} memory available"
    needed = NEEDED_MEMORY["laptop" if device == "cuda" else scale]
    if available >= needed:
        return Finding("ok", text)
    remedy = "Close other programs" + ("." if scale in ("smoke", "laptop") else ", or set COURSE_SCALE=laptop.")
    return Finding("fix", f"{text}; that is too little: the {scale} scale takes up to {format_bytes(needed)}.", remedy)


def has_display(environment: Mapping[str, str] | None = None, platform: str = sys.platform) -> bool:
    """Whether a browser opened from here would be seen by the person who asked for it; `environment` is by default ours."""
    if environment is None:
        environment = variables("CI", "SSH_CONNECTION", "DISPLAY", "WAYLAND_DISPLAY")
    if environment.get("CI") or environment.get("SSH_CONNECTION"):
        return False
    return not platform.startswith("linux") or bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def probe_display(present: bool) -> Finding:
    """Whether `course lab` will open a browser."""
    if present:
        return Finding("ok", "`course lab` opens a browser here")
    return Finding("note", "There is no display here: `course lab` prints an address to open elsewhere.")


def gpus() -> list[tuple[str, int]]:
    """Name and bytes of memory of every GPU that PyTorch sees."""
    import torch

    every = (torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count()))
    return [(gpu.name, gpu.total_memory) for gpu in every]
