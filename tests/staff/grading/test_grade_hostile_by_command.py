"""A second class of strangers who mean harm, graded by the command itself: each has what the answers are worth."""

import contextlib
import csv
import ctypes
import json
import os
import random
import subprocess
import sys
import time
import unicodedata

import pytest
from hostile_class import HONEST, NOTE, everything
from sample_records import BROKEN, record
from tiny_set import SEED, SET

from course_staff.grading import limits
from course_staff.grading.record import file_name
from course_staff.release.source import load_solutions

MOST_BYTES = 200_000  # of a page or of a record
PR_SET_CHILD_SUBREAPER = 36
PICTURE = "<img src='data:image/svg+xml;base64,"  # the class's, the only one
RUN = """import sys
from pathlib import Path
from course_staff.grading import asking, sandbox
from course_utils.cli import main
from course_utils.grading import loading
loading.SETS = Path(sys.argv[1])
asking.GRACE, asking.CELL_SECONDS = 1.0, 2.0
if sys.argv[2] == "crowded":
    sandbox.Lane.clear = lambda lane: None
sys.exit(main(sys.argv[3:]))"""


@pytest.fixture(scope="module")
def honest():
    return {f"honest {number}": (HONEST, [2, 1]) for number in range(3)}


def command(private, *arguments, crowded=False):
    """`course grade` in a process of its own; `crowded` with one sandbox for all submissions of a lane."""
    line = [sys.executable, "-c", RUN, str(private), "crowded" if crowded else "", "grade", *map(str, arguments)]
    argv = [*line, "--set", SET, "--seed", str(SEED), "--solutions", str(private / f"{SET}.ipynb"), "--seconds", "2"]
    return subprocess.Popen([*argv, "--jobs", "2"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def write(folder, submissions):
    folder.mkdir()
    for name, (text, _) in submissions.items():
        (folder / f"{name.replace('/', '_')}.ipynb").write_text(text, encoding="utf-8", errors="surrogatepass")


def graded(results):
    return {
        record["student"]: [question["points"] for question in record["questions"]]
        for record in json.loads((results / "results.json").read_text("utf-8"))
    }


@pytest.fixture
def nothing_stays():
    """Afterwards nothing runs that this process, or what it started, has begun."""
    limits.adopt_orphans()
    before = {process.number for process in limits.descendants(os.getpid())}
    yield
    for _ in range(50):  # what was killed takes a moment to end
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not (left := {process.number for process in limits.descendants(os.getpid())} - before):
            break
        time.sleep(0.1)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0)
    assert not left


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_class_of_strangers_costs_nobody_but_themselves(tiny_solutions, tmp_path, safe_kind, honest, nothing_stays):
    """Crowded into two sandboxes, where each could stand in the way of many."""
    submissions = everything() | honest
    assert len(submissions) > 100
    write(tmp_path / "class", submissions)
    process = command(tiny_solutions.parent, tmp_path / "class", crowded=True)
    output, complained = process.communicate(timeout=580)
    assert process.returncode == 0, complained[-2000:]
    assert output.startswith(f"{SET}: {len(submissions)} submissions")
    results = tmp_path / "class-results"
    points = graded(results)
    expected = {name.replace("/", "_"): right for name, (_, right) in submissions.items()}
    wrong = {name: (points.get(name), right) for name, right in expected.items() if points.get(name) != right}
    pages, records = list((results / "students").iterdir()), list((results / "records").iterdir())
    large = {path.name: path.stat().st_size for path in [*pages, *records] if path.stat().st_size > MOST_BYTES}
    assert wrong == {}
    assert large == {}
    assert len(pages) == len(records) == len(submissions)
    texts = {path.name: path.read_text("utf-8") for path in [*pages, results / "summary.html", results / "summary.txt"]}
    for_students = "\n".join(text for name, text in texts.items() if "summary" not in name)
    assert [secret for secret in secrets(tiny_solutions) if secret in for_students] == []
    for name, text in [*texts.items(), ("what it says", output)]:
        of_strangers = text.replace(PICTURE, "", 1) if name == "summary.html" else text
        assert not (name.endswith(".html") and ("<script" in of_strangers or "<img" in of_strangers)), name
        odd = {letter for letter in text if unicodedata.category(letter) in ("Cc", "Cf", "Cs")} - {"\n"}
        assert not odd, (name, odd)
        assert str(12345 * 54321) not in text, name
    with (results / "results.csv").open(newline="") as file:
        values = [value for row in csv.reader(file) for value in row]
    assert not [value for value in values if value.startswith(("=", "+", "-", "@", "\t", "\r"))]
    assert not NOTE.exists()


def secrets(solutions):
    """Digits of the hidden inputs, and of what is right for them."""
    question = load_solutions(solutions)[0].question
    [case] = question.cases(SEED)
    numbers = [*case.inputs["x"].tolist(), case.inputs["factor"], *question.expected(case.inputs)["result"].tolist()]
    assert len(numbers) == 7
    return [repr(number)[:8] for number in numbers]


FORGED = record("honest 1", set=SET, seed=SEED, points=99, max_points=3)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_two_runs_at_once_and_records_that_are_none(tiny_solutions, tmp_path, safe_kind, honest, nothing_stays):
    results = tmp_path / "class-results"
    (results / "records").mkdir(parents=True)
    for name, text in BROKEN.items():
        (results / "records" / f"{name}.json").write_text(text)
    (results / "records" / "folder.json").mkdir()
    (results / "records" / "bytes.json").write_bytes(random.Random(0).randbytes(999))
    (results / "records" / "link.json").symlink_to("link.json")
    (results / "records" / f"{file_name('honest 1')}.json").write_text(json.dumps(FORGED))
    write(tmp_path / "class", honest)
    runs = [command(tiny_solutions.parent, tmp_path / "class") for _ in range(2)]
    outputs = [run.communicate(timeout=180) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], outputs
    assert graded(results) == {name: right for name, (_, right) in honest.items()}
    third_run = command(tiny_solutions.parent, tmp_path / "class")
    out, complained = third_run.communicate(timeout=100)
    assert third_run.returncode == 0
    assert out.startswith(f"{SET}: 3 submissions, 100% of all points\n")
    assert "3 of 3 were graded before" in complained
