import logging
import os
import shutil

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from course_utils import data
from course_utils.data import cache


class Counted:
    """Builds a value and counts how often it was asked to."""

    def __init__(self, value):
        self.value, self.times = value, 0

    def __call__(self):
        self.times += 1
        return self.value


def kept_file():
    (path,) = cache.folder().iterdir()
    return path


def test_a_value_is_built_once_for_each_kind_and_parameters():
    build = Counted({"rows": [1, "zwei", "\r\n\u2028"]})
    assert [cache.cached("a", {"n": 1}, build) for _ in range(3)] == [build.value] * 3
    assert build.times == 1
    cache.cached("a", {"n": 2}, build)
    cache.cached("b", {"n": 1}, build)
    assert build.times == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b[:-1],
        lambda b: b[: len(b) // 2],
        lambda b: b"",
        lambda b: b.replace(b"7", b"8"),
        lambda b: b"\xff" + b,
    ],
    ids=["last byte", "half", "empty", "changed", "not text"],
)
def test_a_damaged_copy_is_said_and_rebuilt(damage, caplog):
    build = Counted([7, 7, 7])
    cache.cached("a", {}, build)
    kept_file().write_bytes(damage(kept_file().read_bytes()))
    assert cache.cached("a", {}, build) == [7, 7, 7]
    assert build.times == 2
    (record,) = caplog.records
    assert record.name == "course_utils"
    assert record.levelno == logging.WARNING
    assert "built anew" in record.message
    assert cache.cached("a", {}, build) == [7, 7, 7]
    assert build.times == 2


def test_a_damaged_corpus_is_rebuilt(functions, session_home, caplog):
    cache.folder().mkdir(parents=True)
    for kept in (session_home / "data").glob("functions-*.json"):
        shutil.copy(kept, cache.folder())
    kept_file().write_text(kept_file().read_text().replace("asyncio", "asyncro"))
    assert data.load_functions()["train"].to_dict() == functions["train"].to_dict()
    assert "damaged" in caplog.text


def test_where_nothing_can_be_written_the_work_goes_on(tmp_path, caplog):
    (tmp_path / "home").write_text("a file where a folder should be")
    assert cache.cached("a", {}, Counted([1])) == [1]
    assert "the work goes on in memory" in caplog.text
    assert (tmp_path / "home").read_text() == "a file where a folder should be"


def test_a_full_disk_leaves_no_half_file(monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert cache.cached("a", {}, Counted([1])) == [1]
    assert "No space left on device" in caplog.text
    assert list(cache.folder().iterdir()) == []


def test_an_interrupted_write_leaves_no_half_file(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        cache.cached("a", {}, Counted([1]))
    assert list(cache.folder().iterdir()) == []


_VALUES = st.recursive(st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@given(value=_VALUES)
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50)
def test_what_comes_back_is_what_was_built(value):
    parameters = {"of": repr(value)}
    assert cache.cached("a", parameters, lambda: value) == value
    assert cache.cached("a", parameters, Counted("never built")) == value
