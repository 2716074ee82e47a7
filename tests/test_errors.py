"""Sentences of refusals."""

import pytest

from course_utils.errors import first_line, suggest


@pytest.mark.parametrize(
    ("error", "sentence"),
    [(OSError("no space\nleft"), "no space"), (RuntimeError(), "RuntimeError"), (ValueError("one"), "one")],
    ids=repr,
)
def test_an_error_has_a_first_line_even_where_it_says_nothing(error, sentence):
    assert first_line(error) == sentence


def test_what_is_near_and_what_is_not():
    optimizers = ("adamw", "adamw8bit", "sgd")
    assert suggest("AdamW", optimizers) == "did you mean adamw?"
    assert suggest("adamw9bit", optimizers).startswith("did you mean adamw8bit")
    assert suggest("lion", optimizers) == "choose one of adamw, adamw8bit, sgd."
    assert suggest("lion", optimizers, "write sgd.") == "write sgd."
