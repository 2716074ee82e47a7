"""A new chapter: written where chapters are, right but for not being executed, and never over another."""

import nbformat
import pytest

from course_staff.notebooks.anatomy import violations_in
from course_utils.cli import main


def test_all_that_a_new_chapter_lacks_is_a_run(checkout, capsys):
    assert main(["new", "chapter", "11_lora"]) == 0
    path = checkout / "notebooks" / "11_lora.ipynb"
    assert "Edit it, then" in capsys.readouterr().out
    remarks = [violation.remark for violation in violations_in(path)]
    assert remarks
    assert all("course run --save" in remark for remark in remarks)
    for cell in nbformat.read(path, 4).cells:
        if cell.cell_type == "code":
            compile(cell.source.replace("    %pip", "    pass  #"), cell.id, "exec")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("12", "such as 11c_pruning"),
        ("my lora", "letters"),
        ("11_lora", "11_lora.ipynb already has this number"),
        ("11_more", "11c"),
    ],
)
def test_a_chapter_is_not_written_under_a_wrong_name_nor_over_another(name, says, checkout, capsys):
    path = checkout / "notebooks" / "11_lora.ipynb"
    path.write_text("mine")
    assert main(["new", "chapter", name]) == 2
    assert says in capsys.readouterr().err
    assert [file.read_text() for file in path.parent.iterdir()] == ["mine"]
