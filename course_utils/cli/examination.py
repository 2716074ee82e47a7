"""What `course doctor` looks at. A probe takes facts and returns a `Finding`; `examine` collects the facts.

No probe raises: a probe is there for the machine on which something is broken.
"""

import multiprocessing
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

from course_utils.cli.lab import has_display
from course_utils.errors import CourseError
from course_utils.settings import Settings, environment_for_child, read_settings
from course_utils.units import GiB, format_bytes

OLDEST_PYTHON = (3, 11)
VARIABLES = ("COURSE_SCALE", "COURSE_DEVICE", "COURSE_SEED", "COURSE_HOME")

# Measured: a notebook's process that has imported every library and trained at laptop scale holds 0.6 GiB, a worker with torch
# alone 0.25 GiB. With four workers that is 1.6 GiB; the rest is for the browser's page. The models add less than 0.1 GiB.
_PROCESSES = 2 * GiB
# The gpu scale trains up to 124 million float32 parameters with AdamW: 4 x 4 bytes each, 1.9 GiB, and about twice as much again
# in activations at its batch size. On a GPU this is the GPU's; the host then only holds the processes with CUDA loaded.
_LARGE_MODEL = 6 * GiB
NEEDED_MEMORY = {"smoke": _PROCESSES, "laptop": _PROCESSES, "gpu": _PROCESSES + _LARGE_MODEL}
NEEDED_GPU_MEMORY = _LARGE_MODEL
# Executed copies, checkpoints of the largest model with its optimizer's state, the corpus.
NEEDED_DISK = 3 * GiB

_ADAM_8BIT = """
import torch, bitsandbytes
device = {device!r}
weight = torch.nn.Parameter(torch.ones(8192, device=device))
optimizer = bitsandbytes.optim.Adam8bit([weight], lr=0.1)
weight.square().sum().backward()
optimizer.step()
assert optimizer.state[weight]["state1"].dtype == torch.uint8 and bool((weight < 1).all())
"""
_ADAM_8BIT_TIMEOUT = 120


@dataclass(frozen=True)
class Finding:
    """What a probe found. `mark`: all is well (`ok`), good to know (`note`), or to be put right by the `remedy` (`fix`)."""

    mark: Literal["ok", "note", "fix"]
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.mark:4}  {self.text}" + (f"\n      -> {self.remedy}" if self.remedy else "")


def examine() -> Iterator[Finding]:
    """Every finding about this machine, as it is found; the slow ones come last."""
    environment = environment_for_child()
    yield from probe_variables(environment)
    chosen = usable_settings(environment)
    yield probe_python(sys.version_info[:3])
    yield Finding("ok", f"{platform.system()} {platform.release()} on {platform.machine()}")
    yield from probe_packages(requires_of_course(), installed_version)
    yield probe_home(chosen.home)
    yield probe_library()
    yield probe_display(has_display(environment, sys.platform))
    if installed_version("torch") is not None:
        yield from _examine_torch(chosen)
    yield probe_hub(_hub_answers)


def _examine_torch(chosen: Settings) -> Iterator[Finding]:
    import torch

    usable = with_usable_device(chosen)
    device, scale = str(usable.device), usable.scale.name
    yield probe_device(chosen.device_name, device, _gpus())
    yield probe_scale(chosen.scale_name, scale, device)
    yield _probe_memory(scale, device)
    yield probe_workers(torch.distributed.is_available() and torch.distributed.is_gloo_available())
    yield probe_8bit_adam(device, run_snippet)


def verdict(findings: list[Finding]) -> str:
    """One sentence: what of the course runs here."""
    wrong = sum(finding.mark == "fix" for finding in findings)
    if wrong:
        return f"To be put right: {wrong}, marked 'fix' above. Chapters that do not depend on it run as they are."
    return (
        "Every chapter runs here. What needs a GPU or the Hub says so, and shows the CPU's or the bundled counterpart."
    )


def probe_variables(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Each `COURSE_` variable: usable, not usable, or not one the course knows."""
    for name in sorted(name for name in environment if name.startswith("COURSE_")):
        if name not in VARIABLES:
            yield Finding("note", f"{name} is set, and is no variable of the course; those are {', '.join(VARIABLES)}.")
            continue
        try:
            read_settings({name: environment[name]})
            yield Finding("ok", f"{name}={environment[name]}")
        except CourseError as error:
            yield Finding("fix", f"{name}={environment[name]} cannot be used.", str(error))


def usable_settings(environment: Mapping[str, str]) -> Settings:
    """Settings from those variables that can be used."""
    good = {}
    for name in VARIABLES:
        if name in environment and all(finding.mark == "ok" for finding in probe_variables({name: environment[name]})):
            good[name] = environment[name]
    return read_settings(good)


def probe_python(found: tuple[int, int, int]) -> Finding:
    """Whether this Python is recent enough."""
    name = "Python " + ".".join(map(str, found))
    if found[:2] >= OLDEST_PYTHON:
        return Finding("ok", name)
    oldest = ".".join(map(str, OLDEST_PYTHON))
    return Finding(
        "fix", f"{name} is too old.", f"Install Python {oldest} or later, remove .venv, and run `make test`."
    )


def requires_of_course() -> list[str]:
    """The package's requirements, extras included, as its metadata states them."""
    return requires("course-utils") or []


def installed_version(name: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def probe_packages(requirements: list[str], version_of: Callable[[str], str | None]) -> Iterator[Finding]:
    """One finding for all packages that are as required, and one for each that is not.

    What only `course lab` needs is a note where it is missing: a hosted notebook service brings its own.
    """
    from packaging.requirements import Requirement

    good = []
    for requirement in map(Requirement, requirements):
        found = version_of(requirement.name)
        if _is_for(requirement, "dev"):
            continue
        if found is not None and requirement.specifier.contains(found, prereleases=True):
            good.append(f"{requirement.name} {found}")
        else:
            yield _package_trouble(requirement, found)
    yield Finding("ok", ", ".join(good) or "no package of the course is installed")


def _package_trouble(requirement, found: str | None) -> Finding:
    wanted = f"{requirement.name}{requirement.specifier}"
    text = f"{requirement.name} is not installed." if found is None else f"{requirement.name} {found} is too old."
    if found is None and _is_for(requirement, "lab"):
        return Finding("note", text, f"Only `course lab` and `course run` need it: pip install '{wanted}'.")
    return Finding("fix", text, f"pip install '{wanted}'")


def _is_for(requirement, extra: str) -> bool:
    """Whether a requirement holds with `extra` and not without."""
    marker = requirement.marker
    return marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""})


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


def probe_library() -> Finding:
    """Whether this Python has its standard library as source files, which the bundled corpus is made of."""
    from course_utils.data import corpus

    try:
        present = corpus.present_packages(corpus.standard_library())
    except CourseError as error:
        return Finding("fix", "The bundled corpus cannot be built.", str(error))
    return Finding(
        "ok", f"The bundled corpus can be built: {len(present)} of {len(corpus.PACKAGES)} packages have sources"
    )


def probe_display(present: bool) -> Finding:
    """Whether `course lab` will open a browser."""
    if present:
        return Finding("ok", "`course lab` opens a browser here")
    return Finding("note", "There is no display here: `course lab` prints an address to open elsewhere.")


def with_usable_device(chosen: Settings) -> Settings:
    """`chosen`, on the CPU where the device it asks for is not there."""
    try:
        _ = chosen.device
    except CourseError:
        return replace(chosen, device_name="cpu")
    return chosen


def probe_device(asked: str, device: str, gpus: list[tuple[str, int]]) -> Finding:
    """The device; `gpus` are the names and bytes of memory of those that PyTorch sees."""
    if asked.startswith("cuda") and not device.startswith("cuda"):
        remedy = "Unset COURSE_DEVICE, or install a PyTorch built for CUDA and the GPU's driver."
        return Finding("fix", f"COURSE_DEVICE={asked} asks for a GPU, and PyTorch sees none.", remedy)
    if device.startswith("cuda"):
        return _judge_gpu(device, *gpus[int(device.partition(":")[2] or 0)])
    found = ", ".join(f"{name} with {format_bytes(memory)}" for name, memory in gpus)
    return Finding(
        "ok", f"Training on the CPU, though there is {found}" if found else "Training on the CPU; there is no GPU"
    )


def _judge_gpu(device: str, name: str, memory: int) -> Finding:
    text = f"Training on {device}: {name} with {format_bytes(memory)}"
    if memory >= NEEDED_GPU_MEMORY:
        return Finding("ok", text)
    needed = format_bytes(NEEDED_GPU_MEMORY)
    return Finding("note", f"{text}; the gpu scale takes up to {needed}.", "Set COURSE_SCALE=laptop where it runs out.")


def probe_scale(asked: str, scale: str, device: str) -> Finding:
    """The scale and why it is that one."""
    reason = "COURSE_SCALE says so" if asked != "auto" else f"the default on {device.partition(':')[0]}"
    return Finding("ok", f"Chapters run at {scale} scale: {reason}")


def _probe_memory(scale: str, device: str) -> Finding:
    import psutil

    memory = psutil.virtual_memory()
    return probe_memory(scale, device, os.cpu_count() or 1, memory.available, memory.total)


def probe_memory(scale: str, device: str, cores: int, available: int, total: int) -> Finding:
    """Whether `available` bytes of main memory are enough for the scale on the device."""
    text = f"{cores} cores, {format_bytes(available)} of {format_bytes(total)} memory available"
    needed = NEEDED_MEMORY["laptop" if device.startswith("cuda") else scale]
    if available >= needed:
        return Finding("ok", text)
    remedy = "Close other programs" + ("." if scale in ("smoke", "laptop") else ", or set COURSE_SCALE=laptop.")
    return Finding("fix", f"{text}; that is too little: the {scale} scale takes up to {format_bytes(needed)}.", remedy)


def probe_workers(gloo: bool) -> Finding:
    """Whether the chapters on several workers run; they do on any machine where PyTorch has gloo."""
    method = multiprocessing.get_start_method()
    if gloo:
        return Finding("ok", f"Several workers: PyTorch has gloo; processes start by {method}")
    remedy = "Install a PyTorch from pytorch.org or PyPI; only the chapters on several workers need it."
    return Finding("note", "Several workers: this PyTorch was built without gloo.", remedy)


def run_snippet(source: str, timeout: float) -> str | None:
    """Run Python source in a process of its own; None when it went well, else its last line on stderr."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", source],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {timeout:g} s"
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return lines[-1] if done.returncode else None


def probe_8bit_adam(device: str, run: Callable[[str, float], str | None]) -> Finding:
    """Whether bitsandbytes really takes a step with 8-bit state on the device."""
    trouble = run(_ADAM_8BIT.format(device=device), _ADAM_8BIT_TIMEOUT)
    if trouble is None:
        return Finding("ok", f"8-bit Adam: bitsandbytes takes a step on {device}")
    remedy = "Update bitsandbytes; without it, 8-bit Adam by hand still runs, and the library's cells do not."
    return Finding("fix", f"8-bit Adam: bitsandbytes fails on {device} ({trouble}).", remedy)


def _hub_answers() -> bool:
    from course_utils import hub

    return hub.answers(timeout=3.0)


def probe_hub(answers: Callable[[], bool]) -> Finding:
    """Whether the Hugging Face Hub can be reached."""
    try:
        reached = answers()
    except ImportError:
        reached = False
    if reached:
        return Finding("ok", "The Hugging Face Hub answers; it is not needed")
    return Finding("note", "The Hugging Face Hub does not answer; it is not needed: models and data are built here.")


def _gpus() -> list[tuple[str, int]]:
    import torch

    every = (torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count()))
    return [(gpu.name, gpu.total_memory) for gpu in every]
