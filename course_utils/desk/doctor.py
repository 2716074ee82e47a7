"""What `course doctor` looks at: each probe returns what it found, or yields it.

No probe raises: a probe is there for the machine on which something is broken. Nothing here needs a package that may be missing.
"""

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

from course_utils.errors import CourseError, instead
from course_utils.settings import Settings, read_settings, variables
from course_utils.units import GiB, format_bytes

OLDEST_PYTHON = (3, 11)
HOW_TO_INSTALL = 'run `make lab` in the course\'s folder, or `pip install -e ".[lab]"` there'
VARIABLES = ("COURSE_SCALE", "COURSE_DEVICE", "COURSE_SEED", "COURSE_HOME", "COURSE_STRICT", "COURSE_READER")
# The gpu scale trains up to 124 million float32 parameters with AdamW: 4 x 4 bytes each, 1.9 GiB, and about twice as much again
# in activations at its batch size. On a GPU this is the GPU's; the host then only holds the processes with CUDA loaded.
LARGE_MODEL = 6 * GiB
# Measured: a notebook's process that has imported every library and trained at laptop scale holds 0.6 GiB, a worker with torch
# alone 0.25 GiB. With four workers that is 1.6 GiB; the rest is for the browser's page. The models add less than 0.1 GiB.
_PROCESSES = 2 * GiB
NEEDED_MEMORY = {"smoke": _PROCESSES, "laptop": _PROCESSES, "gpu": _PROCESSES + LARGE_MODEL}
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
    """What a probe found. `mark`: all is well (`ok`), good to know (`note`), or to be put right by the `remedy` (`fix`)."""

    mark: Literal["ok", "note", "fix"]
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        return f"{self.mark:4}  {self.text}" + (f"\n      -> {self.remedy}" if self.remedy else "")


def examine() -> Iterator[Finding]:
    """Every finding about this machine, as it is found; the slow ones come last."""
    environment = variables("COURSE_")
    wrong = list(probe_variables(environment))
    yield from wrong
    chosen = read_settings({name: value for name, value in environment.items() if name not in _unusable(wrong)})
    yield from essentials(chosen)
    yield probe_home(chosen.home)
    if not has_display():
        yield Finding("note", "There is no display here: `course lab` prints an address to open elsewhere.")
    if installed_version("bitsandbytes"):
        yield probe_8bit_adam()
    yield probe_sandbox()


def essentials(chosen: Settings) -> Iterator[Finding]:
    """What a measurement depends on, found at once: Python, system, packages, device, scale and memory. Those that are not to
    be put right name no path.
    """
    yield probe_python(sys.version_info[:3])
    yield Finding("ok", f"{platform.system()} {platform.release()} on {platform.machine()}")
    yield from probe_packages(requirements())
    if installed_version("torch") is None:
        return
    if trouble := probe_import("torch"):
        yield trouble
        return
    import torch

    try:
        gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        yield probe_device(str(chosen.device), [(gpu.name, gpu.total_memory) for gpu in gpus])
    except CourseError as error:
        yield Finding("fix", str(error), "Or install a PyTorch built for CUDA, and the GPU's driver.")
        chosen = replace(chosen, device_name="cpu")
    scale, device = chosen.scale.name, str(chosen.device)
    reason = "COURSE_SCALE says so" if chosen.scale_name != "auto" else f"the default on {device}"
    yield Finding("ok", f"Chapters run at {scale} scale: {reason}")
    yield probe_memory(scale, device)


def verdict(findings: list[Finding]) -> str:
    """One sentence: what of the course runs here."""
    wrong = sum(finding.mark == "fix" for finding in findings)
    if wrong:
        return f"To be put right: {wrong}, marked 'fix' above. Chapters that do not depend on it run as they are."
    return (
        "Every chapter runs here. What needs a GPU or the Hub says so, and shows the CPU's or the bundled counterpart."
    )


def probe_variables(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Each `COURSE_` variable that cannot be used, or that the course does not know."""
    for name in sorted(name for name in environment if name.startswith("COURSE_")):
        if name not in VARIABLES:
            known = f"those are {', '.join(VARIABLES)}."
            yield Finding("note", f"{name} is set, and is no variable of the course; {instead(name, VARIABLES, known)}")
            continue
        try:
            read_settings({name: environment[name]})
        except CourseError as error:
            yield Finding("fix", f"{name}={environment[name]} cannot be used.", str(error))


def _unusable(wrong: list[Finding]) -> set[str]:
    return {finding.text.partition("=")[0] for finding in wrong if finding.mark == "fix"}


def probe_python(found: tuple[int, int, int]) -> Finding:
    """Whether this Python is recent enough."""
    name = "Python " + ".".join(map(str, found))
    if found[:2] >= OLDEST_PYTHON:
        return Finding("ok", name)
    oldest = ".".join(map(str, OLDEST_PYTHON))
    return Finding(
        "fix", f"{name} is too old.", f"Install Python {oldest} or later, remove .venv, and run `make test`."
    )


def requirements() -> list[str]:
    """The package's requirements, extras included: the checkout's, or else those it was installed with; none if unknown."""
    project_file = Path(__file__).parents[2] / "pyproject.toml"
    try:
        if not project_file.is_file():
            return requires("course-utils") or []
        import tomllib

        project = tomllib.loads(project_file.read_text(encoding="utf-8"))["project"]
    except ModuleNotFoundError:  # neither a checkout nor installed, or a Python from before tomllib: both are findings
        return []
    extras = project["optional-dependencies"].items()
    return project["dependencies"] + [f'{entry}; extra == "{extra}"' for extra, entries in extras for entry in entries]


def split_requirement(requirement: str) -> tuple[str, str, str]:
    """Name, bounds (`>=2.8`) and extra (or "") of a requirement as the course writes them, without the library for it."""
    pattern = r"""([\w.-]+)([^;]*?)\s*(?:;\s*extra\s*==\s*['"](\w+)['"])?"""
    name, bounds, extra = re.fullmatch(pattern, requirement).groups()
    return name, bounds, extra or ""


def installed_version(name: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def probe_packages(requirements: list[str]) -> Iterator[Finding]:
    """The course's own package; one finding for all others that are as required, and one for each that is not.

    What only `course lab` needs is a note where it is missing or old: a hosted notebook service brings its own.
    """
    if installed_version("course-utils") is None:  # it may be found only because one stands in the checkout
        remedy = f"For all of it at once, {HOW_TO_INSTALL}."
        yield Finding("fix", "course-utils, the course's own package, is not installed.", remedy)
    good, wrong = {}, set()  # a package may be required twice, by the chapters and more strictly by `course lab`
    for name, bounds, extra in map(split_requirement, requirements):
        found = installed_version(name)
        if extra not in ("", "lab") or name in wrong:  # no chapter needs it, or it has been said
            continue
        if found is not None and _allows(bounds, found):
            good[name] = f"{name} {found}"
            continue
        wrong.add(name)
        good.pop(name, None)
        text = f"{name} is not installed." if found is None else f"{name} {found} is too old."
        install = f"pip install '{name}{bounds}'"
        if extra == "lab":
            yield Finding("note", text, f"Only `course lab` and `course run` need it: {install}.")
        else:
            yield Finding("fix", text, install)
    if good:
        yield Finding("ok", ", ".join(good.values()))


def _allows(bounds: str, found: str) -> bool:
    """Whether the version is within the bounds; without `packaging`, which is then a finding itself, any version is."""
    try:
        from packaging.specifiers import SpecifierSet
    except ModuleNotFoundError:
        return True
    return SpecifierSet(bounds).contains(found, prereleases=True)


def probe_import(name: str) -> Finding | None:
    """What is wrong with a package that is installed, and yet cannot be imported; None when it can be."""
    try:
        import_module(name)
    except Exception as error:  # whatever a broken installation raises
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        remedy = f"pip install --force-reinstall {name}, and what its own site asks for on {sys.platform}."
        return Finding("fix", f"{name} is installed and cannot be imported ({reason}).", remedy)
    return None


def probe_device(device: str, gpus: list[tuple[str, int]]) -> Finding:
    """The device to train on; `gpus` are the names and bytes of memory of those that PyTorch sees."""
    if device != "cuda":
        found = ", ".join(f"{name} with {format_bytes(memory)}" for name, memory in gpus)
        rest = f", though there is {found}" if found else "; there is no GPU"
        return Finding("ok", f"Training on the CPU{rest}")
    name, memory = gpus[0]
    text = f"Training on the GPU: {name} with {format_bytes(memory)}"
    if memory >= LARGE_MODEL:
        return Finding("ok", text)
    needed = format_bytes(LARGE_MODEL)
    return Finding("note", f"{text}; the gpu scale takes up to {needed}.", "Set COURSE_SCALE=laptop where it runs out.")


def probe_memory(scale: str, device: str) -> Finding:
    """Whether the main memory that is available now is enough for the scale on the device."""
    try:
        import psutil
    except ModuleNotFoundError:
        return Finding("note", "How much memory is available is unknown without psutil.")
    memory = psutil.virtual_memory()
    text = f"{os.cpu_count()} cores, {format_bytes(memory.available)} of {format_bytes(memory.total)} memory available"
    needed = NEEDED_MEMORY["laptop" if device == "cuda" else scale]
    if memory.available >= needed:
        return Finding("ok", text)
    remedy = "Close other programs" + ("." if scale in ("smoke", "laptop") else ", or set COURSE_SCALE=laptop.")
    return Finding("fix", f"{text}; that is too little: the {scale} scale takes up to {format_bytes(needed)}.", remedy)


def probe_home(home: Path) -> Finding:
    """Whether the course's home can be written, with the free disk there."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home):
            free = shutil.disk_usage(home).free
    except OSError as error:
        remedy = "Set COURSE_HOME to a folder of your own, or make this one writable."
        return Finding("fix", f"{home} cannot be written to ({error.strerror or error}).", remedy)
    text = f"Checkpoints and what you have done go to {home}, where {format_bytes(free)} are free"
    if free >= NEEDED_DISK:
        return Finding("ok", text)
    needed = format_bytes(NEEDED_DISK)
    return Finding("note", f"{text}; up to {needed} are used.", "Set COURSE_HOME to a folder on a larger disk.")


def has_display() -> bool:
    """Whether a browser opened from here would be seen by the person who asked for it."""
    environment = variables("CI", "SSH_CONNECTION", "DISPLAY", "WAYLAND_DISPLAY")
    if environment.get("CI") or environment.get("SSH_CONNECTION"):
        return False
    return not sys.platform.startswith("linux") or bool(
        environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY")
    )


def probe_8bit_adam() -> Finding:
    """Whether bitsandbytes, which comes compiled, really takes a step with 8-bit state, on the GPU where there is one."""
    if trouble := run_python("-c", _ADAM_8BIT):
        remedy = "Update bitsandbytes; without it, 8-bit Adam by hand still runs, and the library's cells do not."
        return Finding("fix", f"8-bit Adam: bitsandbytes fails ({trouble}).", remedy)
    return Finding("ok", "8-bit Adam: bitsandbytes takes a step")


def run_python(*arguments: str, timeout: float = 120.0) -> str:
    """What is wrong after Python ran with these arguments: its last line on stderr, or nothing."""
    try:
        done = subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {timeout:g} s"
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1] if done.returncode else ""


def probe_sandbox() -> Finding:
    """Whether `course grade` can run a submission in its sandbox, and if not the cause; only the staff's package has one."""
    if not (Path(__file__).parents[2] / "course_staff").is_dir():
        return Finding("note", "`course grade` is not here: it belongs to course_staff.")
    if trouble := run_python("-m", "course_staff.grading.sandbox"):
        remedy = "Only `course grade` needs it: docs/instructors.md says what it takes."
        return Finding("note", f"Grading: submissions cannot be run in a sandbox. {trouble}", remedy)
    return Finding("ok", "Grading: bwrap gives a sandbox for strangers' notebooks")
