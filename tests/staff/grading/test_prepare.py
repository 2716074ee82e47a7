"""What a set's digest changes with, and what a learner's process is given of a question."""

import json
import shutil
from pathlib import Path

import cloudpickle
import pytest
from tiny_set import SEED, SET

from course_staff.grading.prepare import prepare
from course_utils.errors import CourseError
from course_utils.grading import judge


def test_another_way_to_judge_grades_a_class_anew(tiny_solutions, tmp_path, monkeypatch):
    before = prepare(SET, tiny_solutions, SEED).digest
    for file in Path(judge.__file__).parent.glob("*.py"):
        shutil.copy(file, tmp_path)
    monkeypatch.setattr(judge, "__file__", str(tmp_path / "judge.py"))
    assert prepare(SET, tiny_solutions, SEED).digest == before
    (tmp_path / "compare.py").write_text("# nothing differs\n")
    assert prepare(SET, tiny_solutions, SEED).digest != before


def test_another_wording_grades_nobody_anew_and_other_code_does(tiny_solutions):
    before = prepare(SET, tiny_solutions, SEED).digest
    original = json.loads(tiny_solutions.read_text())
    wording = {"cell_type": "markdown", "metadata": {}, "source": "## A better sentence"}
    tiny_solutions.write_text(json.dumps({**original, "cells": [wording, *original["cells"]]}))
    assert prepare(SET, tiny_solutions, SEED).digest == before
    tiny_solutions.write_text(json.dumps(original).replace("random.random() for", "1 + random.random() for"))
    with pytest.raises(CourseError, match="run `course release` first"):
        prepare(SET, tiny_solutions, SEED)
    tiny_solutions.write_text(json.dumps(original).replace("draw(random, 3))", "draw(random, 4))"))
    assert prepare(SET, tiny_solutions, SEED).digest != before


def test_what_a_learners_process_is_given_holds_no_answer(tiny_solutions):
    prepared = prepare(SET, tiny_solutions, SEED).questions[0]
    assert b"scale" in prepared.pickled
    for secret in (b"Mistake", b"product is a sum", b"draw", b"BEGIN SOLUTION"):
        assert secret not in prepared.pickled
    with pytest.raises(CourseError, match="Only the judge"):
        cloudpickle.loads(prepared.pickled).expected({})
