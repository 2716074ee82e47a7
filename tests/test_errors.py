"""Sentences of refusals."""

import pytest

from course_utils.errors import first_line


@pytest.mark.parametrize(
    ("error", "sentence"),
    [(OSError("no space\nleft"), "no space"), (RuntimeError(), "RuntimeError"), (ValueError("one"), "one")],
    ids=repr,
)
def test_an_error_has_a_first_line_even_where_it_says_nothing(error, sentence):
    assert first_line(error) == sentence
