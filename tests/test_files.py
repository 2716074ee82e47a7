import pytest

from course_utils.errors import CourseError
from course_utils.files import keep_copies, read_json, replacing, write_json


def test_the_new_file_takes_the_place_of_the_old(tmp_path):
    path = tmp_path / "deep" / "file.txt"
    for text in ("old", "new"):
        with replacing(path) as partial:
            partial.write_text(text)
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


def test_a_write_that_breaks_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError), replacing(path) as partial:
        partial.write_text("half \ud800", encoding="utf-8")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_raises_what_the_system_says(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError), replacing(tmp_path / "file" / "inside"):  # noqa: PT011  (the kind differs by system)
        pass


def test_a_value_comes_back_as_it_was_written(tmp_path):
    path = tmp_path / "deep" / "value.json"
    assert read_json(path) is None
    write_json(path, {"rows": [1, "zwei", None, "\u2028"]})
    assert read_json(path) == {"rows": [1, "zwei", None, "\u2028"]}
    assert read_json(path, len) == 1


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"3"], ids=["empty", "half", "not text", "refused"])
def test_what_is_damaged_is_none_and_written_again(tmp_path, content):
    path = tmp_path / "value.json"
    path.write_bytes(content)
    assert read_json(path, len) is None
    write_json(path, [1])
    assert read_json(path, len) == 1


def test_copies_are_kept_beside_each_other_and_only_of_what_is_there(tmp_path):
    one = tmp_path / "one"
    assert keep_copies([one], tmp_path / "copies") is None
    assert not (tmp_path / "copies").exists()
    one.write_text("1")
    folders = {keep_copies([one, tmp_path / "two"], tmp_path / "copies") for _ in range(3)}
    assert [[path.read_text() for path in folder.iterdir()] for folder in folders] == [["1"]] * 3
    with pytest.raises(CourseError, match="No copy can be kept in"):
        keep_copies([one], one / "inside")


def test_where_nothing_can_be_written_a_line_says_so(tmp_path, caplog):
    (tmp_path / "value.json").mkdir()
    assert read_json(tmp_path / "value.json") is None
    write_json(tmp_path / "value.json" / ".." / ".." / ("n" * 300), 1)
    assert "this will be forgotten" in caplog.text
