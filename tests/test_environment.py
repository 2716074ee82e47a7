"""The three files that say what is installed agree with each other."""

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PYTHONS = [name for name in ("python3.11", "python3.12", "python3.13", "python3.14") if shutil.which(name)]


def required() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *extras["lab"], *extras["dev"]]


def constrained() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def test_conda_installs_what_pyproject_requires():
    conda = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    (pip_section,) = [entry["pip"] for entry in conda if isinstance(entry, dict)]
    assert pip_section[0] == "-c constraints.txt"
    assert pip_section[-1] == "-e ."
    assert set(pip_section[1:-1]) == set(required())
    assert {entry.split()[0] for entry in conda if isinstance(entry, str)} == {"python", "pip"}


@pytest.mark.parametrize("requirement", required())
def test_every_requirement_is_pinned_at_a_version_it_allows(requirement):
    wanted = Requirement(requirement)
    assert wanted.specifier.contains(constrained()[canonicalize_name(wanted.name)])


def test_pins_are_exact_sorted_once_and_of_no_one_platform():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert len(constrained()) == len(pins)
    assert not [pin for pin in pins if "+" in pin or "@" in pin or pin.startswith(("-e", "nvidia-", "triton"))]


@pytest.mark.slow
@pytest.mark.parametrize("python", PYTHONS)
def test_the_commands_answer_under_every_python_found(python):
    """No library of ours is needed to say what the commands are, so any Python can be asked."""
    try:
        subprocess.run([python, "-c", ""], check=True, capture_output=True, timeout=60)
    except subprocess.CalledProcessError:
        pytest.skip(f"{python} is there but does not run")
    program = "import sys; sys.path.insert(0, sys.argv.pop(1)); from course_utils.cli import main; main()"
    done = subprocess.run([python, "-I", "-c", program, ROOT, "-h"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "doctor" in done.stdout
    subprocess.run([python, "-m", "compileall", "-q", "-f", "-l", ROOT / "course_utils"], check=True, timeout=120)
