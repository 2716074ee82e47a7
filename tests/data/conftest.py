"""The corpus is built once for all tests of this room."""

from contextlib import contextmanager

import pytest

from course_utils import data
from course_utils import settings as settings_room
from course_utils.data import corpus


@pytest.fixture(scope="session")
def rows():
    return corpus.read_functions()


@contextmanager
def _home(path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_HOME", str(path))
        settings_room.settings.cache_clear()
        yield
    settings_room.settings.cache_clear()


@pytest.fixture(scope="session")
def session_home(tmp_path_factory):
    return tmp_path_factory.mktemp("session-home")


@pytest.fixture(scope="session")
def functions(session_home):
    with _home(session_home):
        return data.load_functions()


@pytest.fixture(scope="session")
def tokenizers(session_home, functions):
    """One tokenizer without signs and one with them."""
    with _home(session_home):
        return {signs: data.tokenizer_for(functions, 1_500, signs) for signs in (False, True)}


@pytest.fixture
def kept_corpus(session_home, functions):
    """A home in which the corpus is kept already."""
    with _home(session_home):
        yield
