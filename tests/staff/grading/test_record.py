"""What is read as a record: nothing but what a grading of this version wrote."""

import json

import pytest
from sample_records import BROKEN, question, record

from course_staff.grading.record import file_name, read_record


def test_a_record_is_read_as_it_was_written():
    original = record("ann", question(figures={"bytes": 1}, difficulty=2), question(2, "passed"), failed=False)
    assert read_record(json.dumps(original)) == original


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_anything_else_is_refused(text):
    with pytest.raises((ValueError, RecursionError)):
        read_record(text)


def test_two_students_never_share_a_file():
    names = ["a b", "a_b", "a/b", "A b", "学生", "学 生", "-", "CON"]
    assert len({file_name(name).lower() for name in names}) == len(names)
    assert all(name.isascii() and "/" not in name for name in map(file_name, names))
