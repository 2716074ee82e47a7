"""Of the repository: the three files that say what is installed agree with each other."""

import ast
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")


def pythons() -> list[str]:
    """One interpreter of each version that is here and runs: on the path, or beside this one as version managers lay them."""
    neighbors = sorted(map(str, Path(sys.base_prefix).parent.glob("*/bin/python3.*")))
    candidates = {end: [f"python{end}", *(path for path in neighbors if path.endswith(end))] for end in VERSIONS}
    working = [[path for path in paths if runs(path, version)] for version, paths in candidates.items()]
    return [paths_of_version[0] for paths_of_version in working if paths_of_version]


def runs(python: str, version: str) -> bool:
    """Whether `python` starts and is of that version; the names that version managers put on the path may lead nowhere."""
    program = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        result = subprocess.run([python, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return False
    return result.stdout.strip() == version


@cache
def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def required() -> list[str]:
    extras = project()["optional-dependencies"]
    return [*project()["dependencies"], *extras["course"], *extras["lab"], *extras["dev"], *extras["site"]]


def constrained() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def test_every_file_of_the_packages_is_packed():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]["package-data"]
    globs = [(ROOT / name.replace(".", "/"), glob) for name, globs in patterns.items() for glob in globs]
    packed = {path for folder, glob in globs for path in folder.glob(glob)}
    command = ["git", "ls-files", "course_utils", "course_staff"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    files = [ROOT / line for line in listing.splitlines() if not line.endswith(".py")]
    assert len(files) > 20
    assert [path for path in files if path not in packed] == []


def test_conda_installs_what_pyproject_requires():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    (pip_section,) = [entry["pip"] for entry in conda if isinstance(entry, dict)]
    assert pip_section[0] == "-c constraints.txt"
    assert pip_section[-1] == "-e ."
    assert set(pip_section[1:-1]) == set(required())
    assert {entry.split()[0] for entry in conda if isinstance(entry, str)} == {"python", "pip"}


def test_every_requirement_is_pinned_at_a_version_it_allows():
    for requirement in map(Requirement, required()):
        assert requirement.specifier.contains(constrained()[canonicalize_name(requirement.name)]), requirement


installed = cache(packages_distributions)


def distributions(module: str) -> set[str]:
    """By what is installed; a module of none, as of an extra that is not here, goes by its own name."""
    return {canonicalize_name(name) for name in installed().get(module, [module])}


@cache
def modules_in(folder: Path) -> set[str]:
    return {path.stem for path in folder.glob("*.py")}


def third_party_imports(path: Path) -> set[str]:
    """Top-level modules of other projects that a file imports, at its top or inside a function."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    ours = {"benchmarks", "course_utils", "course_staff"}
    # pytest finds the modules beside a test, and those of the folders that it is in.
    helpers = set().union(*(modules_in(folder) for folder in path.parents if folder.is_relative_to(ROOT / "tests")))
    return names - sys.stdlib_module_names - ours - helpers


@cache
def declared(*extras: str) -> set[str]:
    groups = [project()["dependencies"], *(project()["optional-dependencies"][extra] for extra in ("course", *extras))]
    return {canonicalize_name(Requirement(entry).name) for group in groups for entry in group}


# Only what executes and checks notebooks may need more than a reader's kernel has.
EXTRAS = {"course_utils": (), "course_utils/desk": ("lab",), "course_staff": ("lab",), "tests": ("lab", "dev", "site")}
EXTRAS |= {"benchmarks": ("dev",), "course_staff/site": ("lab", "site"), "course_utils/lessons": ("distributed",)}
EXTRAS |= {"course_utils/script": ("distributed",), "tests/script": ("lab", "dev", "distributed")}
BESIDE_IT = {"torchao", "trl"}  # compared with, or asked, where they are installed; needed nowhere
FOLDERS = ("benchmarks", "course_utils", "course_staff", "tests")
SOURCES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def test_whatever_is_imported_is_declared():
    for path in SOURCES:
        folders = [folder.relative_to(ROOT).as_posix() for folder in path.parents if folder.is_relative_to(ROOT)]
        allowed = BESIDE_IT | declared(*next(EXTRAS[folder] for folder in folders if folder in EXTRAS))
        undeclared = [name for name in third_party_imports(path) if not distributions(name) & allowed]
        assert undeclared == [], path


def test_what_opens_a_chapter_needs_no_extra():
    """A hosted notebook service has its own server and tools, so the set-up cell installs none."""
    in_desk = ("__init__", "opening", "bets", "bets_figure", "ledger")
    for name in ("chapters", "bets", "files", "store", *(f"desk/{name}" for name in in_desk)):
        modules = third_party_imports(ROOT / "course_utils" / f"{name}.py")
        assert all(distributions(module) & declared() for module in modules)


def test_pins_are_exact_sorted_once_and_of_no_one_platform():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert len(constrained()) == len(pins)
    assert not [pin for pin in pins if "+" in pin or "@" in pin or pin.startswith(("-e", "nvidia-", "triton"))]


@pytest.mark.slow
@pytest.mark.parametrize("python", pythons())
def test_the_commands_answer_under_every_python_found(python):
    """No library of ours is needed to say what the commands are, so any Python can be asked."""
    program = "import sys; sys.path.insert(0, sys.argv.pop(1)); from course_utils.cli import main; main()"
    result = subprocess.run([python, "-I", "-c", program, ROOT, "-h"], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    assert "doctor" in result.stdout
    packages = (ROOT / "course_utils", ROOT / "course_staff")
    subprocess.run([python, "-m", "compileall", "-q", "-f", *packages], check=True, timeout=120)
