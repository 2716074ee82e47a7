"""What `course doctor` looks at. A probe takes facts and returns a `Finding`; `examine` collects the facts.

No probe raises: a probe is there for the machine on which something is broken. Nothing here needs a package that may be missing.
"""

import multiprocessing
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, Literal

from course_utils import hub
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
    yield from probe_variables(environment)
    chosen = usable_settings(environment)
    yield from essentials(chosen)
    yield probe_home(chosen.home)
    if has_display():
        yield Finding("ok", "`course lab` opens a browser here")
    else:
        yield Finding("note", "There is no display here: `course lab` prints an address to open elsewhere.")
    if installed_version("torch") is not None and not probe_import("torch"):
        yield from _examine_torch(chosen)
    yield probe_sandbox()
    yield probe_hub()


def essentials(chosen: Settings) -> Iterator[Finding]:
    """What a measurement depends on, found at once: Python, system, packages, device, scale and memory. Those that are not to
    be put right name no path.
    """
    yield probe_python(sys.version_info[:3])
    yield Finding("ok", f"{platform.system()} {platform.release()} on {platform.machine()}")
    yield from probe_packages(requirements(), installed_version)
    if installed_version("torch") is None:
        return
    if trouble := probe_import("torch"):
        yield trouble
        return
    import torch

    usable = _on_a_device(chosen)
    if usable is chosen:
        gpus = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        yield probe_device(str(chosen.device), [(gpu.name, gpu.total_memory) for gpu in gpus])
    else:
        yield Finding(
            "fix",
            "COURSE_DEVICE=cuda asks for a GPU, and PyTorch sees none.",
            "Unset COURSE_DEVICE, or install a PyTorch built for CUDA and the GPU's driver.",
        )
    scale, device = usable.scale.name, str(usable.device)
    reason = "COURSE_SCALE says so" if usable.scale_name != "auto" else f"the default on {device}"
    yield Finding("ok", f"Chapters run at {scale} scale: {reason}")
    yield probe_memory(scale, device)


def _on_a_device(chosen: Settings) -> Settings:
    """`chosen`, or the same on the CPU where a GPU is requested and there is none."""
    try:
        _ = chosen.device
    except CourseError:
        return replace(chosen, device_name="cpu")
    return chosen


def _examine_torch(chosen: Settings) -> Iterator[Finding]:
    from torch import distributed

    if distributed.is_available() and distributed.is_gloo_available():
        method = multiprocessing.get_start_method()
        yield Finding("ok", f"Several workers: PyTorch has gloo; processes start by {method}")
    else:
        remedy = "Install a PyTorch from pytorch.org or PyPI; only the chapters on several workers need it."
        yield Finding("note", "Several workers: this PyTorch was built without gloo.", remedy)
    yield probe_compiler()
    yield probe_8bit_adam(str(_on_a_device(chosen).device))


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
            known = f"those are {', '.join(VARIABLES)}."
            yield Finding("note", f"{name} is set, and is no variable of the course; {instead(name, VARIABLES, known)}")
            continue
        try:
            read_settings({name: environment[name]})
            yield Finding("ok", f"{name}={environment[name]}")
        except CourseError as error:
            yield Finding("fix", f"{name}={environment[name]} cannot be used.", str(error))


def usable_settings(environment: Mapping[str, str]) -> Settings:
    """Settings from those variables that can be used."""
    marks = {name: next(probe_variables({name: environment[name]})).mark for name in VARIABLES if name in environment}
    return read_settings({name: environment[name] for name, mark in marks.items() if mark == "ok"})


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
    project_file = Path(__file__).parents[1] / "pyproject.toml"
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


def probe_packages(requirements: list[str], version_of: Callable[[str], str | None]) -> Iterator[Finding]:
    """The course's own package; one finding for all others that are as required, and one for each that is not.

    What only `course lab` needs is a note where it is missing or old: a hosted notebook service brings its own.
    """
    own = version_of("course-utils")
    if own is not None:
        yield Finding("ok", f"course-utils {own}")
    else:  # it may be found only because one stands in the checkout
        remedy = f"For all of it at once, {HOW_TO_INSTALL}."
        yield Finding("fix", "course-utils, the course's own package, is not installed.", remedy)
    good, wrong = {}, set()  # a package may be required twice, by the chapters and more strictly by `course lab`
    for name, bounds, extra in map(split_requirement, requirements):
        found = version_of(name)
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


def probe_import(name: str, load: Callable[[str], Any] = import_module) -> Finding | None:
    """What is wrong with a package that is installed, and yet cannot be imported; None when it can be."""
    try:
        load(name)
    except Exception as error:  # whatever a broken installation raises
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        remedy = f"pip install --force-reinstall {name}, and what its own site asks for on {sys.platform}."
        return Finding("fix", f"{name} is installed and cannot be imported ({reason}).", remedy)
    return None


def probe_home(home: Path, free_bytes: Callable[[Path], int] = lambda home: shutil.disk_usage(home).free) -> Finding:
    """Whether the folder for cache, checkpoints and ledger can be written, with the free disk there."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home):
            free = free_bytes(home)
    except OSError as error:
        remedy = "Set COURSE_HOME to a folder of your own, or make this one writable."
        return Finding("fix", f"{home} cannot be written to ({error.strerror or error}).", remedy)
    text = f"Cache, checkpoints and ledger go to {home}, where {format_bytes(free)} are free"
    if free >= NEEDED_DISK:
        return Finding("ok", text)
    needed = format_bytes(NEEDED_DISK)
    return Finding("note", f"{text}; up to {needed} are used.", "Set COURSE_HOME to a folder on a larger disk.")


def has_display(environment: Mapping[str, str] | None = None, platform: str = sys.platform) -> bool:
    """Whether a browser opened from here would be seen by the person who asked for it; `environment` is by default ours."""
    if environment is None:
        environment = variables("CI", "SSH_CONNECTION", "DISPLAY", "WAYLAND_DISPLAY")
    if environment.get("CI") or environment.get("SSH_CONNECTION"):
        return False
    return not platform.startswith("linux") or bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


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


def probe_memory(scale: str, device: str, available: int | None = None) -> Finding:
    """Whether `available` bytes of main memory (by default as many as are now) are enough for the scale on the device."""
    try:
        import psutil
    except ModuleNotFoundError:
        return Finding("note", "How much memory is available is unknown without psutil.")
    memory = psutil.virtual_memory()
    available = memory.available if available is None else available
    text = f"{os.cpu_count()} cores, {format_bytes(available)} of {format_bytes(memory.total)} memory available"
    needed = NEEDED_MEMORY["laptop" if device == "cuda" else scale]
    if available >= needed:
        return Finding("ok", text)
    remedy = "Close other programs" + ("." if scale in ("smoke", "laptop") else ", or set COURSE_SCALE=laptop.")
    return Finding("fix", f"{text}; that is too little: the {scale} scale takes up to {format_bytes(needed)}.", remedy)


def probe_compiler(where: Callable[[str], str | None] = shutil.which) -> Finding:
    """Whether there is a C++ compiler, without which `torch.compile` has no backend of its own on a CPU."""
    names = (variables("CXX").get("CXX"), "g++", "clang++", "cl")
    found = next((name for name in names if name and where(name)), None)
    if found:
        return Finding("ok", f"torch.compile: {found} compiles C++ for it")
    remedy = (
        "Install g++, clang++ or Visual Studio's cl; only a cell of chapter 11 needs it, and says what it would show."
    )
    return Finding("note", "torch.compile: there is no C++ compiler.", remedy)


_ADAM_8BIT = """
import torch, bitsandbytes
device = {device!r}
weight = torch.nn.Parameter(torch.ones(8192, device=device))
optimizer = bitsandbytes.optim.Adam8bit([weight], lr=0.1)
weight.square().sum().backward()
optimizer.step()
assert optimizer.state[weight]["state1"].dtype == torch.uint8 and bool((weight < 1).all())
"""


def probe_8bit_adam(device: str) -> Finding:
    """Whether bitsandbytes really takes a step with 8-bit state on the device."""
    trouble = run_snippet(_ADAM_8BIT.format(device=device), timeout=120)
    if trouble is None:
        return Finding("ok", f"8-bit Adam: bitsandbytes takes a step on {device}")
    remedy = "Update bitsandbytes; without it, 8-bit Adam by hand still runs, and the library's cells do not."
    return Finding("fix", f"8-bit Adam: bitsandbytes fails on {device} ({trouble}).", remedy)


def run_snippet(source: str, timeout: float) -> str | None:
    """Run Python source in a process of its own; None when it went well, else its last line on stderr."""
    return run_command([sys.executable, "-c", source], timeout)


def run_command(command: list[str], timeout: float) -> str | None:
    """Run a command; None when it went well, else its last line on stderr."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return f"no answer within {timeout:g} s"
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
    return lines[-1] if done.returncode else None


def probe_sandbox(
    where: Callable[[str], str | None] = shutil.which,
    starts: Callable[[list[str]], bool] | None = None,
    grades: Callable[[], str | None] | None = None,
) -> Finding:
    """Whether `course grade` can have a sandbox: `bwrap` is there, the system lets it start a process, and what grading needs can
    be imported in it. `grades` gives what stops the last, or None.
    """
    if not where("bwrap"):
        remedy = (
            "Only `course grade` needs one: install bubblewrap (Linux), or use the container of docs/instructors.md."
        )
        return Finding(
            "note", "Grading: there is no sandbox for strangers' notebooks, because bwrap is missing.", remedy
        )
    if (starts or _starts)(["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"]):
        if trouble := (grades or _try_grading)():
            remedy = "Only `course grade` needs it."
            return Finding("note", f"Grading: bwrap is here, and submissions cannot be run in it. {trouble}", remedy)
        return Finding("ok", "Grading: bwrap gives a sandbox for strangers' notebooks")
    remedy = "Only `course grade` needs one: docs/instructors.md says what allows it."
    return Finding("note", "Grading: bwrap is here, and the system does not let it make a sandbox.", remedy)


def _starts(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=20, stdin=subprocess.DEVNULL).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _try_grading() -> str | None:
    """What stops a submission's process, which starts in the sandbox as `course grade` starts it; None without that command."""
    if not (Path(__file__).parents[1] / "course_staff").is_dir():
        return None
    return run_command([sys.executable, "-m", "course_staff.grading.sandbox"], timeout=120)


def probe_hub() -> Finding:
    """Whether the Hugging Face Hub can be reached."""
    try:
        reached = hub.answers(timeout=3.0)
    except ImportError:
        reached = False
    if reached:
        return Finding("ok", "The Hugging Face Hub answers; it is not needed")
    return Finding("note", "The Hugging Face Hub does not answer; it is not needed: models and data are built here.")
