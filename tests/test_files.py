import pytest

from course_utils.files import replacing


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
