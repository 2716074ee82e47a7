import pytest

from course_utils.errors import CourseError
from course_utils.files import (
    atomic_write,
    chapters_in,
    find_place,
    keep_copies,
    matching_names,
    read_json,
    require_one_name,
    write_json,
)


def test_the_new_file_takes_the_place_of_the_old(tmp_path):
    path = tmp_path / "deep" / "file.txt"
    for text in ("old", "new"):
        with atomic_write(path) as partial:
            partial.write_text(text)
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


def test_a_write_that_breaks_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError), atomic_write(path) as partial:
        partial.write_text("half \ud800", encoding="utf-8")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_place_that_cannot_be_written_raises_what_the_system_says(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError), atomic_write(tmp_path / "file" / "inside"):  # noqa: PT011  (the kind differs by system)
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
    file = tmp_path / "one"
    assert keep_copies([file], tmp_path / "copies") is None
    assert not (tmp_path / "copies").exists()
    file.write_text("1")
    folders = {keep_copies([file, tmp_path / "two"], tmp_path / "copies") for _ in range(3)}
    assert [[path.read_text() for path in folder.iterdir()] for folder in folders] == [["1"]] * 3
    with pytest.raises(CourseError, match="No copy can be kept in"):
        keep_copies([file], file / "inside")


def test_where_nothing_can_be_written_a_line_says_so(tmp_path, caplog):
    (tmp_path / "value.json").mkdir()
    assert read_json(tmp_path / "value.json") is None
    write_json(tmp_path / "value.json" / ".." / ".." / ("n" * 300), 1)
    assert "this will be forgotten" in caplog.text


def test_the_checkout_is_found_from_below_and_from_elsewhere(tmp_path):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "course_utils").mkdir()
    assert find_place(tmp_path / "notebooks").root == tmp_path
    assert find_place(tmp_path / "notebooks").start == tmp_path / "notebooks" / "00_start_here.ipynb"


def test_chapters_by_the_beginning_of_their_names(tmp_path):
    for name in ("01_b", "00_a", "02_c"):
        (tmp_path / f"{name}.ipynb").touch()
    assert [path.stem for path in chapters_in(tmp_path)] == ["00_a", "01_b", "02_c"]
    assert [path.stem for path in chapters_in(tmp_path, ["02", "00_a"])] == ["02_c", "00_a"]
    with pytest.raises(CourseError, match="No chapter is called '7'; the chapters are: 00_a, 01_b, 02_c"):
        chapters_in(tmp_path, ["7"])


NAMES = ["00_start_here", "03_adamw", "05_8bit_adam", "05b_choosing", "10_fsdp"]


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("3", ["03_adamw"]),
        ("03", ["03_adamw"]),
        ("03_adamw", ["03_adamw"]),
        ("3_adamw", ["03_adamw"]),
        ("03_ad", ["03_adamw"]),
        ("0", ["00_start_here"]),
        ("1", []),
        ("10", ["10_fsdp"]),
        ("5", ["05_8bit_adam"]),
        ("5b", ["05b_choosing"]),
        ("05_", ["05_8bit_adam"]),
        ("adamw", []),
    ],
)
def test_a_chapter_is_called_by_its_number_or_its_name(name, path):
    assert matching_names(name, NAMES) == path


def test_the_one_that_is_meant_must_be_one():
    assert require_one_name("3", NAMES, "set") == "03_adamw"
    with pytest.raises(CourseError, match="No set is called '7'; the sets are: 00_start_here, 03_adamw, "):
        require_one_name("7", NAMES, "set")
    with pytest.raises(CourseError, match="'05' is the beginning of 05b_x and 05c_y; write more of the name"):
        require_one_name("05", ["05b_x", "05c_y"], "set")
