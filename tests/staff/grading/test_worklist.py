"""What a run of the grading takes up of an earlier one: nothing is lost, and nothing of another seed or set comes in between."""

from pathlib import Path

import pytest

from course_staff.grading.worklist import SubmittedFile, check_place, find_submissions, list_work
from course_utils.errors import CourseError

A, B = (SubmittedFile(Path(f"{name}.ipynb"), f"file {name}", f"key {name}") for name in "ab")
GRADED = {"seed": 7, "set": "03_adamw", "points": 0, "max_points": 0, "notes": [], "questions": []}
OF_A, OF_B = ({"student": name, "key": f"key {name}", "file": f"file {name}", **GRADED} for name in "ab")


def plan(submitted, earlier, seed=7, only=None, regrade=False):
    """Students to be graded, saved, and postponed."""
    work = list_work(submitted, earlier, seed, only, regrade)
    return [*work.todo], [record["student"] for record in work.saved], [*work.postponed]


@pytest.mark.parametrize(
    ("earlier", "options", "expected"),
    [
        ({}, {}, (["a", "b"], [], [])),
        ({"a": OF_A}, {}, (["b"], ["a"], [])),
        ({"a": OF_A, "b": OF_B}, {}, ([], ["a", "b"], [])),
        ({"a": OF_A, "b": {**OF_B, "key": "other"}}, {}, (["b"], ["a"], [])),
        ({"a": OF_A, "b": {**OF_B, "failed": True}}, {}, (["b"], ["a"], [])),
        ({"a": OF_A, "b": OF_B}, {"regrade": True}, (["a", "b"], [], [])),
        ({"a": OF_A, "b": OF_B}, {"only": "a"}, (["a"], ["b"], [])),
        ({"a": OF_A, "b": {**OF_B, "key": "other"}}, {"only": "a"}, (["a"], ["b"], ["b"])),
        ({"a": OF_A}, {"only": "a"}, (["a"], [], ["b"])),
        ({"a": OF_A, "c": {**OF_B, "student": "c"}}, {}, (["b"], ["a", "c"], [])),
        ({"a": OF_A, "b": OF_B}, {"regrade": True, "seed": 8}, (["a", "b"], [], [])),
    ],
)
def test_what_is_graded_and_what_stays(earlier, options, expected):
    assert plan({"a": A, "b": B}, earlier, **options) == expected


@pytest.mark.parametrize(
    ("seed", "only", "regrade"), [(8, None, False), (8, "a", False), (None, "a", True), (None, None, False)]
)
def test_grades_of_two_seeds_never_stand_in_one_table(seed, only, regrade):
    with pytest.raises(CourseError, match="graded with --seed 7: do so again, or grade the whole folder with --again"):
        list_work({"a": A, "b": B}, {"a": OF_A, "b": OF_B}, seed, only, regrade)
    with pytest.raises(CourseError, match="graded without a seed"):
        list_work({"a": A}, {"a": {**OF_A, "seed": None}}, 7, None, False)


def test_a_file_that_is_the_same_and_was_graded_otherwise_is_outdated():
    earlier = {"a": {**OF_A, "key": "other"}, "b": {**OF_B, "key": "other", "file": "another"}}
    assert list_work({"a": A, "b": B}, earlier, 7, None, False).outdated == ("a",)
    assert list_work({"a": A, "b": B}, earlier, 7, None, True).outdated == (), "whoever asks for it need not be told"
    assert list_work({"a": A}, {"a": {**OF_A, "key": "other", "failed": True}}, 7, None, False).outdated == ()


def test_a_file_takes_no_other_ones_place():
    check_place("a", A, {"a": OF_A})
    check_place("a", A, {"b": OF_B})
    with pytest.raises(CourseError, match="another submission called 'a'; give the file another name"):
        check_place("a", B, {"a": OF_A})


def test_what_a_mac_or_jupyter_lays_beside_notebooks_is_nobodys(tmp_path):
    for name in ("ann", "._ann", "__MACOSX/._ann", "__MACOSX/ann", "bo/x", "bo/.ipynb_checkpoints/x", "bo/__MACOSX/y"):
        path = tmp_path / f"{name}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    assert [*find_submissions(tmp_path)] == ["ann", "bo/x"]
