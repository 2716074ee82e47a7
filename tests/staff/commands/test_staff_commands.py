"""Of the room: the commands of authors and instructors as one types them."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from course_staff.demos import demos_in
from course_staff.notebooks.setup_cell import setup_source
from course_utils.cli import main
from course_utils.files import chapters_in, find_place
from course_utils.settings import settings


@pytest.fixture
def checkout(checkout):
    """A checkout with two chapters, as the working directory."""
    write(checkout, "00_a", "x = 1")
    write(checkout, "01_b", "print('b')")
    return checkout


def write(checkout, name, source, **metadata):
    cell = new_code_cell(source, id="first", metadata=metadata)
    nbformat.write(new_notebook(cells=[cell]), checkout / "notebooks" / f"{name}.ipynb")


def test_an_error_is_one_line_and_exit_code_2(checkout, capsys):
    assert main(["run", "77"]) == 2
    captured = capsys.readouterr()
    assert captured.err == "course run: No chapter is called '77'; the chapters are: 00_a, 01_b.\n"
    assert captured.out == ""


def test_a_bad_setting_is_one_line(checkout, capsys, monkeypatch):
    monkeypatch.setenv("COURSE_SEED", "-1")
    settings.cache_clear()
    assert main(["run"]) == 2
    assert capsys.readouterr().err.startswith("course run: COURSE_SEED='-1'")


def test_run_executes_copies_and_leaves_the_notebooks_alone(checkout, capsys):
    before = (checkout / "notebooks" / "01_b.ipynb").read_bytes()
    assert main(["run", "01"]) == 0
    (copy,) = (settings().home / "runs").iterdir()
    assert nbformat.read(copy, 4).cells[0].outputs[0].text == "b\n"
    assert (checkout / "notebooks" / "01_b.ipynb").read_bytes() == before
    assert "ledger" in capsys.readouterr().out


def test_run_can_save_at_laptop_scale_only(checkout, capsys):
    assert main(["run", "--save", "--scale", "smoke"]) == 2
    assert "drop --scale or --save" in capsys.readouterr().err
    write(checkout, "01_b", "import os; print(os.environ['COURSE_SCALE'], 'reader', os.environ['COURSE_READER'])")
    assert main(["run", "01", "--save"]) == 0
    saved = nbformat.read(checkout / "notebooks" / "01_b.ipynb", 4)
    assert saved.cells[0].outputs[0].text == "laptop reader 0\n"
    assert saved.cells[0].id == "first"
    assert saved.metadata.course.scale == "laptop"


def test_a_chapter_that_fails_is_not_saved(checkout, capsys):
    write(checkout, "00_a", "1 / 0")
    before = (checkout / "notebooks" / "00_a.ipynb").read_bytes()
    assert main(["run", "--save"]) == 2
    assert "00_a.ipynb, cell 1, failed with ZeroDivisionError: division by zero" in capsys.readouterr().err
    assert (checkout / "notebooks" / "00_a.ipynb").read_bytes() == before


def test_a_chapter_that_is_changed_while_it_runs_is_not_overwritten(checkout, capsys):
    write(
        checkout,
        "01_b",
        "from pathlib import Path; p = Path('01_b.ipynb'); p.write_text(p.read_text().replace('p =', 'q ='))",
    )
    assert main(["run", "01", "--save"]) == 2
    assert "01_b.ipynb changed while it ran, so it was not stored; run it again, or see " in capsys.readouterr().err
    assert "q = " in (checkout / "notebooks" / "01_b.ipynb").read_text()


@pytest.mark.parametrize("value", ["0", "-3", "nan", "soon"])
def test_a_timeout_must_be_a_time(value, capsys):
    with pytest.raises(SystemExit) as end:
        main(["run", f"--timeout={value}"])
    assert end.value.code == 2
    assert "--timeout" in capsys.readouterr().err


def test_stamp_renews_set_up_cells(checkout, capsys):
    for name in ("00_a", "01_b"):
        write(checkout, name, "old", tags=["setup"])
    assert main(["stamp"]) == 0
    assert capsys.readouterr().out.endswith("2 of 2 notebooks changed.\n")
    assert nbformat.read(checkout / "notebooks" / "00_a.ipynb", 4).cells[0].source == setup_source()
    assert main(["stamp"]) == 0
    assert capsys.readouterr().out == "0 of 2 notebooks changed.\n"


def test_lint_prints_violations_and_fails(checkout, capsys):
    assert main(["lint", "00"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("00_a.ipynb, cell 1: ")
    assert lines[-1].startswith("1 chapter checked, ")


@pytest.mark.parametrize("name", ["0", "00", "00_a"])
def test_every_command_takes_a_chapter_by_its_number_or_name(name, checkout, capsys, monkeypatch):
    """The checkout has the chapters alone; of a set the same function is asked, and says which there are."""
    recorded = []
    monkeypatch.setattr("jupyterlab.labapp.main", recorded.append)
    assert main(["lab", name, "--no-browser"]) == 0
    assert any("notebooks/00_a.ipynb" in argument for argument in recorded[0])
    main(["lint", name])
    assert "1 chapter checked" in capsys.readouterr().out
    for command in (["check", name], ["release", name], ["demo", name]):
        assert main(command) == 2
        assert f"is called '{name}'; the " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["3", "03", "03_adamw"])
def test_a_set_is_called_as_its_chapter(name, tmp_path, capsys):
    place = find_place()
    assert main(["grade", str(tmp_path), "--set", name]) == 2
    assert "no notebook" in capsys.readouterr().err  # the set was found, and nothing to grade
    assert [path.stem for path in demos_in(place.notebooks, [name])] == ["03_adamw"]
    assert [path.stem for path in chapters_in(place.root / "solutions", [name])] == ["03_adamw"]
