"""The doctor as one calls it: here, in a bare Python, and where something is broken."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from course_utils import settings as settings_room
from course_utils.cli import STAFF, main
from course_utils.doctor import Finding, abilities, machine, packages
from course_utils.settings import environment_for_child

ROOT = Path(__file__).parents[2]
# -I and -S: without this environment's packages, and without any variable that would bring them back.
BARE = "import sys; sys.path.insert(0, sys.argv[1]); from course_utils.cli import STAFF, main; sys.exit(main(sys.argv[2:]))"


def ask(command, **environment):
    return subprocess.run(
        command, capture_output=True, text=True, timeout=110, stdin=subprocess.DEVNULL,
        env=environment_for_child(HF_HUB_OFFLINE="1", **environment),
    )  # fmt: skip


def doctor(**environment):
    return ask([sys.executable, "-m", "course_utils.cli", "doctor"], **environment)


@pytest.fixture
def copy(tmp_path):
    """The package alone, as in a fresh clone: nothing says that it is installed."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "course_utils", tmp_path / "copy" / "course_utils", ignore=ignored)
    shutil.copytree(ROOT / "notebooks", tmp_path / "copy" / "notebooks", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path / "copy")
    return tmp_path / "copy"


def bare(copy, *arguments, python=sys.executable, **environment):
    return ask([python, "-I", "-S", "-c", BARE, str(copy), *arguments], **environment)


@pytest.mark.slow
def test_the_doctor_reports_a_bad_variable_and_goes_on():
    done = doctor(COURSE_SCALE="huge")
    assert done.returncode == 1
    assert "fix   COURSE_SCALE=huge" in done.stdout
    assert "8-bit Adam" in done.stdout
    assert "To be put right:" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_the_doctor_finds_this_machine_fit(capsys, monkeypatch):
    """Little memory is a matter of the moment, and is made up elsewhere."""
    monkeypatch.setattr(machine, "find_memory", lambda *_: Finding("ok", "enough"))
    monkeypatch.setattr(abilities, "hub_answers", lambda: False)
    settings_room.settings.cache_clear()
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "fix " not in said
    assert said.rstrip().endswith("counterpart.")


def test_a_bare_python_is_told_everything_that_is_missing(copy):
    done = bare(copy, "doctor", COURSE_HOME="")
    assert (done.returncode, done.stderr) == (1, "")
    assert "fix   course-utils, the course's own package, is not installed." in done.stdout
    wanted = list(map(packages.split_requirement, packages.requirements()))
    for name in {name for name, _, _ in wanted}:
        advice = [
            f"pip install '{name}{bounds}'" for other, bounds, extra in wanted if other == name and extra in ("", "lab")
        ]
        assert done.stdout.count(f"{name} is not installed.") == bool(advice), name
        assert not advice or advice[0] in done.stdout
    assert "To be put right:" in done.stdout


def test_with_neither_packages_nor_pyproject_the_doctor_still_answers(copy):
    (copy / "pyproject.toml").unlink()
    done = bare(copy, "doctor")
    assert (done.returncode, done.stderr) == (1, "")
    assert "make lab" in done.stdout


def test_a_torch_that_cannot_be_imported_is_a_finding(tmp_path):
    for name, text in (("torch/__init__.py", "raise OSError('libtorch.so: cannot open')"),):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    done = doctor(PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (1, "")
    assert "fix   torch is installed and cannot be imported (OSError: libtorch.so: cannot open)." in done.stdout


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        ("lab", "The package"),
        ("ledger", "The package"),
        *((command, "It belongs to course_staff") for command in STAFF),
    ],
)
def test_any_other_command_says_in_one_sentence_what_is_missing(command, missing, copy):
    """The copy has no metadata, so that the staff's commands are known by name alone."""
    done = bare(copy, command, "--anything", "03") if command in STAFF else bare(copy, command)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"course {command}: {missing}")
    assert "run `make lab`" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["course_utils.nowhere", "_ctypes"])
def test_a_module_of_our_own_that_is_missing_is_no_package_to_install(name, monkeypatch):
    def broken():
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("course_utils.doctor.examine", broken)
    with pytest.raises(ModuleNotFoundError):
        main(["doctor"])
