"""The wheel without its extras, in an environment that has nothing else."""

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bare")
    source = folder / "source"  # a build leaves files beside what it builds
    for name in ("course_utils", "course_staff"):
        shutil.copytree(ROOT / name, source / name)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, source]
    subprocess.run(build, check=True, timeout=600, stdin=subprocess.DEVNULL)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=True)
    scripts = folder / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
    subprocess.run([scripts / "python", "-m", "pip", "install", "--quiet", wheel], check=True, timeout=600)
    installed = subprocess.check_output([scripts / "python", "-m", "pip", "list"], text=True, timeout=60)
    assert "torch" not in installed.split()
    return scripts / "course"


def test_it_answers_for_a_named_model(course, tmp_path):
    result = ask(course, tmp_path, "plan", "llama-3.1-8b", "--memory", "24GB")
    assert (result.returncode, result.stderr) == (1, "")
    assert result.stdout.startswith("llama-3.1-8b: does not fit in 24.0 GiB.")
    assert "What would make it fit" in result.stdout


@pytest.mark.parametrize(
    "command", ["plan config.json --memory 24GB", "train --out runs", "lab", "ledger", "check 03", "guide a.pdf"]
)
def test_all_else_says_what_to_install(course, tmp_path, command):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    result = ask(course, tmp_path, *command.split())
    assert (result.returncode, result.stdout) == (2, "")
    assert "course-utils[course,lab]" in result.stderr
    assert result.stderr.count("\n") == 1


def ask(course, folder, *arguments):
    environment = {"COURSE_HOME": str(folder / "home"), "PATH": "", "HOME": str(folder)}
    return subprocess.run(
        [course, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
