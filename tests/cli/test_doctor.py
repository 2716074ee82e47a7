"""Each probe on facts made up for it, and the doctor on this machine."""

import subprocess
import sys
from pathlib import Path

import pytest

from course_utils import settings as settings_room
from course_utils.cli import examination, main
from course_utils.cli.examination import Finding
from course_utils.settings import Settings, environment_for_child, read_settings
from course_utils.units import GiB

REQUIREMENTS = ["torch>=2.8", "tqdm>=4.66", 'jupyterlab>=4.2; extra == "lab"', 'ruff>=0.9; extra == "dev"']


def marks(findings):
    return [finding.mark for finding in findings]


@pytest.mark.parametrize(
    ("version", "mark"), [((3, 10, 14), "fix"), ((3, 11, 0), "ok"), ((3, 14, 2), "ok"), ((4, 0, 0), "ok")]
)
def test_python(version, mark):
    assert examination.probe_python(version).mark == mark


def test_packages_are_judged_by_the_lower_bounds():
    installed = {"torch": "2.13.0+cpu", "tqdm": "4.70.1", "jupyterlab": "4.6.6"}
    (finding,) = examination.probe_packages(REQUIREMENTS, installed.get)
    assert finding == Finding("ok", "torch 2.13.0+cpu, tqdm 4.70.1, jupyterlab 4.6.6")


def test_packages_that_are_missing_or_old():
    old, missing, lab, rest = examination.probe_packages([*REQUIREMENTS], {"torch": "2.1.0"}.get)
    assert (old.mark, old.remedy) == ("fix", "pip install 'torch>=2.8'")
    assert (missing.mark, missing.text) == ("fix", "tqdm is not installed.")
    assert lab.mark == "note"
    assert "jupyterlab" in lab.text
    assert rest.text == "no package of the course is installed"


def test_a_home_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("in the way")
    finding = examination.probe_home(tmp_path / "file" / "home")
    assert finding.mark == "fix"
    assert "COURSE_HOME" in finding.remedy
    assert examination.probe_home(tmp_path / "new").mark == "ok"


@pytest.mark.parametrize(("free", "mark"), [(examination.NEEDED_DISK, "ok"), (examination.NEEDED_DISK - 1, "note")])
def test_disk(free, mark):
    assert examination.judge_disk(Path("home"), free).mark == mark


@pytest.mark.parametrize(
    ("scale", "device", "available", "mark"),
    [
        ("laptop", "cpu", 2 * GiB, "ok"),
        ("laptop", "cpu", 2 * GiB - 1, "fix"),
        ("gpu", "cpu", 4 * GiB, "fix"),
        ("gpu", "cuda:0", 4 * GiB, "ok"),
    ],
)
def test_memory_against_what_the_scale_needs(scale, device, available, mark):
    finding = examination.probe_memory(scale, device, 2, available, 16 * GiB)
    assert finding.mark == mark
    assert mark == "ok" or f"the {scale} scale takes up to" in finding.text


def test_devices():
    assert examination.probe_device("auto", "cpu", []).mark == "ok"
    assert examination.probe_device("cuda", "cpu", []).mark == "fix"
    assert examination.probe_device("cuda:1", "cuda:1", [("A", GiB), ("B", 80 * GiB)]).text.startswith(
        "Training on cuda:1: B with 80"
    )
    assert examination.probe_device("auto", "cuda", [("A", GiB)]).mark == "note"
    assert "there is A" in examination.probe_device("cpu", "cpu", [("A", GiB)]).text


def test_the_scale_is_explained():
    assert examination.probe_scale("auto", "laptop", "cpu").text.endswith("laptop scale: the default on cpu")
    assert examination.probe_scale("smoke", "smoke", "cpu").text.endswith("COURSE_SCALE says so")


def test_the_hub_is_only_a_note_and_a_broken_library_no_crash():
    def broken():
        raise ImportError

    assert examination.probe_hub(lambda: True).mark == "ok"
    assert examination.probe_hub(lambda: False).mark == "note"
    assert examination.probe_hub(broken).mark == "note"


def test_a_library_without_sources(tmp_path, monkeypatch):
    from course_utils.data import corpus

    assert examination.probe_library().mark == "ok"
    monkeypatch.setattr(corpus, "standard_library", lambda: tmp_path)
    assert examination.probe_library().mark == "fix"


def test_display_and_workers():
    assert marks(map(examination.probe_display, (True, False))) == ["ok", "note"]
    assert marks(map(examination.probe_workers, (True, False))) == ["ok", "note"]


def test_8bit_adam_says_why_it_fails():
    finding = examination.probe_8bit_adam("cpu", lambda source, timeout: "RuntimeError: no kernel")
    assert finding.mark == "fix"
    assert "RuntimeError: no kernel" in finding.text


def test_8bit_adam_really_takes_a_step():
    assert examination.probe_8bit_adam("cpu", examination.run_snippet).mark == "ok"
    wrong = examination.probe_8bit_adam("cuda:7", examination.run_snippet)
    assert wrong.mark == "fix"


def test_a_snippet_that_hangs_or_dies_is_told():
    assert examination.run_snippet("import time; time.sleep(60)", 0.5) == "no answer within 0.5 s"
    assert examination.run_snippet("import os; os._exit(3)", 30) == "exit code 3"
    assert examination.run_snippet("raise ValueError('no')", 30) == "ValueError: no"


def test_variables_one_by_one():
    environment = {"COURSE_SCALE": "huge", "COURSE_SEED": "3", "COURSE_SCLAE": "gpu", "PATH": "x"}
    findings = list(examination.probe_variables(environment))
    assert marks(findings) == ["fix", "note", "ok"]
    assert "COURSE_SCALE='huge'" in findings[0].remedy
    assert examination.usable_settings(environment) == Settings(seed=3, home=read_settings({}).home)


def test_the_variables_known_are_those_that_are_read():
    class Recorder(dict):
        def get(self, name, default=None):
            self[name] = default
            return default

    recorder = Recorder()
    read_settings(recorder)
    assert set(recorder) == set(examination.VARIABLES)


def test_a_gpu_asked_for_in_vain_does_not_stop_the_doctor():
    import torch

    chosen = Settings(device_name="cuda")
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert examination.with_usable_device(chosen).device.type == expected


def doctor(**environment):
    command = [sys.executable, "-m", "course_utils.cli", "doctor"]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=110, stdin=subprocess.DEVNULL,
        env=environment_for_child(HF_HUB_OFFLINE="1", **environment),
    )  # fmt: skip


def test_the_doctor_reports_a_bad_variable_and_goes_on():
    done = doctor(COURSE_SCALE="huge")
    assert done.returncode == 1
    assert "fix   COURSE_SCALE=huge" in done.stdout
    assert "8-bit Adam" in done.stdout
    assert "To be put right:" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_the_doctor_finds_this_machine_fit(capsys, monkeypatch):
    """Little memory is a matter of the moment, and is made up elsewhere."""
    monkeypatch.setattr(examination, "_probe_memory", lambda *_: Finding("ok", "enough"))
    monkeypatch.setattr(examination, "_hub_answers", lambda: False)
    settings_room.settings.cache_clear()
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "fix " not in said
    assert said.rstrip().endswith("counterpart.")
