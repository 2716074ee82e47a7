"""The Python and its packages: there, recent enough, fit to be imported. Nothing but the standard library is needed to ask."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from course_utils.doctor.finding import Finding

OLDEST_PYTHON = (3, 11)
HOW_TO_INSTALL = 'run `make lab` in the course\'s folder, or `pip install -e ".[lab]"` there'

_REQUIREMENT = re.compile(r"""(?P<name>[\w.-]+)(?P<bounds>[^;]*?)\s*(?:;\s*extra\s*==\s*['"](?P<extra>\w+)['"])?""")


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
        if project_file.is_file():
            import tomllib

            return _as_installed(tomllib.loads(project_file.read_text(encoding="utf-8"))["project"])
        return requires("course-utils") or []
    except ModuleNotFoundError:  # neither a checkout nor installed, or a Python from before tomllib: both are findings
        return []


def _as_installed(project: Mapping[str, Any]) -> list[str]:
    """The requirements in `[project]` of a pyproject.toml, as a package's metadata would state them."""
    extras = project["optional-dependencies"].items()
    return project["dependencies"] + [f'{entry}; extra == "{extra}"' for extra, entries in extras for entry in entries]


def installed_version(name: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def probe_course(version_of: Callable[[str], str | None]) -> Finding:
    """Whether the course's own package is installed, and not only found because one stands in the checkout."""
    found = version_of("course-utils")
    if found is not None:
        return Finding("ok", f"course-utils {found}")
    return Finding(
        "fix", "course-utils, the course's own package, is not installed.", f"For all of it at once, {HOW_TO_INSTALL}."
    )


def probe_packages(requirements: list[str], version_of: Callable[[str], str | None]) -> Iterator[Finding]:
    """One finding for all packages that are as required, and one for each that is not, whoever requires it.

    What only `course lab` needs is a note where it is missing or old: a hosted notebook service brings its own.
    """
    good, wrong = {}, set()  # a package may be required twice, by the chapters and more strictly by `course lab`
    for name, bounds, extra in map(split_requirement, requirements):
        found = version_of(name)
        if extra not in ("", "lab") or name in wrong:  # no chapter needs it, or it has been said
            continue
        if found is not None and _allows(bounds, found):
            good[name] = f"{name} {found}"
        else:
            wrong.add(name)
            good.pop(name, None)
            yield _package_trouble(name, bounds, extra, found)
    if good:
        yield Finding("ok", ", ".join(good.values()))


def split_requirement(requirement: str) -> tuple[str, str, str]:
    """Name, bounds (`>=2.8`) and extra (or "") of a requirement as the course writes them, without the library for it."""
    found = _REQUIREMENT.fullmatch(requirement)
    return found["name"], found["bounds"], found["extra"] or ""


def _allows(bounds: str, found: str) -> bool:
    """Whether the version is within the bounds; without `packaging`, which is then a finding itself, any version is."""
    try:
        from packaging.specifiers import SpecifierSet
    except ModuleNotFoundError:
        return True
    return SpecifierSet(bounds).contains(found, prereleases=True)


def _package_trouble(name: str, bounds: str, extra: str, found: str | None) -> Finding:
    install = f"pip install '{name}{bounds}'"
    text = f"{name} is not installed." if found is None else f"{name} {found} is too old."
    if extra == "lab":
        return Finding("note", text, f"Only `course lab` and `course run` need it: {install}.")
    return Finding("fix", text, install)


def probe_import(name: str, load: Callable[[str], Any] = import_module) -> Finding | None:
    """What is wrong with a package that is installed, and yet cannot be imported; None when it can be."""
    try:
        load(name)
    except Exception as error:  # whatever a broken installation raises
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        remedy = f"pip install --force-reinstall {name}, and what its own site asks for on {sys.platform}."
        return Finding("fix", f"{name} is installed and cannot be imported ({reason}).", remedy)
    return None
