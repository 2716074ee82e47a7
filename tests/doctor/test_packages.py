"""What is said of the Python and its packages, right, old, missing and broken."""

import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from course_utils.doctor import packages
from course_utils.doctor.finding import Finding

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ["torch>=2.8", "tqdm>=4.66", 'jupyterlab>=4.2; extra == "lab"', 'ruff>=0.9; extra == "dev"']


@pytest.mark.parametrize(
    ("version", "mark"), [((3, 10, 14), "fix"), ((3, 11, 0), "ok"), ((3, 14, 2), "ok"), ((4, 0, 0), "ok")]
)
def test_python(version, mark):
    assert packages.probe_python(version).mark == mark


def test_packages_are_judged_by_the_lower_bounds():
    installed = {"torch": "2.13.0+cpu", "tqdm": "4.70.1", "jupyterlab": "4.6.6"}
    (finding,) = packages.probe_packages(REQUIREMENTS, installed.get)
    assert finding == Finding("ok", "torch 2.13.0+cpu, tqdm 4.70.1, jupyterlab 4.6.6")


def test_packages_that_are_missing_or_old():
    old, missing, lab = packages.probe_packages([*REQUIREMENTS], {"torch": "2.1.0"}.get)
    assert (old.mark, old.remedy) == ("fix", "pip install 'torch>=2.8'")
    assert (missing.mark, missing.text) == ("fix", "tqdm is not installed.")
    assert lab.mark == "note"
    assert "jupyterlab" in lab.text


TWICE = ["torch>=2.8", "ipywidgets>=7.7", 'ipywidgets>=8.1; extra == "lab"']


@pytest.mark.parametrize(
    ("installed", "marks"),
    [({"ipywidgets": "8.1.2"}, ["ok"]), ({}, ["fix", "ok"]), ({"ipywidgets": "7.7.1"}, ["note", "ok"])],
)
def test_a_package_that_chapters_and_the_lab_require_is_said_once(installed, marks):
    findings = list(packages.probe_packages(TWICE, {"torch": "2.9", **installed}.get))
    assert [finding.mark for finding in findings] == marks
    assert " ".join(finding.text for finding in findings).count("ipywidgets") == 1


def test_without_packaging_a_version_is_not_judged_and_nothing_breaks(monkeypatch):
    for name in ("packaging", "packaging.specifiers"):
        monkeypatch.setitem(sys.modules, name, None)
    missing, good = packages.probe_packages(["torch>=2.8", "packaging>=23"], {"torch": "2.1.0"}.get)
    assert (missing.mark, missing.remedy) == ("fix", "pip install 'packaging>=23'")
    assert good == Finding("ok", "torch 2.1.0")


def test_requirements_are_those_of_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    stated = packages.requirements()
    assert stated[: len(project["dependencies"])] == project["dependencies"]
    extras = project["optional-dependencies"]
    assert len(stated) == len(project["dependencies"]) + sum(map(len, extras.values()))
    assert f'{extras["lab"][0]}; extra == "lab"' in stated


def test_requirements_are_read_as_packaging_reads_them():
    for stated in [*packages.requirements(), "a.b-c >= 1.2, <3 ; extra == 'lab'"]:
        name, bounds, extra = packages.split_requirement(stated)
        oracle = Requirement(stated)
        assert (name, extra != "") == (oracle.name, oracle.marker is not None)
        assert Requirement(name + bounds).specifier == oracle.specifier
        assert not extra or oracle.marker.evaluate({"extra": extra})


def test_the_metadata_is_asked_where_there_is_no_checkout(monkeypatch, tmp_path):
    monkeypatch.setattr(packages, "__file__", str(tmp_path / "course_utils" / "doctor" / "packages.py"))
    installed = packages.requirements()
    assert "torch>=2.8" in installed

    def missing(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(packages, "requires", missing)
    assert packages.requirements() == []


def test_the_courses_own_package():
    assert packages.probe_course({"course-utils": "1.0"}.get) == Finding("ok", "course-utils 1.0")
    missing = packages.probe_course({}.get)
    assert missing.mark == "fix"
    assert "make lab" in missing.remedy


@pytest.mark.parametrize("error", [ImportError("no symbol"), OSError("libcudart.so.12:\n not found"), RuntimeError()])
def test_a_package_that_cannot_be_imported_is_a_finding(error):
    def broken(name):
        raise error

    finding = packages.probe_import("torch", broken)
    assert finding.mark == "fix"
    assert type(error).__name__ in finding.text
    assert "\n" not in finding.text
    assert "pip install --force-reinstall torch" in finding.remedy
    assert packages.probe_import("json") is None
