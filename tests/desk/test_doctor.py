"""The doctor: its probes on facts made up for them; then as one calls it, here, in a bare Python, where something is broken."""

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from course_utils import settings as settings_room
from course_utils.cli import main
from course_utils.desk import doctor
from course_utils.desk.doctor import NEEDED_DISK, Finding
from course_utils.settings import environment_for_child, read_settings
from course_utils.units import GiB

ROOT = Path(__file__).parents[2]


def test_variables_one_by_one():
    wrong, unknown = doctor.probe_variable("COURSE_SCALE", "huge"), doctor.probe_variable("COURSE_SCLAE", "gpu")
    assert (wrong.mark, "COURSE_SCALE='huge'" in wrong.remedy) == ("fix", True)
    assert (unknown.mark, "did you mean COURSE_SCALE" in unknown.text) == ("note", True)
    assert doctor.probe_variable("COURSE_SEED", "3") is None
    home = doctor.probe_variable("COURSE_HOME", "~no-such-user-here/x")
    assert "COURSE_HOME='~no-such-user-here/x'" in home.remedy


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


REQUIRED = [
    "torch>=2.8",
    'ipywidgets>=7.7; extra == "course"',
    'ipywidgets>=8.1; extra == "lab"',
    'ruff>=0.9; extra == "dev"',
]


@pytest.mark.parametrize(
    ("versions", "sentence"),
    [
        ({"torch": "2.13.0+cpu", "ipywidgets": "8.1.2"}, ["ok    torch 2.13.0+cpu, ipywidgets 8.1.2"]),
        (
            {"torch": "2.1.0"},
            [
                "fix   torch 2.1.0 is too old.\n      -> pip install 'torch>=2.8'",
                "fix   ipywidgets is not installed.\n      -> pip install 'ipywidgets>=7.7'",
            ],
        ),
        (
            {"torch": "2.9", "ipywidgets": "7.7.1"},
            [
                "note  ipywidgets 7.7.1 is too old.\n      -> Only `course lab` and `course run` need it: "
                "pip install 'ipywidgets>=8.1'.",
                "ok    torch 2.9",
            ],
        ),
    ],
)
def test_packages_that_are_right_missing_or_old(versions, sentence, monkeypatch):
    monkeypatch.setattr(doctor, "requires", lambda name: REQUIRED)
    monkeypatch.setattr(doctor, "installed_version", ({"course-utils": "1", "packaging": "25"} | versions).get)
    assert list(map(str, doctor.probe_packages())) == sentence


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
    assert mark == "ok" or f"the {scale} scale needs up to" in finding.text


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
    assert "cannot run in a sandbox. no libcudart.so" in sandbox.text
    assert "Only `course grade` needs it" in sandbox.remedy


@pytest.fixture
def copy(tmp_path):
    """The package alone, as in a fresh clone: nothing says that it is installed."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "course_utils", tmp_path / "copy" / "course_utils", ignore=ignored)
    shutil.copytree(ROOT / "notebooks", tmp_path / "copy" / "notebooks", ignore=ignored)
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
    output = capsys.readouterr().out
    assert "fix " not in output
    assert "8-bit Adam: bitsandbytes works" in output
    assert "Chapters run at smoke scale: set by COURSE_SCALE" in output
    assert output.rstrip().endswith("or bundled data instead.")


@pytest.mark.slow
def test_the_doctor_reports_bad_variables_and_goes_on():
    import torch

    done = ask_doctor(COURSE_SCALE="huge", COURSE_DEVICE="cuda")
    assert done.returncode == 1
    assert "fix   COURSE_SCALE=huge" in done.stdout
    assert ("COURSE_DEVICE=cuda asks for a GPU" in done.stdout) is not torch.cuda.is_available()
    assert "8-bit Adam" in done.stdout
    assert "To fix:" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_a_bare_python_is_told_what_to_type(copy):
    """Whatever the command; the copy has no metadata, so that the staff's commands are known by name alone."""
    done = ask_bare(copy, "doctor", COURSE_HOME="")
    assert (done.returncode, done.stderr) == (1, "")
    assert "fix   The course's packages are not installed.\n      -> To install them, run `make lab`" in done.stdout
    assert "To fix: 1," in done.stdout
    for command, missing in (("lab", "The package"), ("grade", "This command is in course_staff")):
        done = ask_bare(copy, command, "03")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"course {command}: {missing}")
        assert "run `make lab`" in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_torch_that_cannot_be_imported_is_a_finding(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise OSError('libtorch.so: cannot open')")
    done = ask_doctor(PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (1, "")
    assert "fix   torch is installed but cannot be imported (OSError: libtorch.so: cannot open)." in done.stdout


@pytest.mark.parametrize("name", ["course_utils.nowhere", "_ctypes"])
def test_a_module_of_our_own_that_is_missing_is_no_package_to_install(name, monkeypatch):
    def broken():
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(doctor, "examine", broken)
    with pytest.raises(ModuleNotFoundError):
        main(["doctor"])
