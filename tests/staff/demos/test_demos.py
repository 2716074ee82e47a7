"""The demos: each fits its chapter and keeps its word; one that is broken says so."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from ipywidgets import Checkbox, FloatSlider, IntSlider
from nbformat.v4 import new_code_cell, new_notebook, new_output

from course_staff.demos import demos_in, kept, read_demo, stage
from course_staff.demos.controls import instructions
from course_staff.demos.needs import plan, uses_and_binds
from course_staff.demos.presentation import presentation, presenter_page
from course_staff.demos.rehearse import rehearse
from course_staff.notebooks.files import notebook_text, write_notebook
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

    def written(*changes, text=DEMO, name="00_small"):
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

    return written


def test_every_chapter_has_a_demo():
    assert [path.stem for path in DEMOS] == [path.stem for path in sorted((ROOT / "notebooks").glob("*.ipynb"))]


@pytest.mark.parametrize("path", DEMOS, ids=lambda path: path.stem)
def test_a_demo_fits_its_chapter_and_a_lecture(path):
    demo = read_demo(path)
    assert len(list(plan(demo))) == len(demo.steps)
    assert 5 <= len(demo.steps) <= 8
    assert 8 <= demo.minutes <= 15
    assert any(step.click for step in demo.steps)
    assert all(step.text or step.picture or step.numbers for step in demo.steps if step.cell or step.code)
    assert any(step.notes for step in demo.steps)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_demos_keep_their_word(capfd):
    assert rehearse(DEMOS) == 0, "\n".join(
        line for line in capfd.readouterr().out.splitlines() if "as expected" not in line
    )


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
def test_a_demo_keeps_its_word_and_what_is_not_as_expected_is_printed(write, capfd):
    """Right ones, with code and scales of their own, and one wrong in every way: in one process for the sake of time."""
    right = write(("minutes = 3\n", "minutes = 5\n"), text=DEMO + OWN_CODE, name="00_right")
    smoke, laptop = (write(text=BEGINNING.replace("SCALE", scale), name=f"00_{scale}") for scale in ("smoke", "laptop"))
    wrong = write(*BREAKING, text=DEMO + BROKEN, name="00_wrong")
    assert rehearse([right, laptop, smoke, laptop, wrong], seconds=100) == 1
    output = capfd.readouterr().out.splitlines()
    well, output = output[:-5], output[-5:]
    assert len(well) == 4 + 3
    assert all(line.endswith(": as expected") for line in well), well
    assert output[0].endswith(
        "step 1 of 5, A number: 'x is 3' does not stand in the output. x + 0.1 is 2.1, expected 2 within 0%."
    )
    assert output[1].endswith("The picture is not described with 'a bar of 8', but: a bar of 7")
    assert output[2].endswith("The clicks change nothing in the picture.")
    assert "The figure has no control 'depth'; its controls are: height, width." in output[3]
    assert output[4].endswith("Cell 'broken' failed: ZeroDivisionError: division by zero.")


WRONG = {
    "no steps": ([(DEMO[DEMO.index("[[steps]]") :], "")], "it has no steps"),
    "minutes": ([("minutes = 3", "minutes = 4")], "its steps take 3 minutes together, but it says 4"),
    "unknown key": ([("click =", "press =")], "step 2: .* unexpected keyword argument 'press'"),
    "nothing said": ([('say = "And now?"', 'say = " "')], "step 2: 'say' is empty"),
    "a cell and code": ([('cell = "play"', 'cell = "play"\ncode = "1"')], "step 2: it has a cell and code of its own"),
    "no such scale": (
        [("minutes = 3", 'scale = "large"\nminutes = 3')],
        "its scale 'large' is not one of smoke, laptop, gpu",
    ),
    "no TOML": ([("title", "[title")], "cannot be read as TOML"),
    "covered and not answered": (
        [('cell = "number"', 'cell = "number"\ncovered = true')],
        "step 1: it is covered, and 'then' is empty; answer there what 'say' asks",
    ),
    "no minutes": ([("minutes = 1\n", "minutes = 0\n")], "step 1: 'minutes' is not above 0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_is_no_demo_is_refused_in_a_sentence(name, write):
    changes, words = WRONG[name]
    with pytest.raises(CourseError, match=words.replace("(", r"\(")) as error:
        read_demo(write(*changes))
    assert str(error.value).startswith("00_small.toml")


UNFIT = {
    "cell": ([('cell = "play"', 'cell = "toy"')], "step 2: 00_small.ipynb has no code cell 'toy'"),
    "need": ([('cell = "play"', 'cell = "play"\nneeds = ["toy"]')], "no code cell 'toy'"),
    "nothing to click in": ([('cell = "play"\n', "")], "step 2 clicks, but shows no cell"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_a_demo_that_does_not_fit_is_found_by_lint(name, write, monkeypatch, capsys):
    changes, words = UNFIT[name]
    path = write(*changes)
    with pytest.raises(CourseError, match=words):
        list(plan(read_demo(path)))
    (path.parents[2] / "course_utils").mkdir()
    monkeypatch.chdir(path.parents[2])
    assert main(["lint"]) == 1
    assert words in capsys.readouterr().out


def test_a_step_gets_the_cells_that_bind_what_it_uses_once_and_in_order(write):
    demo = read_demo(write())
    steps = [([cell.id for cell in unseen], cell.id) for _, unseen, cell in plan(demo)]
    assert steps == [([], "number"), (["begin", "draw"], "play")]


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
    first, then = (unseen for _, unseen, _ in plan(demo))
    assert [cell.source for cell in first] == ["import math\ndef half(x):\n    return math.floor(x / 2)"]
    assert [cell.source for cell in then] == [cells["train"]]


@pytest.mark.parametrize(
    ("source", "uses", "binds"),
    [
        ("x = y", {"y"}, {"x"}),
        ("x = x + 1", {"x"}, {"x"}),
        ("x = 1\ny = x", set(), {"x", "y"}),
        ("x += 1", {"x"}, {"x"}),
        ("x[0] = y.z", {"x", "y"}, set()),
        ("for i in xs:\n    print(i)", {"xs"}, {"i"}),
        ("def f(a, b=c):\n    d = a + e\n    return f(d)", {"c", "e"}, {"f"}),
        ("x = [i for i in xs if i > y]", {"xs", "y"}, {"x"}),
        ("import a.b as c\nfrom d import e", set(), {"c", "e"}),
        ("with f() as g:\n    g()", {"f"}, {"g"}),
        ("class A(B):\n    c = d", {"B", "d"}, {"A"}),
        ("%pip install x", set(), set()),
    ],
)
def test_names_used_and_bound(source, uses, binds):
    assert uses_and_binds(source) == (uses, binds)


def test_the_presentation_holds_each_step_s_cells(write):
    cells = presentation(read_demo(write())).cells
    roles = [cell.metadata["demo"]["role"] for cell in cells]
    assert roles == ["step", "unseen", "shown", "step", "unseen", "unseen", "shown", "click"]
    assert "live('smoke')" in cells[1].source
    at_laptop = presentation(read_demo(write(("minutes = 3", 'scale = "laptop"\nminutes = 3'))))
    assert "live('laptop')" in at_laptop.cells[1].source


def test_what_is_the_presenters_alone_stands_in_the_presenters_window(write):
    """Notes, what to expect and the minutes; the class's notebook has none of it."""
    demo = read_demo(
        write(('say = "How large is x?"', 'say = "How large is x?"\nnotes = "Ask Bo *first*."\nthen = "Two."'))
    )
    page, shown = presenter_page(demo), notebook_text(presentation(demo))
    assert "How large is x?" in shown
    assert "Two." in shown
    for words in (
        "Ask Bo <em>first</em>.",
        "Two.",
        "nearly two",
        "Checked at rehearsal",
        "In the description of the picture: a bar of 7",
        "Next: <strong>A bar</strong>, 2 min",
    ):
        assert words in page
    for words in ("Ask Bo", "nearly two", "a bar of 7"):
        assert words not in shown


def test_a_chapter_may_call_its_own_things_as_it_likes(write, monkeypatch):
    """A stage of ZeRO, say; the button is offered all the same."""
    offered = []
    monkeypatch.setattr(stage, "offer", offered.append)
    exec(presentation(read_demo(write())).cells[-1].source, {"stage": 3})
    assert offered == [{"height": 7}]


def test_a_button_brings_a_figure_to_what_its_step_wants_whatever_was_moved_and_back(monkeypatch):
    shown, controls = [], {"height": IntSlider(2, 0, 9), "width": IntSlider(3, 0, 9)}
    monkeypatch.setattr(stage, "display", shown.append)
    monkeypatch.setattr(viz.display, "played", controls)
    stage.offer({"height": 7})

    def pressed():
        shown[0].click()
        return controls["height"].value, controls["width"].value

    controls["width"].value = 8  # a question from the room
    forth = shown[0].description
    assert pressed() == (7, 3)
    assert shown[0].description == "back to where it began"
    assert pressed() == (2, 3), "as before the bet"
    assert shown[0].description == forth
    pressed()
    controls["height"].value = 5
    assert shown[0].description == forth
    assert pressed() == (7, 3)
    controls["width"].value = 4
    assert pressed() == (7, 3)


def test_a_button_says_what_it_sets_as_people_write_it(monkeypatch):
    controls = {"height": IntSlider(2, 0, 99999, description="how high"), "on": Checkbox(), "power": FloatSlider()}
    monkeypatch.setattr(viz.display, "played", controls)
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


def test_a_class_s_window_may_be_loaded_again_before_all_of_it_is_there(caplog):
    """The first connection is closed in the midst of the page; nothing is said of it, and the second gets all."""
    pytest.importorskip("voila")
    from tornado.httpclient import AsyncHTTPClient
    from tornado.httpserver import HTTPServer
    from tornado.tcpclient import TCPClient
    from tornado.testing import bind_unused_port
    from tornado.web import Application

    from course_staff.demos.performance import _ClassPage

    begun, ended = [], []

    class Performance:
        async def page(self):
            begun.append(self)
            try:
                yield "a step, "
                while len(begun) == 1:  # has no end but that nobody is there
                    await asyncio.sleep(0)
                    yield "another, "
                yield "the last"
            finally:
                ended.append(self)

    async def load_twice():
        listener, port = bind_unused_port()
        server = HTTPServer(Application([("/", _ClassPage, {"performance": Performance()})]))
        server.add_socket(listener)
        first = await TCPClient().connect("127.0.0.1", port)
        await first.write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        await first.read_until(b"a step, ")
        first.close()
        while not ended:
            await asyncio.sleep(0)
        again = await AsyncHTTPClient().fetch(f"http://127.0.0.1:{port}/")
        server.stop()
        return again.body.decode()

    assert asyncio.run(load_twice()) == "a step, the last"
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


PNG = {"image/png": "AA", "text/plain": "a bar"}
VIEW = {"application/vnd.jupyter.widget-view+json": {"model_id": "1"}}


def test_what_a_demo_showed_is_kept_until_something_changes(write, tmp_path):
    """Pictures and text, but nothing that would need the kernel; a demo with other words finds nothing."""
    notebook, path = presentation(read_demo(write())), tmp_path / "kept.json"
    outputs = {
        1: [new_output("stream", text="x is 2")],
        6: [
            new_output("display_data", VIEW | {"text/plain": "controls"}),
            new_output("display_data", PNG | VIEW, metadata={"demo": "picture"}),
        ],
    }
    played = [{**cell, "outputs": outputs.get(place, [])} for place, cell in enumerate(notebook.cells)]
    kept.keep(path, kept.digest(notebook), played)
    again = presentation(read_demo(write()))
    recalled = kept.recall(path, kept.digest(again), again)
    assert [output.text for output in recalled.cells[2].outputs] == []
    assert recalled.cells[1].outputs == outputs[1]
    assert [output.data for output in recalled.cells[6].outputs] == [PNG]
    assert [cell.get("outputs") for cell in again.cells if cell.get("outputs")] == []
    other = presentation(read_demo(write(("How large", "How small"))))
    assert kept.recall(path, kept.digest(other), other) is None
    assert path.exists()


def test_a_demo_that_failed_is_not_kept(write, tmp_path):
    notebook, path = presentation(read_demo(write())), tmp_path / "kept.json"
    failed = new_output("error", ename="ZeroDivisionError", evalue="division by zero", traceback=[])
    kept.keep(path, kept.digest(notebook), [{**cell, "outputs": [failed]} for cell in notebook.cells])
    assert kept.recall(path, kept.digest(notebook), notebook) is None


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
