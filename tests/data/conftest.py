"""The corpus is read, and a tokenizer trained, once for all tests of this room."""

import pytest

from course_utils import data


@pytest.fixture(scope="session")
def functions():
    return data.load_functions()


@pytest.fixture(scope="session")
def tokenizer(functions):
    return data.tokenizer_for(functions, 1_500)
