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


def test_a_variable_with_a_bad_value_is_to_fix_and_an_unknown_one_is_a_note():
    wrong = doctor.probe_variable("COURSE_SCALE", "huge")
    assert wrong.level == "fix"
    assert "COURSE_SCALE='huge'" in wrong.remedy
    unknown = doctor.probe_variable("COURSE_SCLAE", "gpu")
    assert unknown.level == "note"
    assert "did you mean COURSE_SCALE" in unknown.text
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


def test_a_small_gpu_is_a_note_and_one_that_is_not_used_is_named():
    assert doctor.probe_device("cpu", []).level == "ok"
    assert doctor.probe_device("cuda", [("A", 80 * GiB)]).text.startswith("Training on the GPU: A with 80")
    assert doctor.probe_device("cuda", [("A", GiB)]).level == "note"
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
    assert finding.level == "fix"
    assert type(error).__name__ in finding.text
    assert "\n" not in finding.text
    assert "pip install --force-reinstall torch" in finding.remedy


def test_the_home_and_its_disk(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    finding = doctor.probe_home(tmp_path / "file" / "home")
    assert finding.level == "fix"
    assert "COURSE_HOME" in finding.remedy
    for free, level in ((NEEDED_DISK, "ok"), (NEEDED_DISK - 1, "note")):
        monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        assert doctor.probe_home(tmp_path / "new").level == level


@pytest.mark.parametrize(
    ("scale", "device", "available", "level"),
    [
        ("laptop", "cpu", 2 * GiB, "ok"),
        ("laptop", "cpu", 2 * GiB - 1, "fix"),
        ("gpu", "cpu", 4 * GiB, "fix"),
        ("gpu", "cuda", 4 * GiB, "ok"),
    ],
)
def test_memory_against_what_the_scale_needs(scale, device, available, level, monkeypatch):
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=available, total=8 * GiB))
    finding = doctor.probe_memory(scale, device)
    assert finding.level == level
    assert level == "ok" or f"the {scale} scale needs up to" in finding.text


def test_what_python_says_last_is_what_is_wrong():
    assert doctor.run_python("-c", "import time; time.sleep(60)", timeout=0.5) == "no answer within 0.5 s"
    assert doctor.run_python("-c", "import os; os._exit(3)") == "exit code 3"
    assert doctor.run_python("-c", "raise ValueError('no')") == "ValueError: no"
    assert doctor.run_python("-c", "import sys; print('a warning', file=sys.stderr)") == ""


def test_what_fails_in_a_process_of_its_own_is_named_with_what_needs_it(monkeypatch):
    monkeypatch.setattr(doctor, "run_python", lambda *arguments: "no libcudart.so")
    adam = doctor.probe_8bit_adam()
    assert adam.level == "fix"
    assert "bitsandbytes fails (no libcudart.so)" in adam.text
    sandbox = doctor.probe_sandbox()
    assert sandbox.level == "note"
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

    process = ask_doctor(COURSE_SCALE="huge", COURSE_DEVICE="cuda")
    assert process.returncode == 1
    assert "fix   COURSE_SCALE=huge" in process.stdout
    assert ("COURSE_DEVICE=cuda asks for a GPU" in process.stdout) is not torch.cuda.is_available()
    assert "8-bit Adam" in process.stdout
    assert "To fix:" in process.stdout
    assert "Traceback" not in process.stdout + process.stderr


def test_a_bare_python_is_told_what_to_type(copy):
    """Whatever the command; the copy has no metadata, so that the staff's commands are known by name alone."""
    process = ask_bare(copy, "doctor", COURSE_HOME="")
    assert process.returncode == 1
    assert process.stderr == ""
    assert "fix   The course's packages are not installed.\n      -> To install them, run `make lab`" in process.stdout
    assert "To fix: 1," in process.stdout
    for command, missing in (("lab", "The package"), ("grade", "This command is in course_staff")):
        process = ask_bare(copy, command, "03")
        assert (process.returncode, process.stdout) == (2, "")
        assert process.stderr.startswith(f"course {command}: {missing}")
        assert "run `make lab`" in process.stderr
        assert process.stderr.count("\n") == 1


def test_a_torch_that_cannot_be_imported_is_a_finding(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise OSError('libtorch.so: cannot open')")
    process = ask_doctor(PYTHONPATH=str(tmp_path))
    assert (process.returncode, process.stderr) == (1, "")
    assert "fix   torch is installed but cannot be imported (OSError: libtorch.so: cannot open)." in process.stdout


@pytest.mark.parametrize("name", ["course_utils.nowhere", "_ctypes"])
def test_a_module_of_our_own_that_is_missing_is_no_package_to_install(name, monkeypatch):
    def broken():
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(doctor, "examine", broken)
    with pytest.raises(ModuleNotFoundError):
        main(["doctor"])
