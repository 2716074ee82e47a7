"""The picture of a class says in its titles what is to be seen."""

import pytest
from sample_records import question, record

from course_staff.grading.class_summary import summarize_questions
from course_staff.grading.picture import class_figure


@pytest.mark.parametrize(
    ("passed", "title"),
    [
        ([1, 0], "Fewest students passed q2, rated hard"),
        ([0, 0, 1], "Fewest students passed q1 and q2"),
        ([1, 0, 0, 0], "Fewest students passed q2, q3 and q4"),
        ([0, 0, 0, 0, 0, 1], "Fewest students passed q1, q2, q3 and 2 more"),
        ([1, 1], "All questions were passed equally often"),
    ],
)
def test_the_picture_names_all_questions_that_fewest_passed(passed, title):
    questions = [question(n, "passed" if is_right else "failed", difficulty=3) for n, is_right in enumerate(passed, 1)]
    figure, _ = class_figure([0], 2, summarize_questions([record("s", *questions)]))
    titles = [figure.axes[1].get_title(loc=position) for position in ("left", "center")]  # as the style has it
    assert "".join(titles) == title
