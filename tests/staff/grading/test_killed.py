"""Of the room: a grader that is killed, by an operator or for want of memory, loses what was in work and nothing else."""

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tiny_set import answered

from course_staff.release.source import load_solutions
from course_utils.files import exercises_of
from course_utils.settings import environment_for_child

ROOT, SET = Path(__file__).parents[3], "03_adamw"
SIZE, JOBS = 6, 2


def hand_in(folder):
    """Notebooks with right answers, the styles of the set's variants in turn."""
    authored_by_id = {
        authored.question.id: authored for authored in load_solutions(ROOT / "solutions" / f"{SET}.ipynb")
    }
    variants = {
        name: [variant.source for variant in authored.question.variants] for name, authored in authored_by_id.items()
    }
    styles = {name: [authored.solution, *variants[name]] for name, authored in authored_by_id.items()}
    for number in range(SIZE):
        answers = {name: sources[number % len(sources)] for name, sources in styles.items()}
        text = answered(ROOT / exercises_of(SET), answers)
        (folder / f"student{number:02d}.ipynb").write_text(text, encoding="utf-8")


def start_grader(folder):
    solutions = ROOT / "solutions" / f"{SET}.ipynb"
    command = [sys.executable, "-m", "course_utils.cli", "grade", folder, "--set", SET, "--seed", "1", "--trust"]
    return subprocess.Popen(
        [*command, "--solutions", solutions, "--jobs", str(JOBS)],
        cwd=ROOT,
        env=environment_for_child(PYTHONPATH=str(ROOT)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def records(folder):
    return len(list((folder.with_name(f"{folder.name}-results") / "records").glob("*.json")))


@pytest.mark.slow
@pytest.mark.parametrize("finished", [0, 1, 3])
def test_a_killed_grader_loses_what_was_in_work_and_leaves_nothing_running(tmp_path, finished):
    folder = tmp_path / "class"
    folder.mkdir()
    hand_in(folder)
    grader = start_grader(folder)
    deadline = time.monotonic() + 120
    while records(folder) < finished or not psutil.Process(grader.pid).children():
        assert grader.poll() is None, grader.communicate()[0]
        assert time.monotonic() < deadline, "the grader was given two minutes"
        time.sleep(0.02)
    family = psutil.Process(grader.pid).children(recursive=True)
    grader.kill()
    grader.wait()
    _, running = psutil.wait_procs(family, timeout=20)
    assert not running
    assert finished <= (saved_count := records(folder)) < SIZE
    second_grader = start_grader(folder)
    output = second_grader.communicate(timeout=120)[0]
    assert second_grader.returncode == 0, output
    assert (f"{saved_count} of {SIZE} were graded before" in output) == (saved_count > 0), output
    assert records(folder) == SIZE
    results = json.loads((tmp_path / "class-results" / "results.json").read_text("utf-8"))
    assert {record["points"] for record in results} == {30}
