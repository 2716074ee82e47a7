"""A weekend's read lists all code by hand, with the lines that it has."""

import re
import shutil
from pathlib import Path

from course_staff.documents.weekend import PAGE, stamp_lines

ROOT = Path(__file__).parents[3]
LISTED = re.findall(r"\(\.\./(course_utils/\S+\.py)\).*\| (\d+) \|", (ROOT / PAGE).read_text(encoding="utf-8"))


def test_no_file_by_hand_is_left_out():
    rooms = ("autodiff", "optim", "precision", "techniques")
    paths = [path for room in rooms for path in (ROOT / "course_utils" / room).glob("*.py")]
    by_hand = {path.relative_to(ROOT).as_posix() for path in paths}
    assert {path for path in by_hand if not path.endswith("__init__.py")} <= {path for path, _ in LISTED}


def test_its_lines_are_those_of_the_files_and_a_file_that_grew_is_counted_anew(tmp_path):
    for path in (PAGE, *(path for path, _ in LISTED)):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    assert not stamp_lines(tmp_path), "run `course stamp`"
    grown, lines = LISTED[0]
    with (tmp_path / grown).open("a") as file:
        file.write("\n")
    before = (tmp_path / PAGE).read_text()
    assert stamp_lines(tmp_path)
    after = (tmp_path / PAGE).read_text()
    new_lines = [new for old, new in zip(before.splitlines(), after.splitlines(), strict=True) if old != new]
    assert len(new_lines) == 2  # its row, and the sum
    assert new_lines[1].endswith(f"| {int(lines) + 1} |")
