"""What a program in the sandbox sees of this machine: Python and the course wherever they lie, and nothing that is private."""

import json
import os
import shutil
import site
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import course_utils
from course_staff.grading.bwrap import bwrap_command
from course_staff.grading.sandbox import best_kind

LIST_FILES = """import os, sys
for folder, _, files in os.walk(sys.argv[1]):
    for file in files: print(os.path.relpath(os.path.join(folder, file), sys.argv[1]))"""


@pytest.mark.parametrize(
    ("private", "seen"),
    [
        ([], {"lib/so", "src/course/solutions/03", "src/course/.venv/torch", "src/course/.venv/results/a", "in/a"}),
        (["in"], {"lib/so", "src/course/solutions/03", "src/course/.venv/torch", "src/course/.venv/results/a"}),
        (["in", "src/course"], {"lib/so", "src/course/.venv/torch", "src/course/.venv/results/a"}),
        (["in", "src/course", "src/course/.venv/results"], {"lib/so", "src/course/.venv/torch"}),
        (["in", "src"], {"lib/so", "src/course/.venv/torch", "src/course/.venv/results/a"}),
    ],
)
def test_what_is_private_is_not_seen_wherever_it_lies(private, seen, safe_kind, monkeypatch):
    """A checkout below the system's libraries, with its environment within, and other submissions beside them."""
    build = Path(course_utils.__file__).resolve().parents[1] / "build"
    build.mkdir(exist_ok=True)
    place = Path(tempfile.mkdtemp(dir=build))
    try:
        for file in (
            "lib/so",
            "src/course/solutions/03",
            "src/course/.venv/torch",
            "src/course/.venv/results/a",
            "in/a",
        ):
            (place / file).parent.mkdir(parents=True, exist_ok=True)
            (place / file).write_text("x")
        packages = [*site.getsitepackages(), str(place), str(place / "src/course/.venv")]
        monkeypatch.setattr(site, "getsitepackages", lambda: packages)
        command = bwrap_command(
            [sys.executable, "-c", LIST_FILES, str(place)], private=[place / folder for folder in private]
        )
        output = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
        assert set(output.split()) == seen
    finally:
        shutil.rmtree(place)


PRINT_LOCATIONS = """import json, os, site, sys
print(json.dumps([sys.executable, sys.prefix, sys.base_prefix, os.__file__, site.getsitepackages()]))"""


@pytest.mark.parametrize("behind", ["the environment", "the project's folder", "the base interpreter"])
def test_a_python_behind_links_has_a_sandbox_too(behind, safe_kind, tmp_path, monkeypatch):
    """As that Python sees itself; what it imports within the sandbox is the course and the libraries."""
    real = Path(sys.prefix)
    link = tmp_path / "link"
    if behind == "the base interpreter":
        (tmp_path / "store").symlink_to(sys.base_prefix)
        link.symlink_to("store")
        prefix = tmp_path / "environment"
        packages = Path("lib", *Path(site.getsitepackages()[0]).parts[-2:])
        (prefix / packages).parent.mkdir(parents=True)
        (prefix / packages).symlink_to(real / packages)
        (prefix / "pyvenv.cfg").write_text(f"home = {link / 'bin'}\ninclude-system-site-packages = false\n")
        (prefix / "bin").mkdir()
        (prefix / "bin" / "python").symlink_to(link / "bin" / Path(os.path.realpath(sys.executable)).name)
    elif behind == "the environment":
        link.symlink_to(real)
        prefix = link
    else:
        link.symlink_to(real.parent)
        prefix = link / real.name
    output = subprocess.check_output([prefix / "bin" / "python", "-c", PRINT_LOCATIONS], text=True, timeout=60)
    executable, own_prefix, base, library, packages = json.loads(output)
    assert str(tmp_path) in executable
    for name, value in (("executable", executable), ("prefix", own_prefix), ("base_prefix", base)):
        monkeypatch.setattr(sys, name, value)
    monkeypatch.setattr(os, "__file__", library)
    monkeypatch.setattr(site, "getsitepackages", lambda: packages)
    command = bwrap_command([executable, "-c", "import course_staff.grading.limits, numpy"])
    environment = {**os.environ, "PYTHONPATH": str(Path(course_utils.__file__).resolve().parents[1])}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (process.returncode, process.stderr) == (0, "")
    assert best_kind(trust=False) == safe_kind
