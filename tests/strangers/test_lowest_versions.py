"""The oldest libraries allowed: what stands on them, and two chapters, with every lower bound of the project installed."""

import re
import subprocess
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from course_utils.settings import environment_for_child

ROOT = Path(__file__).parents[2]

# What the lowest versions are tried with: the rooms that stand on the libraries, and two chapters.
ROOMS = ("models", "data", "optim", "training", "viz/test_display.py", "precision")
CHAPTERS = ("00", "03")
# What today's Transformers refuses itself, and what chapters 06 and 10 say of today's Trainer and Accelerate.
SINCE_THEN = (
    "tests/models/test_configurations.py::test_what_transformers_refuses_is_said_in_a_sentence",
    "tests/training/test_accumulation.py::test_libraries_are_where_the_chapter_puts_them",
    "tests/lessons/test_c10_libraries.py::test_accelerate_and_trainer_fall_back_to_data_parallelism[trainer_on_rank]",
)


def lowest() -> list[str]:
    """Every dependency of a reader's kernel at its lower bound. Torch stays: its older builds are hundreds of MB each."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    requirements = [Requirement(text) for text in [*project["dependencies"], *extras["course"], *extras["lab"]]]
    bounds = {}
    for requirement in requirements:
        (bound,) = [specifier.version for specifier in requirement.specifier]
        bounds[requirement.name] = bound  # of two, that of the notebook server here: ipywidgets' lower one is Colab's
    installed = {"torch", "pip", "jupyterlab"}
    return [f"{package}=={bound}" for package, bound in bounds.items() if package not in installed]


@pytest.fixture(scope="module")
def oldest(tmp_path_factory):
    """A Python that has the lowest versions, and the rest as it is here."""
    folder = tmp_path_factory.mktemp("oldest") / "venv"
    venv.create(folder, with_pip=True)
    python = next(path for path in (folder / "bin/python", folder / "Scripts/python.exe") if path.exists())
    purelib = subprocess.check_output(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
    )
    shared = Path(purelib.strip()) / "shared.pth"
    shared.write_text(f"{sysconfig.get_path('purelib')}\n{ROOT}\n", encoding="utf-8")
    command = [python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", *lowest()]
    result = subprocess.run(command, capture_output=True, text=True, timeout=900, stdin=subprocess.DEVNULL)
    if result.returncode and not re.search(r"conflicting dependencies|No matching distribution", result.stderr):
        pytest.skip(f"the package index does not answer: {result.stderr.strip().splitlines()[-1]}")
    assert result.returncode == 0, result.stderr
    return python


def run_old(python: Path, *arguments: str, timeout: float) -> str:
    """What a module says under the old libraries; pytest's plug-ins are those of newer ones, so they are named."""
    environment = environment_for_child(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", OMP_NUM_THREADS="1")
    result = subprocess.run(
        [python, "-m", *arguments], cwd=ROOT, env=environment, text=True, timeout=timeout, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-6000:]
    return result.stdout


@pytest.mark.slow
@pytest.mark.timeout(2000)
def test_the_lowest_versions_pass_the_tests_of_what_stands_on_them(oldest):
    options = ["-p", "pytest_timeout", "-p", "no:cacheprovider", "-m", "not slow and not browser"]
    options += [f"--deselect={test}" for test in SINCE_THEN]
    output = run_old(oldest, "pytest", *options, *(f"tests/{room}" for room in ROOMS), timeout=1500)
    assert re.search(r"\d{3,} passed|\[100%\]", output)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_chapters_run_on_the_lowest_versions(oldest):
    output = run_old(oldest, "course_utils.cli", "run", *CHAPTERS, "--scale", "smoke", timeout=900)
    assert output.count("executed copy in") == len(CHAPTERS)
