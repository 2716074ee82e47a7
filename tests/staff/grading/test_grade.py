"""A class of honest and broken submissions, graded as it should be: the right points, and a word for what is odd."""

import csv
import json
import os
import re
from itertools import chain, repeat
from typing import NamedTuple

import psutil
import pytest
from tiny_set import Q1_ANSWER, Q2_ANSWER, SEED, SET, SETUP, answer_with, best_kind, cell, notebook, points, submission

from course_staff.grading import asking, grade, sandbox
from course_staff.grading.prepare import prepare
from course_staff.grading.record import file_name
from course_staff.grading.results import Results
from course_staff.grading.submission import Cell
from course_staff.grading.worklist import identify
from course_utils.cli import main
from course_utils.errors import CourseError

MAGICS = """%load_ext autoreload
%autoreload 2
%matplotlib inline
%matplotlib notebook
%matplotlib widget
%matplotlib qt
%pylab --no-import-all
%gui qt
%config InlineBackend.figure_format = "retina"
%load_ext an_extension_that_only_the_learner_has
%its_magic on
%autosave 60
%precision 3
%xmode Plain
%env A_NAME=1
%time shown = 1
!true
import matplotlib.pyplot as plt
from IPython.display import clear_output, display
from ipywidgets import IntSlider
plt.plot([1, 2])
plt.show()
clear_output(wait=True)
display(IntSlider(), get_ipython())
"""
PRODUCT = "def product(a, b):\n    return a * b"
USES_PRODUCT = "# EXERCISE q1\ndef scale(x, factor):\n    return product(x, factor)"


class Sample(NamedTuple):
    """A submission: its text, the points of q1 and q2, and a piece of what is said of it."""

    text: str
    points: tuple[int, int] = (2, 1)
    sentence: str = ""


HONEST = {
    **dict.fromkeys(("right", "-leading dash", "Zoë 学生 🙂", "=cmd()"), Sample(submission(Q1_ANSWER))),
    "named mistake": Sample(answer_with("return x + factor"), (0, 1), "Your product is a sum."),
    "not a number": Sample(answer_with("return x * float('nan')"), (0, 1), "NaN"),
    "stub": Sample(
        submission(Q1_ANSWER.replace("return x * factor", "raise NotImplementedError('write your answer here')")),
        (0, 1),
        "as it was handed out",
    ),
    "names that no parser sees": Sample(
        notebook(
            "globals().update(product=lambda a, b: a * b)",
            "get_ipython().push({'two': 2})",
            "# EXERCISE q1\ndef scale(x, factor):\n    return product(x, two * factor) / 2",
            Q2_ANSWER,
        )
    ),
    "experiments that never end": Sample(
        notebook(SETUP, Q1_ANSWER, "for n in range(10**9): last = scale(n, 2)", Q2_ANSWER, "while True: following(1)")
    ),
    "magics": Sample(notebook("%matplotlib inline\n%time 1 + 1", "%%time\n" + Q1_ANSWER, Q2_ANSWER)),
    "a helper below magics": Sample(notebook(MAGICS + PRODUCT, USES_PRODUCT, Q2_ANSWER)),
    "a helper below what a cell's magic runs": Sample(notebook("%%capture said\n" + PRODUCT, USES_PRODUCT, Q2_ANSWER)),
    "split below the marker": Sample(
        notebook(SETUP, *Q1_ANSWER.replace("def", "CUT\ndef").split("CUT\n"), Q2_ANSWER),
        sentence="Cell 2 has # EXERCISE q1 but no answer; cell 3 was graded",
    ),
    "turned into text": Sample(
        json.dumps({"cells": [{"cell_type": "markdown", "source": Q1_ANSWER}, cell(SETUP), cell(Q2_ANSWER)]}),
        (0, 1),
        "Cell 1 contains the answer as text",
    ),
    "duplicate": Sample(notebook(SETUP, Q1_ANSWER.replace("*", "-"), Q1_ANSWER, Q2_ANSWER), sentence="all answer q1"),
    "missing": Sample(notebook(SETUP, Q2_ANSWER), (0, 1), "no `scale`"),
    "reordered": Sample(notebook(Q2_ANSWER, Q1_ANSWER, SETUP)),
    "marker lost": Sample(
        notebook(SETUP, Q1_ANSWER.removeprefix("# EXERCISE q1\n"), Q2_ANSWER), sentence="which defines the answer"
    ),
    "imports above are gone": Sample(
        notebook("# EXERCISE q1\ndef scale(x, factor):\n    return torch.mul(x, factor)", Q2_ANSWER),
        (0, 1),
        "NameError",
    ),
    "syntax": Sample(submission("# EXERCISE q1\ndef scale(x, factor:"), (0, 1), "SyntaxError"),
    "signature": Sample(submission("# EXERCISE q1\ndef scale(x): return x"), (0, 1), "cannot be called"),
    "mutates": Sample(answer_with("x *= factor\nreturn x"), (0, 1), "changed its input"),
    "other set": Sample(submission(Q1_ANSWER).replace(SET, "98_other"), sentence="of the set 98_other"),
    "broken": Sample(submission(Q1_ANSWER)[:-40], (0, 0), "not valid JSON"),
}


@pytest.mark.usefixtures("warm_lanes")
def test_honest_and_broken_submissions(exercise_set, grade_class):
    texts = {name: sample.text for name, sample in HONEST.items()}
    records = grade_class(texts, exercise_set, best_kind(), jobs=1)
    assert {name: tuple(points(record)) for name, record in records.items()} == {
        name: sample.points for name, sample in HONEST.items()
    }
    for name, sample in HONEST.items():
        assert sample.sentence in json.dumps(records[name], ensure_ascii=False), name
    last = dict(reversed(list(texts.items())[:2]))
    second_run = grade_class(last, exercise_set, best_kind(), jobs=1)
    assert second_run == {name: records[name] for name in last}, "the order decides nothing"


@pytest.mark.slow
def test_the_number_of_processes_decides_nothing(exercise_set, grade_class, monkeypatch):
    monkeypatch.setattr(sandbox.Lane, "clear", lambda lane: None)
    texts = {name: sample.text for name, sample in HONEST.items()}
    first_run, second_run = (grade_class(texts, exercise_set, best_kind(), jobs=jobs) for jobs in (1, 2))
    assert first_run == second_run


@pytest.mark.slow
def test_cells_that_never_end_take_only_their_own_time(exercise_set, grade_class, monkeypatch):
    monkeypatch.setattr(asking, "CELL_SECONDS", 1.0)
    monkeypatch.setattr(asking, "CELLS_SECONDS", 1.5)
    loop = "while True: globals()"  # it might give what the answers use
    endless = notebook(loop, loop, loop, SETUP, Q1_ANSWER, Q2_ANSWER)
    record = grade_class({"loop": endless}, exercise_set, best_kind())["loop"]
    assert points(record) == [2, 1]
    assert "Cell 1 stopped" in json.dumps(record)
    assert "Cell 3 was not run: the cells above it used up their 1.5 s." in json.dumps(record)


@pytest.mark.parametrize(("starved_count", "wins"), [(1, True), pytest.param(0, False, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("warm_lanes")
def test_a_starved_answer_is_run_once_more_alone_with_more_time(
    tiny_solutions, grade_class, monkeypatch, starved_count, wins
):
    """The answer needs twice its limit, so that only the second run with three times the limit can give it the points."""
    starved = chain([True] * starved_count, repeat(False))
    monkeypatch.setattr(
        sandbox.Conversation, "measure_starvation", lambda conversation: setattr(conversation, "starved", next(starved))
    )
    slow = answer_with("import time\ntime.sleep(1)\nreturn x * factor")
    record = grade_class({"slow": slow}, prepare(SET, tiny_solutions, seconds=0.5), best_kind())["slow"]
    assert points(record) == [2 * wins, 1]


RANKS = """# QUESTION q1
import torch
from course_utils.grading import collective, ranks

question = collective(
    lambda rank, given: sum(inputs["x"] for inputs in given) / len(given),
    id="q1", title="Ranks", points=2, difficulty=3, minutes=9, hints=("h1", "h2", "h3"), answer="mean",
    public=lambda random: [ranks.case("two", {"a mean": [{"x": torch.ones(3) * rank} for rank in (1, 2)]})],
)
"""
MEAN = """# EXERCISE q1
### BEGIN SOLUTION
import torch.distributed as dist

def mean(x):
    total = x.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()
### END SOLUTION
"""


@pytest.mark.slow
def test_an_answer_may_run_on_several_ranks_in_every_kind_of_process(release_set, grade_class, sandbox_kind):
    """As many ranks meet as asked, though nothing reaches the network, and they end with their question."""
    solutions = release_set(notebook(SETUP, RANKS, MEAN))
    wrong = MEAN.replace(" / dist.get_world_size()", "")
    texts = {"right": notebook(MEAN), "wrong": notebook(wrong)}
    records = grade_class(texts, prepare(SET, solutions, SEED), sandbox_kind)
    assert {name: points(record) for name, record in records.items()} == {"right": [2], "wrong": [0]}, records


def test_if_no_process_starts_nothing_is_graded(exercise_set, write_class, tmp_path, monkeypatch, sandbox_kind):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'there_is_none'\" >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sandbox.sys, "executable", str(python))
    paths = write_class({"right": HONEST["right"].text})
    graded = []
    with pytest.raises(CourseError, match=r"\(.*No module named 'there_is_none'\)+\. It sees the packages") as caught:
        grade.grade_all(paths, exercise_set, sandbox_kind, 1, lambda *arguments: graded.append(arguments))
    assert "run `make lab`" in str(caught.value)
    assert graded == []


@pytest.mark.usefixtures("warm_lanes")
def test_a_fault_of_the_grader_costs_nobody_points_and_is_said(run_command, write_class, tmp_path, monkeypatch, capsys):
    paths = write_class(dict.fromkeys(("ann", "bo"), HONEST["right"].text))
    read_submission = grade.read_submission

    def fails_on_bo(path, parse):
        if path == paths["bo"]:
            raise ZeroDivisionError("here")
        return read_submission(path, parse)

    monkeypatch.setattr(grade, "read_submission", fails_on_bo)
    assert run_command("--jobs", "1") == 1
    assert "2 submissions, 100% of all points, 1 not graded" in capsys.readouterr().out
    out = tmp_path / "class-results"
    rows = {row["student"]: row for row in csv.DictReader((out / "results.csv").open(encoding="utf-8"))}
    assert [rows["ann"][name] for name in ("points", "q1", "q2")] == ["3.0", "2.0", "1.0"]
    assert [rows["bo"][name] for name in ("points", "q1", "q2")] == ["", "", ""]
    page = (out / "students" / f"{file_name('bo')}.html").read_text("utf-8")
    assert "Not graded yet" in page
    assert "0 of" not in page
    monkeypatch.setattr(grade, "read_submission", read_submission)
    assert run_command("--jobs", "1") == 0
    assert "2 submissions, 100% of all points\n" in capsys.readouterr().out


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_no_folder_is_left(exercise_set, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    lane = sandbox.Lane("fork")
    prepared = exercise_set.questions[0]
    before = set(psutil.Process().children())

    def answered():
        inputs = prepared.public.inputs + prepared.hidden.inputs
        replies = asking.ask([(Cell(1, Q1_ANSWER), True)], prepared.pickled, inputs, 20.0, lane)
        return {outcome.kind for outcome in replies.outcomes}

    assert answered() == {"values"}
    left = {path.name for path in (tmp_path / "temporary").iterdir()}
    assert left <= {"torchinductor_learner"}, "torch makes one when it is imported"
    for process in set(psutil.Process().children()) - before:
        process.kill()
    assert answered() == {"values"}
    lane.close()


@pytest.fixture
def graded_class(run_command, write_class, tmp_path, warm_lanes):
    """The folder of results of five submissions, graded by the command."""
    names = ("right", "=cmd()", "named mistake", "broken", "Zoë 学生 🙂")
    write_class({name: HONEST[name].text for name in names})
    (tmp_path / "class" / "answer.py").write_text("x")
    assert run_command("--jobs", "1") == 0
    return tmp_path / "class-results"


@pytest.mark.usefixtures("graded_class")
def test_each_run_sums_up_the_class_and_names_other_files(run_command, capsys):
    assert run_command() == 0
    output = capsys.readouterr().out
    assert "5 submissions, 67% of all points" in output
    assert "answer.py" in output
    assert "1  Your product is a sum." in output


def test_the_command_writes_a_table_records_and_a_page_for_each_student(graded_class):
    rows = list(csv.DictReader((graded_class / "results.csv").read_text("utf-8").splitlines()))
    assert {row["student"]: row["points"] for row in rows}["'=cmd()"] == "3.0"
    records = json.loads((graded_class / "results.json").read_text("utf-8"))
    assert [record["student"] for record in records] == ["=cmd()", "Zoë 学生 🙂", "broken", "named mistake", "right"]
    pages = {path.stem: path.read_text("utf-8") for path in (graded_class / "students").glob("*.html")}
    assert "Your product is a sum." in pages[file_name("named mistake")]
    assert "Product &lt;b&gt;" in pages[file_name("right")]


def test_a_second_run_grades_only_what_is_new(graded_class, run_command, write_class, capsys, monkeypatch):
    before = (graded_class / "results.csv").read_bytes()
    write_class({"late": HONEST["right"].text})
    run_on = []
    read = grade.read_submission
    monkeypatch.setattr(grade, "read_submission", lambda path, parse: run_on.append(path.stem) or read(path, parse))
    assert run_command() == 0
    assert run_on == ["late"]
    assert "5 of 6 were graded before" in capsys.readouterr().err
    assert (graded_class / "results.csv").read_bytes() != before
    assert not (graded_class / "copies").exists()


@pytest.mark.slow
def test_an_interrupted_run_keeps_what_is_finished(run_command, write_class, tmp_path, capsys, monkeypatch):
    write_class({"a": HONEST["right"].text, "b": answer_with("while True: pass")})
    original_save = Results.save
    before = psutil.Process().children(recursive=True)

    def save(self, *arguments):
        original_save(self, *arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(Results, "save", save)
    assert run_command("--jobs", "2") == 130
    monkeypatch.setattr(Results, "save", original_save)
    assert set(psutil.Process().children(recursive=True)) <= set(before)
    assert f"saved in {tmp_path / 'class-results'}; the same command resumes from there" in capsys.readouterr().err
    assert len(list((tmp_path / "class-results" / "records").glob("*.json"))) == 1


def test_without_a_sandbox_the_command_asks_for_trust(tiny_solutions, write_class, tmp_path, capsys, monkeypatch):
    write_class({"right": HONEST["right"].text})
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'bwrap: no, thanks' >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setattr(sandbox.sys, "platform", "linux")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    command = ["grade", str(tmp_path / "class"), "--set", SET, "--seed", "1", "--solutions", str(tiny_solutions)]
    assert main(command) == 2
    errors = capsys.readouterr().err
    assert "no sandbox on this machine: bubblewrap fails (bwrap: no, thanks). A submission" in errors
    assert main([*command, "--trust"]) == 0
    assert "honest students" in capsys.readouterr().err
    for file in ("summary.txt", "summary.html"):
        assert "assume honest students.." not in (tmp_path / "class-results" / file).read_text("utf-8")
        assert "assume honest students" in (tmp_path / "class-results" / file).read_text("utf-8")


def test_a_grade_without_a_sandbox_does_not_stand_for_one_with(exercise_set, write_class):
    path = write_class({"right": ""})["right"]
    keys = {kind: identify(path, exercise_set, kind).key for kind in ("bwrap", "fork", "fresh")}
    assert keys["bwrap"] != keys["fork"] == keys["fresh"]


@pytest.mark.slow
@pytest.mark.usefixtures("warm_lanes")
def test_one_submission_is_graded_anew_on_its_own(run_command, write_class, tmp_path, capsys):
    write_class({name: HONEST[name].text for name in ("right", "named mistake")})
    assert run_command() == 0
    assert run_command("--only", "right") == 0
    assert "1 of 2 were graded before" in capsys.readouterr().err
    assert len(json.loads((tmp_path / "class-results" / "results.json").read_text("utf-8"))) == 2
    assert run_command("--only", "right", "--seed", "21") == 2
    assert "This class was graded with --seed 20: do so again" in capsys.readouterr().err
    assert run_command("--only", "nobody") == 2
    assert "There is no submission 'nobody'; there are: named mistake, right." in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.usefixtures("warm_lanes")
def test_a_file_is_added_to_the_results_of_a_class(run_command, write_class, tmp_path, capsys):
    write_class({"right": HONEST["right"].text})
    assert run_command() == 0
    out = tmp_path / "class-results"
    write_class({"late": HONEST["right"].text, "right": "[]"}, "late")
    assert run_command("--out", str(out), path="late/late.ipynb") == 0
    assert "The table includes 1 earlier grade" in capsys.readouterr().err
    assert "late, right" in (out / "summary.txt").read_text("utf-8"), "the same file"
    before = (out / "results.csv").read_bytes()
    assert run_command("--out", str(out), path="late/right.ipynb") == 2
    assert "another submission called 'right'" in capsys.readouterr().err
    assert (out / "results.csv").read_bytes() == before
    assert [row["student"] for row in csv.DictReader(before.decode().splitlines())] == ["late", "right"]


@pytest.mark.slow
@pytest.mark.usefixtures("warm_lanes")
def test_results_may_lie_above_the_submissions_and_not_among_them(run_command, write_class, tmp_path, capsys):
    write_class({"right": HONEST["right"].text})
    assert run_command("--out", str(tmp_path)) == 0
    assert "1 submission, 100%" in (tmp_path / "summary.txt").read_text("utf-8")
    assert main(["grade", str(tmp_path / "class"), "--set", "99", "--out", str(tmp_path), "--trust"]) == 2
    assert "graded with --seed 20" in capsys.readouterr().err
    assert run_command("--out", str(tmp_path / "class")) == 2
    assert "among the submissions" in capsys.readouterr().err
    assert run_command("--out", str(tmp_path / "class" / "results")) == 0
    assert "Ignored" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--jobs", "-3"], "a whole number from 1 on"),
        (["--jobs", "0"], "a whole number from 1 on"),
        (["--seconds", "abc"], "abc is not a time"),
    ],
)
def test_a_number_that_makes_no_sense_is_refused(options, says, run_command, write_class, capsys):
    write_class({"right": ""})
    with pytest.raises(SystemExit):
        run_command(*options)
    assert says in capsys.readouterr().err


def test_an_unknown_set_or_folder_is_named_before_anything_is_run(run_command, tiny_solutions, tmp_path, capsys):
    assert main(["grade", str(tmp_path / "none"), "--set", SET, "--seed", "1", "--solutions", str(tiny_solutions)]) == 2
    assert f"There is no folder {tmp_path / 'none'}" in capsys.readouterr().err
    (tmp_path / "class").mkdir()
    assert run_command() == 2
    assert "There is no notebook in" in capsys.readouterr().err
    assert main(["grade", str(tmp_path), "--set", "98", "--seed", "1"]) == 2
    assert f"No exercise set is called '98'; the exercise sets are: {SET}." in capsys.readouterr().err


@pytest.mark.usefixtures("warm_lanes")
def test_pages_are_for_students_and_records_are_not_among_them(run_command, write_class, tmp_path):
    """Neither hidden inputs, nor anything that an exception says where there are any, is on a student's page."""
    tells = "raise ValueError(f'<i>{x.tolist()}')"
    texts = {"ten": answer_with(f"if len(x) == 3: {tells}\nreturn x * factor"), "eleven": answer_with(tells)}
    write_class({**texts, "copy": "[]", "other": "[]"})
    assert run_command() == 0
    out = tmp_path / "class-results"
    assert {path.suffix for path in (out / "students").iterdir()} == {".html"}
    page, eleven = ((out / "students" / f"{file_name(name)}.html").read_text("utf-8") for name in texts)
    assert re.search(r"stopped with (<code>ValueError</code>|ValueError) at your line \d\.", eleven)
    assert "i&gt;" not in page + eleven
    records = json.loads((out / "results.json").read_text("utf-8"))
    record = next(record for record in records if record["student"] == "ten")
    (verdict,) = record["questions"][0]["hidden"]
    assert "<i>[" in verdict["sentence"]
    assert verdict["case"] not in page
    assert "1 stopped with an exception" in page
    summary = (out / "summary.html").read_text("utf-8")
    assert "copy, other" in summary
    assert f"students/{file_name('ten')}.html" in summary
    assert "<script" not in summary + page
    assert ":root{color-scheme:light dark" in page  # on the body alone, a dark page stays light


def test_check_runs_the_public_checks_of_a_notebook(tiny_solutions, tmp_path, capsys):
    (tmp_path / f"{SET}.ipynb").write_text(HONEST["named mistake"].text)
    assert main(["check", str(tmp_path / f"{SET}.ipynb")]) == 1
    output = capsys.readouterr().out
    assert "Your product is a sum." in output
    assert output.startswith("Checking ")
    assert "1 of 2 answers is right." in output
    for name in ("right", "a helper below magics", "split below the marker"):
        (tmp_path / "mine.ipynb").write_text(HONEST[name].text)
        assert main(["check", str(tmp_path / "mine.ipynb"), "--set", SET]) == 0
        assert "passed on these cases; a grade" in capsys.readouterr().out
    assert main(["check", str(tmp_path / "none.ipynb")]) == 2
