"""What is read as a record: nothing but what a grading of this version wrote."""

import json

import pytest
from sample_records import BROKEN, question, record

from course_staff.grading.record import read_record


def test_a_record_is_read_as_it_was_written():
    original = record("ann", question(figures={"bytes": 1}, difficulty=2), question(2, "passed"), failed=False)
    assert read_record(json.dumps(original)) == original


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
def test_anything_else_is_refused(text):
    with pytest.raises((ValueError, RecursionError)):
        read_record(text)
