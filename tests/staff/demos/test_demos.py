"""Of the room: each demo fits its chapter and keeps its word; one that is broken says so."""

import subprocess
import sys
from pathlib import Path

import pytest
from ipywidgets import Checkbox, FloatSlider, IntSlider
from nbformat.v4 import new_code_cell, new_notebook

from course_staff.demos import demos_in, read_demo, stage
from course_staff.demos.controls import instructions
from course_staff.demos.needs import cells_by_step
from course_staff.demos.presentation import presentation
from course_staff.notebooks.files import write_notebook
from course_utils import bets, viz
from course_utils.cli import main
from course_utils.errors import CourseError
from course_utils.settings import environment_for_child

ROOT = Path(__file__).parents[3]
DEMOS = demos_in(ROOT / "notebooks")

CELLS = {
    "begin": "from course_utils import viz\nimport ipywidgets as widgets\nfrom matplotlib.figure import Figure",
    "number": "x = 2\nprint('x is', x)",
    "broken": "1 / 0",
    "draw": """
def draw(height, width):
    figure = Figure()
    figure.subplots().bar([0], [height])
    return figure, f"a bar of {height}"
""",
    "play": "viz.play(draw, height=widgets.IntSlider(x, 1, 9), width=widgets.IntSlider(1))",
}
DEMO = """
title = "A demo"
minutes = 3

[[steps]]
title = "A number"
minutes = 1
cell = "number"
say = "How large is x?"
[steps.expect]
text = ["x  is 2"]
numbers = [{ of = "x + 0.1", is = 2, within = 0.1, says = "nearly two" }, { of = "x", is = 2 }]

[[steps]]
title = "A bar"
minutes = 2
cell = "play"
click = { height = 7 }
say = "And now?"
[steps.expect]
picture = ["a bar of 7"]
"""


@pytest.fixture
def write(tmp_path):
    """Write a demo beside a small chapter, with replacements in its text, and return where it lies."""

    def write_demo(*changes, text=DEMO, name="00_small"):
        notebooks = tmp_path / "notebooks"
        (notebooks / "demos").mkdir(parents=True, exist_ok=True)
        cells = [new_code_cell(source, id=cell) for cell, source in CELLS.items()]
        write_notebook(new_notebook(cells=cells), notebooks / f"{name}.ipynb")
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        path = notebooks / "demos" / f"{name}.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write_demo


def test_every_chapter_has_a_demo():
    assert [path.stem for path in DEMOS] == [path.stem for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]


@pytest.mark.parametrize("path", DEMOS, ids=lambda path: path.stem)
def test_a_demo_fits_its_chapter_and_a_lecture(path):
    demo = read_demo(path)
    assert len(list(cells_by_step(demo))) == len(demo.steps)
    assert 5 <= len(demo.steps) <= 8
    assert 8 <= demo.minutes <= 15
    assert any(step.click for step in demo.steps)
    assert all(step.text or step.picture or step.numbers for step in demo.steps if step.cell or step.code)
    assert any(step.notes for step in demo.steps)


def rehearse(folder, *names):
    """What `course demo --check` answers in `folder`: its exit code, and its lines."""
    command = [sys.executable, "-P", "-m", "course_utils.cli", "demo", *names, "--check"]
    process = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, timeout=590, check=False)
    return process.returncode, process.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_demos_keep_their_word():
    code, lines = rehearse(ROOT)
    assert [line for line in lines if not line.endswith(": as expected")] == []
    assert len(lines) == sum(len(read_demo(path).steps) for path in DEMOS)
    assert code == 0


def test_a_class_is_shown_no_bet_that_it_has_not_made(monkeypatch, capsys):
    for name in ("bet", "settle"):
        monkeypatch.setattr(bets, name, getattr(bets, name))  # to be put back
    stage.leave_bets_to_the_room()
    assert bets.bet("00-peak", 12, "MiB", "How much?") == 12.0
    bets.settle("00-peak", 22)
    bets.settle("00-of-a-cell-that-was-not-run", 22)
    assert capsys.readouterr().out == ""


OWN_CODE = """
[[steps]]
title = "Twice as much"
minutes = 1
code = "y = 2 * x"
say = "Nothing is shown."
[steps.expect]
numbers = [{ of = "y", is = 4 }]
[[steps]]
title = "And one more"
minutes = 1
code = "print('y is', y + 1)"
say = "The step before has made y."
[steps.expect]
text = ["y is 5"]
"""
BEGINNING = """
title = "A demo"
scale = "SCALE"
minutes = 1
[[steps]]
title = "Begin"
minutes = 1
code = "from course_utils.chapters import begin; begin()"
say = "The scale is printed."
[steps.expect]
text = ["SCALE scale on cpu"]
"""
BROKEN = """
[[steps]]
title = "Stuck"
minutes = 1
cell = "play"
click = { width = 5 }
say = "Nothing moves."
[[steps]]
title = "Unknown"
minutes = 1
cell = "play"
click = { depth = 5 }
say = "There is no such control."
[[steps]]
title = "Failing"
minutes = 1
cell = "broken"
say = "It breaks."
"""
BREAKING = (
    ("x  is 2", "x is 3"),
    ("is = 2, within = 0.1, says", "is = 2, says"),
    ("a bar of 7", "a bar of 8"),
    ("minutes = 3\n", "minutes = 6\n"),
)


@pytest.mark.slow
def test_a_demo_keeps_its_word_and_what_is_not_as_expected_is_printed(write, tmp_path):
    """Right ones, with code and scales of their own, and one wrong in every way: in one process for the sake of time."""
    write(("minutes = 3\n", "minutes = 5\n"), text=DEMO + OWN_CODE, name="00_right")
    for name, scale in {"01_large": "laptop", "02_small": "smoke", "03_large": "laptop"}.items():
        write(text=BEGINNING.replace("SCALE", scale), name=name)
    write(*BREAKING, text=DEMO + BROKEN, name="04_wrong")
    (tmp_path / "course_utils").mkdir()
    code, lines = rehearse(tmp_path)
    assert code == 1
    well, wrong = lines[:-5], lines[-5:]
    assert len(well) == 4 + 3
    assert all(line.endswith(": as expected") for line in well), well
    assert wrong[0].endswith(
        "step 1 of 5, A number: 'x is 3' is not in the output. x + 0.1 is 2.1, expected 2 within 0%."
    )
    assert wrong[1].endswith("The picture's description lacks 'a bar of 8'; it is: a bar of 7")
    assert wrong[2].endswith("The clicks do not change the picture.")
    assert "The figure has no control 'depth'; its controls are: height, width." in wrong[3]
    assert wrong[4].endswith("Cell 'broken' failed: ZeroDivisionError: division by zero.")


WRONG = {
    "no steps": ([(DEMO[DEMO.index("[[steps]]") :], "")], "it has no steps"),
    "minutes": ([("minutes = 3", "minutes = 4")], "its steps take 3 minutes in total, but it says 4"),
    "unknown key": ([("click =", "press =")], "step 2: .* unexpected keyword argument 'press'"),
    "nothing said": ([('say = "And now?"', 'say = " "')], "step 2: 'say' is empty"),
    "a cell and code": (
        [('cell = "play"', 'cell = "play"\ncode = "1"')],
        "step 2: it has both a cell and its own code",
    ),
    "no such scale": (
        [("minutes = 3", 'scale = "large"\nminutes = 3')],
        "its scale 'large' is not one of smoke, laptop, gpu",
    ),
    "no TOML": ([("title", "[title")], "is not a demo .*line 2"),
    "covered and not answered": (
        [('cell = "number"', 'cell = "number"\ncovered = true')],
        "step 1: it is covered, but 'then' is empty; answer 'say' there",
    ),
    "no minutes": ([("minutes = 1\n", "minutes = 0\n")], "step 1: 'minutes' is not above 0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_is_no_demo_is_refused_in_a_sentence(name, write):
    changes, sentence = WRONG[name]
    with pytest.raises(CourseError, match=sentence.replace("(", r"\(")) as error:
        read_demo(write(*changes))
    assert str(error.value).startswith("00_small.toml")


UNFIT = {
    "cell": ([('cell = "play"', 'cell = "toy"')], "step 2: 00_small.ipynb has no code cell 'toy'"),
    "need": ([('cell = "play"', 'cell = "play"\nneeds = ["toy"]')], "no code cell 'toy'"),
    "nothing to click in": ([('cell = "play"\n', "")], "step 2 clicks, but names no cell"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_a_demo_that_does_not_fit_is_found_by_lint(name, write, monkeypatch, capsys):
    changes, sentence = UNFIT[name]
    path = write(*changes)
    with pytest.raises(CourseError, match=sentence):
        list(cells_by_step(read_demo(path)))
    (path.parents[2] / "course_utils").mkdir()
    monkeypatch.chdir(path.parents[2])
    assert main(["lint"]) == 1
    assert sentence in capsys.readouterr().out


def test_a_step_gets_the_cells_that_bind_what_it_uses_once_and_in_order(write):
    demo = read_demo(write())
    steps = [([cell.id for cell in unseen], cell.id) for _, unseen, cell in cells_by_step(demo)]
    assert steps == [([], "number"), (["begin", "begin", "begin", "draw"], "play")], "three imports of one cell"


def test_of_a_cell_that_is_needed_for_its_definitions_nothing_else_is_run(write):
    """An import and a function of a cell that trains; when its result is needed too, all of it, and once."""
    path = write(('cell = "number"', 'cell = "broken"'))
    cells = {
        "train": "import math\n\n\ndef half(x):\n    return math.floor(x / 2)\n\n\nslow = half(9)\nhalf.calls = 1",
        "broken": "half(4)",
        "play": "half(slow)",
    }
    write_notebook(
        new_notebook(cells=[new_code_cell(source, id=name) for name, source in cells.items()]),
        path.parent.parent / "00_small.ipynb",
    )
    demo = read_demo(path)
    first, second = (unseen for _, unseen, _ in cells_by_step(demo))
    assert [cell.source for cell in first] == ["import math", "def half(x):\n    return math.floor(x / 2)"]
    assert [cell.source for cell in second] == [cells["train"]]


def test_the_presentation_holds_each_step_s_cells(write):
    cells = presentation(read_demo(write())).cells
    roles = [cell.metadata["demo"]["role"] for cell in cells]
    assert roles == ["step", "unseen", "shown", "step", *["unseen"] * 4, "shown", "click"]
    assert "live('smoke')" in cells[1].source
    at_laptop = presentation(read_demo(write(("minutes = 3", 'scale = "laptop"\nminutes = 3'))))
    assert "live('laptop')" in at_laptop.cells[1].source


def test_a_chapter_may_call_its_own_things_as_it_likes(write, monkeypatch):
    """A stage of ZeRO, say; the button is offered all the same."""
    offered = []
    monkeypatch.setattr(stage, "offer", offered.append)
    exec(presentation(read_demo(write())).cells[-1].source, {"stage": 3})
    assert offered == [{"height": 7}]


def test_a_button_brings_a_figure_to_what_its_step_wants_whatever_was_moved_and_back(monkeypatch):
    displayed, controls = [], {"height": IntSlider(2, 0, 9), "width": IntSlider(3, 0, 9)}
    monkeypatch.setattr(stage, "display", displayed.append)
    monkeypatch.setattr(viz.display, "played_controls", controls)
    stage.offer({"height": 7})
    (button,) = displayed

    def press():
        button.value = not button.value
        return controls["height"].value, controls["width"].value

    assert button.description == "height: 7"
    controls["width"].value = 8  # a question from the room
    assert press() == (7, 3)
    assert press() == (2, 3), "as before the bet"


def test_a_button_says_what_it_sets_as_people_write_it(monkeypatch):
    controls = {"height": IntSlider(2, 0, 99999, description="how high"), "on": Checkbox(), "power": FloatSlider()}
    monkeypatch.setattr(viz.display, "played_controls", controls)
    assert instructions({"height": 16384, "on": True, "power": 0.5}) == "how high: 16,384, on: on, power: 0.5"


@pytest.mark.skipif(sys.platform == "win32", reason="continuous integration runs where bash is")
@pytest.mark.parametrize(("failing", "typed"), [("test", ["test"]), ("rehearse", ["test", "rehearse"])])
def test_continuous_integration_fails_where_the_tests_or_a_demo_fail(tmp_path, failing, typed):
    fake = tmp_path / "make"
    fake.write_text(f'#!/bin/sh\necho "$2" >> "{tmp_path}/typed"\n[ "$2" != {failing} ]\n')
    fake.chmod(0o755)
    environment = environment_for_child(PATH=f"{tmp_path}:/usr/bin:/bin")
    assert subprocess.run([ROOT / ".ci" / "run"], env=environment, timeout=20, check=False).returncode == 1
    assert (tmp_path / "typed").read_text().split() == typed


def test_the_list_and_unknown_names(capsys):
    assert main(["demo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(DEMOS)
    assert lines[3].startswith("03_adamw")
    assert main(["demo", "77"]) == 2
    assert capsys.readouterr().err.startswith("course demo: No demo is called '77'; the demos are: 00_start_here, ")
    assert [path.stem for path in demos_in(ROOT / "notebooks", ["05"])] == ["05_8bit_adam"]


def test_without_voila_a_sentence_says_how_to_get_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "voila", None)
    assert main(["demo", "03"]) == 2
    assert capsys.readouterr().err.startswith("course demo: The package voila is missing: ")
