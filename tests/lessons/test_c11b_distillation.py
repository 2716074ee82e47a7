"""Chapter 11b: a student learns beside a teacher, and the stored students are what the chapter says."""

import pytest

from course_utils.lessons import c11b_distillation as lesson
from course_utils.lessons.c11b_fewer_bits import RACE_SEEDS, stored_runs


def test_a_taught_step_adds_the_teachers_forward_pass():
    student, teacher = lesson.build_language_model(64, 1, 0), lesson.build_language_model(128, 2, 0)
    blocks = {64: 4 * 64**2 + 3 * 64 * 256, 128: 2 * (4 * 128**2 + 3 * 128 * 512)}
    weights = {width: count + width * lesson.VOCABULARY for width, count in blocks.items()}
    plain = lesson.operations_of_step(student)
    taught = lesson.operations_of_step(student, lesson.loss_from_teacher(teacher, 2.0))
    assert all(parameter.grad is None for parameter in student.parameters())
    expected = 1 + 2 * weights[128] / (6 * weights[64])
    assert taught / plain == pytest.approx(expected, rel=0.05)


def test_a_teacher_is_not_trained_and_a_student_is():
    teacher, student = lesson.build_language_model(64, 1, 0), lesson.build_language_model(32, 1, 1)
    loss = lesson.loss_from_teacher(teacher, 2.0)(student, lesson.token_rows("train")[:2])
    loss.backward()
    assert all(p.grad is None for p in teacher.parameters())
    assert all(p.grad is not None for p in student.parameters())


def test_the_chapter_says_of_students_what_the_stored_runs_hold():
    runs = stored_runs()[stored_runs()["seed"].isin(RACE_SEEDS)]
    tests = runs.groupby("name")["test"]
    for name in ("taught, T = 1", "taught, T = 2"):
        assert tests.max()["alone, twice as long"] < tests.min()[name]
        assert tests.max()[name] < tests.min()["alone"]
    assert set(tests.size().filter(regex="^(alone|taught)")) == {len(RACE_SEEDS)}
    by_temperature = {t: runs[runs["name"] == f"taught, T = {t}"].set_index("seed")["test"] for t in (2, 4)}
    assert (by_temperature[4] > by_temperature[2]).all()
