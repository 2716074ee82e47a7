"""What `course doctor` looks at: each probe returns or yields findings.

No probe raises, because something may be broken on this machine. Nothing here needs a package that may be missing.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from course_utils.errors import HOW_TO_INSTALL, CourseError, suggest
from course_utils.settings import Settings, read_settings, variables
from course_utils.units import GiB, format_bytes

VARIABLES = ("COURSE_SCALE", "COURSE_DEVICE", "COURSE_SEED", "COURSE_HOME", "COURSE_STRICT", "COURSE_READER")
# The gpu scale trains up to 124 million float32 parameters with AdamW: 4 x 4 bytes each, 1.9 GiB, and about twice as much again
# in activations at its batch size. On a GPU this is the GPU's; the host then only holds the processes with CUDA loaded.
LARGE_MODEL = 6 * GiB
# Measured: a notebook's process that has imported every library and trained at laptop scale holds 0.6 GiB, a worker with torch
# alone 0.25 GiB. With four workers that is 1.6 GiB; the rest is for the browser's page. The models add less than 0.1 GiB.
_PROCESS_MEMORY = 2 * GiB
NEEDED_MEMORY = {"smoke": _PROCESS_MEMORY, "laptop": _PROCESS_MEMORY, "gpu": _PROCESS_MEMORY + LARGE_MODEL}
NEEDED_DISK = 3 * GiB  # executed copies, and checkpoints of the largest model with its optimizer's state
_ADAM_8BIT = """
import torch, bitsandbytes
weight = torch.nn.Parameter(torch.ones(8192, device="cuda" if torch.cuda.is_available() else "cpu"))
optimizer = bitsandbytes.optim.Adam8bit([weight], lr=0.1)
weight.square().sum().backward()
optimizer.step()
assert optimizer.state[weight]["state1"].dtype == torch.uint8 and bool((weight < 1).all())
"""


@dataclass(frozen=True)
class Finding:
    """A probe's result. `level`: all is well (`ok`), good to know (`note`), or the `remedy` mends it (`fix`)."""

    level: Literal["ok", "note", "fix"]
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.level:4}  {self.text}" + (f"\n      -> {self.remedy}" if self.remedy else "")


def examine() -> Iterator[Finding]:
    """All findings about this machine, one by one; the slow ones come last."""
    environment = variables("COURSE_")
    findings = {name: probe_variable(name, value) for name, value in sorted(environment.items())}
    yield from filter(None, findings.values())
    settings = read_settings({name: value for name, value in environment.items() if findings[name] is None})
    yield from essentials(settings)
    yield probe_home(settings.home)
    if installed_version("bitsandbytes"):
        yield probe_8bit_adam()
    if find_spec("course_staff"):
        yield probe_sandbox()


def essentials(settings: Settings) -> Iterator[Finding]:
    """The quick findings: Python, system, packages, device, scale and memory. Only those of level `fix` may contain a path."""
    system = f"{platform.system()} {platform.release()} on {platform.machine()}"
    yield Finding("ok", f"Python {platform.python_version()}; {system}")
    yield from probe_packages()
    if installed_version("torch") is None:
        return
    if trouble := probe_import("torch"):
        yield trouble
        return
    import torch

    try:
        gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        yield probe_device(str(settings.device), [(gpu.name, gpu.total_memory) for gpu in gpus])
    except CourseError as error:
        yield Finding("fix", str(error), "Or install a PyTorch built for CUDA and the GPU's driver.")
        settings = replace(settings, device_name="cpu")
    scale, device = settings.scale.name, str(settings.device)
    reason = "set by COURSE_SCALE" if settings.scale_name != "auto" else f"the default on {device}"
    yield Finding("ok", f"Chapters run at {scale} scale: {reason}")
    if installed_version("psutil"):
        yield probe_memory(scale, device)


def verdict(findings: list[Finding]) -> str:
    """Whether all of the course runs here, in one sentence."""
    count = sum(finding.level == "fix" for finding in findings)
    if count:
        return f"To fix: {count}, marked 'fix' above. Chapters that do not depend on it already run."
    return "Every chapter runs here. Cells that need a GPU or the Hub say so and use the CPU or bundled data instead."


def probe_variable(name: str, value: str) -> Finding | None:
    """What is wrong with a variable `COURSE_…`: its value cannot be used, or the course does not have it; else None."""
    if name not in VARIABLES:
        choices = f"those are {', '.join(VARIABLES)}."
        return Finding("note", f"{name} is set but is not a course variable; {suggest(name, VARIABLES, choices)}")
    try:
        read_settings({name: value})
    except CourseError as error:
        return Finding("fix", f"{name}={value} cannot be used.", str(error))
    return None


def installed_version(name: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def probe_packages() -> Iterator[Finding]:
    """Whether the course is installed; one finding for all packages that are as it requires, and one for each that is not.

    What only `course lab` needs is a note where it is missing or old: a hosted notebook service brings its own.
    """
    if installed_version("course-utils") is None or installed_version("packaging") is None:
        yield Finding("fix", "The course's packages are not installed.", f"To install them, {HOW_TO_INSTALL}.")
        return
    from packaging.requirements import Requirement

    good, wrong = {}, set()  # a package may be required twice, by the chapters and more strictly by `course lab`
    for requirement in map(Requirement, requires("course-utils")):
        name = requirement.name
        installed = installed_version(name)
        is_for_chapters = requirement.marker is None or requirement.marker.evaluate({"extra": "course"})
        if not (is_for_chapters or requirement.marker.evaluate({"extra": "lab"})) or name in wrong:
            continue
        if installed is not None and requirement.specifier.contains(installed, prereleases=True):
            good[name] = f"{name} {installed}"
            continue
        wrong.add(name)
        good.pop(name, None)
        text = f"{name} is not installed." if installed is None else f"{name} {installed} is too old."
        install = f"pip install '{name}{requirement.specifier}'"
        if is_for_chapters:
            yield Finding("fix", text, install)
        else:
            yield Finding("note", text, f"Only `course lab` and `course run` need it: {install}.")
    if good:
        yield Finding("ok", ", ".join(good.values()))


def probe_import(name: str) -> Finding | None:
    """What is wrong with an installed package that cannot be imported; None if it can be."""
    try:
        import_module(name)
    except Exception as error:  # whatever a broken installation raises
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        remedy = f"pip install --force-reinstall {name}, and whatever its site requires on {sys.platform}."
        return Finding("fix", f"{name} is installed but cannot be imported ({reason}).", remedy)
    return None


def probe_device(device: str, gpus: list[tuple[str, int]]) -> Finding:
    """The device to train on; `gpus` are the names and bytes of memory of those that PyTorch sees."""
    if device != "cuda":
        names = ", ".join(f"{name} with {format_bytes(memory)}" for name, memory in gpus)
        reason = f", although there is {names}" if names else "; no GPU found"
        return Finding("ok", f"Training on the CPU{reason}")
    name, memory = gpus[0]
    text = f"Training on the GPU: {name} with {format_bytes(memory)}"
    if memory >= LARGE_MODEL:
        return Finding("ok", text)
    text += f"; the gpu scale needs up to {format_bytes(LARGE_MODEL)}."
    return Finding("note", text, "Set COURSE_SCALE=laptop if it runs out.")


def probe_memory(scale: str, device: str) -> Finding:
    """Whether the main memory that is available now is enough for the scale on the device."""
    import psutil

    memory = psutil.virtual_memory()
    text = f"{os.cpu_count()} cores, {format_bytes(memory.available)} of {format_bytes(memory.total)} memory available"
    need = NEEDED_MEMORY["laptop" if device == "cuda" else scale]
    if memory.available >= need:
        return Finding("ok", text)
    remedy = "Close other programs" + ("." if scale in ("smoke", "laptop") else ", or set COURSE_SCALE=laptop.")
    return Finding("fix", f"{text}; that is too little: the {scale} scale needs up to {format_bytes(need)}.", remedy)


def probe_home(home: Path) -> Finding:
    """Whether the course's home can be written, with the free disk there."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home):
            free = shutil.disk_usage(home).free
    except OSError as error:
        remedy = "Set COURSE_HOME to a folder of your own, or make this one writable."
        return Finding("fix", f"{home} cannot be written to ({error.strerror or error}).", remedy)
    text = f"Checkpoints and your progress go to {home}, with {format_bytes(free)} free"
    if free >= NEEDED_DISK:
        return Finding("ok", text)
    text += f"; the course uses up to {format_bytes(NEEDED_DISK)}."
    return Finding("note", text, "Set COURSE_HOME to a folder on a larger disk.")


def probe_8bit_adam() -> Finding:
    """Whether bitsandbytes takes a step with 8-bit state, on the GPU if there is one; it comes compiled."""
    if trouble := run_python("-c", _ADAM_8BIT):
        remedy = "Update bitsandbytes; without it, our own 8-bit Adam still runs, but the library's cells do not."
        return Finding("fix", f"8-bit Adam: bitsandbytes fails ({trouble}).", remedy)
    return Finding("ok", "8-bit Adam: bitsandbytes works")


def run_python(*arguments: str, timeout: float = 120.0) -> str:
    """Run Python with these arguments; returns the last line on stderr if it failed, else an empty string."""
    command = [sys.executable, *arguments]
    try:
        process = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=timeout)
    except subprocess.TimeoutExpired:
        return f"no answer within {timeout:g} s"
    if not process.returncode:
        return ""
    lines = process.stderr.strip().splitlines()
    return lines[-1] if lines else f"exit code {process.returncode}"


def probe_sandbox() -> Finding:
    """Whether `course grade` can run a submission in its sandbox."""
    if trouble := run_python("-m", "course_staff.grading.sandbox"):
        remedy = "Only `course grade` needs it; see docs/instructors.md."
        return Finding("note", f"Grading: submissions cannot run in a sandbox. {trouble}", remedy)
    return Finding("ok", "Grading: bwrap can sandbox submissions")
