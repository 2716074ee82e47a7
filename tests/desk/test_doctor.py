"""The doctor: its probes on facts made up for them; then as one calls it, here, in a bare Python, where something is broken."""

import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement

from course_utils import settings as settings_room
from course_utils.cli import STAFF, main
from course_utils.desk import doctor
from course_utils.desk.doctor import NEEDED_DISK, Finding
from course_utils.settings import environment_for_child, read_settings
from course_utils.units import GiB

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ["torch>=2.8", "tqdm>=4.66", 'jupyterlab>=4.2; extra == "lab"', 'ruff>=0.9; extra == "dev"']
OWN = {"course-utils": "1.0"}


def test_variables_one_by_one():
    environment = {"COURSE_SCALE": "huge", "COURSE_SEED": "3", "COURSE_SCLAE": "gpu", "PATH": "x"}
    findings = list(doctor.probe_variables(environment))
    assert [finding.mark for finding in findings] == ["fix", "note"]
    assert "COURSE_SCALE='huge'" in findings[0].remedy
    (home,) = doctor.probe_variables({"COURSE_HOME": "~no-such-user-here/x"})
    assert (home.mark, "COURSE_HOME='~no-such-user-here/x'" in home.remedy) == ("fix", True)


def test_the_variables_known_are_those_that_are_read():
    class Recorder(dict):
        def get(self, name, default=None):
            self[name] = default
            return default

    recorder = Recorder()
    read_settings(recorder)
    assert set(recorder) == set(doctor.VARIABLES)


def test_devices():
    assert doctor.probe_device("cpu", []).mark == "ok"
    assert doctor.probe_device("cuda", [("A", 80 * GiB)]).text.startswith("Training on the GPU: A with 80")
    assert doctor.probe_device("cuda", [("A", GiB)]).mark == "note"
    assert "there is A" in doctor.probe_device("cpu", [("A", GiB)]).text


@pytest.mark.parametrize(
    ("version", "mark"), [((3, 10, 14), "fix"), ((3, 11, 0), "ok"), ((3, 14, 2), "ok"), ((4, 0, 0), "ok")]
)
def test_python(version, mark):
    assert doctor.probe_python(version).mark == mark


@pytest.fixture
def installed(monkeypatch):
    """Makes these the versions that are installed."""
    return lambda versions: monkeypatch.setattr(doctor, "installed_version", versions.get)


def test_packages_that_are_right_missing_or_old(installed):
    versions = {**OWN, "torch": "2.13.0+cpu", "tqdm": "4.70.1", "jupyterlab": "4.6.6"}
    installed(versions)
    assert list(doctor.probe_packages(REQUIREMENTS)) == [
        Finding("ok", "torch 2.13.0+cpu, tqdm 4.70.1, jupyterlab 4.6.6")
    ]
    installed({"torch": "2.1.0"})
    own, old, missing, lab = doctor.probe_packages(REQUIREMENTS)
    assert (own.mark, "make lab" in own.remedy) == ("fix", True)
    assert (old.mark, old.remedy) == ("fix", "pip install 'torch>=2.8'")
    assert (missing.mark, missing.text) == ("fix", "tqdm is not installed.")
    assert (lab.mark, "jupyterlab" in lab.text) == ("note", True)


@pytest.mark.parametrize(
    ("versions", "marks"),
    [({"ipywidgets": "8.1.2"}, ["ok"]), ({}, ["fix", "ok"]), ({"ipywidgets": "7.7.1"}, ["note", "ok"])],
)
def test_a_package_that_chapters_and_the_lab_require_is_said_once(versions, marks, installed):
    twice = ["torch>=2.8", "ipywidgets>=7.7", 'ipywidgets>=8.1; extra == "lab"']
    installed({**OWN, "torch": "2.9", **versions})
    findings = list(doctor.probe_packages(twice))
    assert [finding.mark for finding in findings] == marks
    assert " ".join(finding.text for finding in findings).count("ipywidgets") == 1


def test_without_packaging_a_version_is_not_judged_and_nothing_breaks(monkeypatch, installed):
    for name in ("packaging", "packaging.specifiers"):
        monkeypatch.setitem(sys.modules, name, None)
    installed({**OWN, "torch": "2.1.0"})
    missing, good = doctor.probe_packages(["torch>=2.8", "packaging>=23"])
    assert (missing.mark, missing.remedy) == ("fix", "pip install 'packaging>=23'")
    assert good == Finding("ok", "torch 2.1.0")


def test_requirements_are_those_of_pyproject_read_as_packaging_reads_them():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras, stated = project["optional-dependencies"], doctor.requirements()
    assert len(stated) == len(project["dependencies"]) + sum(map(len, extras.values()))
    assert f'{extras["lab"][0]}; extra == "lab"' in stated
    for requirement in [*stated, "a.b-c >= 1.2, <3 ; extra == 'lab'"]:
        name, bounds, extra = doctor.split_requirement(requirement)
        oracle = Requirement(requirement)
        assert (name, extra != "") == (oracle.name, oracle.marker is not None)
        assert Requirement(name + bounds).specifier == oracle.specifier
        assert not extra or oracle.marker.evaluate({"extra": extra})


def test_the_metadata_is_asked_where_there_is_no_checkout(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "__file__", str(tmp_path / "course_utils" / "desk" / "doctor.py"))
    assert "torch>=2.8" in doctor.requirements()

    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "requires", missing)
    assert doctor.requirements() == []


@pytest.mark.parametrize("error", [ImportError("no symbol"), OSError("libcudart.so.12:\n not found"), RuntimeError()])
def test_a_package_that_cannot_be_imported_is_a_finding(error, monkeypatch):
    assert doctor.probe_import("json") is None

    def broken(name):
        raise error

    monkeypatch.setattr(doctor, "import_module", broken)
    finding = doctor.probe_import("torch")
    assert finding.mark == "fix"
    assert type(error).__name__ in finding.text
    assert "\n" not in finding.text
    assert "pip install --force-reinstall torch" in finding.remedy


def test_the_home_and_its_disk(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    finding = doctor.probe_home(tmp_path / "file" / "home")
    assert (finding.mark, "COURSE_HOME" in finding.remedy) == ("fix", True)
    for free, mark in ((NEEDED_DISK, "ok"), (NEEDED_DISK - 1, "note")):
        monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        assert doctor.probe_home(tmp_path / "new").mark == mark


@pytest.mark.parametrize(
    ("scale", "device", "available", "mark"),
    [
        ("laptop", "cpu", 2 * GiB, "ok"),
        ("laptop", "cpu", 2 * GiB - 1, "fix"),
        ("gpu", "cpu", 4 * GiB, "fix"),
        ("gpu", "cuda", 4 * GiB, "ok"),
    ],
)
def test_memory_against_what_the_scale_needs(scale, device, available, mark, monkeypatch):
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=available, total=8 * GiB))
    finding = doctor.probe_memory(scale, device)
    assert finding.mark == mark
    assert mark == "ok" or f"the {scale} scale takes up to" in finding.text


def test_without_psutil_memory_is_a_note(monkeypatch):
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert doctor.probe_memory("smoke", "cpu").mark == "note"


@pytest.mark.parametrize(
    ("environment", "platform", "expected"),
    [
        ({}, "linux", False),
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "w"}, "linux", True),
        ({"DISPLAY": ":0", "CI": "true"}, "linux", False),
        ({"DISPLAY": ":0", "SSH_CONNECTION": "x"}, "linux", False),
        ({}, "darwin", True),
        ({"SSH_CONNECTION": "x"}, "darwin", False),
        ({}, "win32", True),
    ],
)
def test_where_a_browser_is_opened(environment, platform, expected, monkeypatch):
    monkeypatch.setattr(sys, "platform", platform)
    for name in ("CI", "SSH_CONNECTION", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert doctor.has_display() is expected


def test_what_python_says_last_is_what_is_wrong():
    assert doctor.run_python("-c", "import time; time.sleep(60)", timeout=0.5) == "no answer within 0.5 s"
    assert doctor.run_python("-c", "import os; os._exit(3)") == "exit code 3"
    assert doctor.run_python("-c", "raise ValueError('no')") == "ValueError: no"
    assert doctor.run_python("-c", "import sys; print('a warning', file=sys.stderr)") == ""


def test_what_fails_in_a_process_of_its_own_is_named_with_what_needs_it(monkeypatch):
    monkeypatch.setattr(doctor, "run_python", lambda *arguments: "no libcudart.so")
    adam, sandbox = doctor.probe_8bit_adam(), doctor.probe_sandbox()
    assert (adam.mark, sandbox.mark) == ("fix", "note")
    assert "bitsandbytes fails (no libcudart.so)" in adam.text
    assert "cannot be run in a sandbox. no libcudart.so" in sandbox.text
    assert "Only `course grade` needs it" in sandbox.remedy


@pytest.fixture
def copy(tmp_path):
    """The package alone, as in a fresh clone: nothing says that it is installed."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "course_utils", tmp_path / "copy" / "course_utils", ignore=ignored)
    shutil.copytree(ROOT / "notebooks", tmp_path / "copy" / "notebooks", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path / "copy")
    return tmp_path / "copy"


def ask(command, **environment):
    return subprocess.run(
        command, capture_output=True, text=True, timeout=110, stdin=subprocess.DEVNULL,
        env=environment_for_child(HF_HUB_OFFLINE="1", **environment),
    )  # fmt: skip


def ask_doctor(**environment):
    return ask([sys.executable, "-m", "course_utils.cli", "doctor"], **environment)


def ask_bare(copy, *arguments, **environment):
    """-I and -S: without this environment's packages, and without any variable that would bring them back."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from course_utils.cli import main; sys.exit(main(sys.argv[2:]))"
    )
    return ask([sys.executable, "-I", "-S", "-c", program, str(copy), *arguments], **environment)


def test_the_doctor_finds_this_machine_fit(capsys, monkeypatch):
    """Little memory is a matter of the moment, and is made up elsewhere, as is a sandbox that does not start."""
    monkeypatch.setattr(doctor, "probe_memory", lambda *_: Finding("ok", "enough"))
    monkeypatch.setattr(doctor, "probe_sandbox", lambda: Finding("note", "no sandbox"))
    settings_room.settings.cache_clear()
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "fix " not in said
    assert "8-bit Adam: bitsandbytes takes a step" in said
    assert "Chapters run at smoke scale: COURSE_SCALE says so" in said
    assert said.rstrip().endswith("counterpart.")


@pytest.mark.slow
def test_the_doctor_reports_bad_variables_and_goes_on():
    import torch

    done = ask_doctor(COURSE_SCALE="huge", COURSE_DEVICE="cuda")
    assert done.returncode == 1
    assert "fix   COURSE_SCALE=huge" in done.stdout
    assert ("COURSE_DEVICE=cuda asks for a GPU" in done.stdout) is not torch.cuda.is_available()
    assert "8-bit Adam" in done.stdout
    assert "To be put right:" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_bare_python_names_everything_that_is_missing(copy):
    done = ask_bare(copy, "doctor", COURSE_HOME="")
    assert (done.returncode, done.stderr) == (1, "")
    assert "fix   course-utils, the course's own package, is not installed." in done.stdout
    needed = {}
    for name, bounds, extra in map(doctor.split_requirement, doctor.requirements()):
        if extra in ("", "lab"):
            needed.setdefault(name, f"pip install '{name}{bounds}'")
    for name, install in needed.items():
        assert done.stdout.count(f"{name} is not installed.") == 1
        assert install in done.stdout
    assert done.stdout.count(" is not installed.") == len(needed) + 1
    assert "To be put right:" in done.stdout


def test_with_neither_packages_nor_pyproject_the_doctor_still_answers(copy):
    (copy / "pyproject.toml").unlink()
    done = ask_bare(copy, "doctor")
    assert (done.returncode, done.stderr) == (1, "")
    assert "make lab" in done.stdout


def test_a_torch_that_cannot_be_imported_is_a_finding(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise OSError('libtorch.so: cannot open')")
    done = ask_doctor(PYTHONPATH=str(tmp_path))
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
    done = ask_bare(copy, command, "--anything", "03") if command in STAFF else ask_bare(copy, command)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"course {command}: {missing}")
    assert "run `make lab`" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["course_utils.nowhere", "_ctypes"])
def test_a_module_of_our_own_that_is_missing_is_no_package_to_install(name, monkeypatch):
    def broken():
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(doctor, "examine", broken)
    with pytest.raises(ModuleNotFoundError):
        main(["doctor"])
