"""A time limit leaves the notebook's own alarm as it was."""

import sys

import pytest
from sample_question import doubling

from course_utils.grading.question import Case
from course_utils.grading.run import run_case


def test_the_alarm_of_the_notebook_is_put_back_and_none_is_left():
    if sys.platform == "win32":
        pytest.skip("Windows has no alarm")
    import signal

    before = signal.getsignal(signal.SIGALRM)
    run_case(doubling(), lambda x: x, Case("c", {"x": 1.0}))
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
