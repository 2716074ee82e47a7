"""Chapters executed in real kernels: what works, and what is said when it does not."""

import copy
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course_staff.notebooks.clean import clean
from course_staff.notebooks.execute import execute_chapter, run_chapters
from course_staff.notebooks.files import read_notebook, write_notebook
from course_utils.errors import CourseError
from course_utils.settings import LIVE_OUTPUT


def write(folder, *sources, name="01_a.ipynb"):
    cells = [new_markdown_cell("# A"), *map(new_code_cell, sources)]
    nbformat.write(
        new_notebook(cells=cells, metadata={"kernelspec": {"name": "elsewhere", "display_name": "X"}}), folder / name
    )
    return folder / name


def printed(notebook):
    return [output.text for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def test_chapters_run_in_this_python_in_their_folder_until_a_cell_fails(tmp_path):
    (tmp_path / "beside.txt").write_text("here")
    show = "import os, sys; print(open('beside.txt').read(), sys.executable, os.environ['COURSE_SCALE'])"
    good, bad = write(tmp_path, show), write(tmp_path, "x = 1", "1 / 0", name="02_b.ipynb")
    never = write(tmp_path, "1", name="03_c.ipynb")
    copies = []
    with pytest.raises(CourseError, match=r"02_b.ipynb, cell 3, failed with ZeroDivisionError: division by zero"):
        copies.extend(run_chapters([good, bad, never], tmp_path / "runs", scale="laptop"))
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["01_a.ipynb"]
    assert printed(read_notebook(tmp_path / "runs" / "01_a.ipynb")) == [f"here {sys.executable} laptop\n"]


def left_open():
    """How many files and sockets this process has open."""
    process = psutil.Process()
    return process.num_fds() if hasattr(process, "num_fds") else process.num_handles()


ENDINGS = {
    "well": ("1", 600, None),
    "dead": (
        "import os; os._exit(1)", 600, "01_a.ipynb: the kernel died in cell 2, .* memory; choose a smaller --scale.$",
    ),
    "too late with a child": (
        "import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "time.sleep(100)",
        2,
        "01_a.ipynb, cell 2, took more than 2 s",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "ending", ["dead", *(pytest.param(ending, marks=pytest.mark.slow) for ending in ("well", "too late with a child"))]
)
def test_the_cell_is_named_and_nothing_of_its_kernel_is_left_however_it_ends(ending, tmp_path, capfd):
    source, timeout, sentence = ENDINGS[ending]
    path = write(tmp_path, source)
    before, family, opened = set(psutil.pids()), set(psutil.Process().children(recursive=True)), []
    for _ in range(2):
        with pytest.raises(CourseError, match=sentence) if sentence else nullcontext():
            execute_chapter(path, timeout=timeout)
        assert set(psutil.Process().children(recursive=True)) <= family
        opened.append(left_open())
    # The first run opens what the event loop keeps for this process.
    assert opened[1] <= opened[0]
    assert [pid for pid in set(psutil.pids()) - before if str(tmp_path) in working_folder(pid)] == []
    assert "Traceback" not in capfd.readouterr().err


def working_folder(pid):
    try:
        return psutil.Process(pid).cwd()
    except psutil.Error:
        return ""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such signal to send to one process")
def test_an_interrupted_run_stops_with_its_kernel_and_blames_nothing_else(tmp_path):
    for name in ("course_utils", "notebooks"):
        (tmp_path / name).mkdir()
    write(tmp_path / "notebooks", "open('started', 'w').close(); import time; time.sleep(100)")
    command = [sys.executable, "-P", "-m", "course_utils.cli", "run"]  # not the empty folder's course_utils
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(tmp_path / "notebooks" / "started")
        kernels = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=60)[1]
    finally:
        process.kill()
    assert kernels
    assert psutil.wait_procs(kernels, timeout=20)[1] == []
    assert process.returncode == 130
    assert output.splitlines()[-1] == "course run: stopped."
    assert "Traceback" not in output


def wait_for(path):
    for _ in range(600):
        if path.exists():
            return
        time.sleep(0.1)
    pytest.fail(f"{path.name} never came")


@pytest.mark.slow
@pytest.mark.parametrize("python", ["false", "no-such-python"])
def test_a_python_that_starts_no_kernel_is_named(python, tmp_path):
    """In a process of its own, because the libraries would have their say at its end."""
    path = write(tmp_path, "1")
    program = (
        "import shutil, sys; from pathlib import Path; from course_staff.notebooks.execute import execute_chapter\n"
        "sys.executable = shutil.which(sys.argv[1]) or sys.argv[1]\n"
        "try: execute_chapter(Path(sys.argv[2]))\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    command = [sys.executable, "-c", program, python, str(path)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=100, stdin=subprocess.DEVNULL)
    (line,) = process.stdout.splitlines()
    assert line.startswith("CourseError 01_a.ipynb: no kernel could be started (")
    assert line.endswith("); run `course doctor`.")
    assert "Traceback" not in process.stderr


def test_where_nothing_can_be_written_no_chapter_is_run(tmp_path):
    """The cell would leave a file behind."""
    path = write(tmp_path, "open('ran', 'w')")
    with pytest.raises(CourseError, match=r"cannot be written \(.*\); .*COURSE_HOME") as error:
        list(run_chapters([path], path / "runs"))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "ran").exists()


def test_two_runs_are_stored_as_the_same_bytes(tmp_path):
    sources = [
        "from tqdm.auto import tqdm\nfor _ in tqdm(range(3)): pass",
        "from ipywidgets import IntSlider\nIntSlider()",
        "import sys; from tqdm import tqdm\nfor _ in tqdm(range(3)): pass\nprint('done')",
        "40 + 2",
    ]
    path = write(tmp_path, *sources)
    texts = []
    for _ in range(2):
        write_notebook(clean(execute_chapter(path), path.name, "laptop"), path)
        texts.append(path.read_text(encoding="utf-8"))
    assert texts[0] == texts[1]
    notebook = read_notebook(path)
    assert [[output.output_type for output in cell.outputs] for cell in notebook.cells[1:]] == [
        [],
        [],
        ["stream"],
        ["execute_result"],
    ]
    assert [cell.execution_count for cell in notebook.cells[1:]] == [1, 2, 3, 4]
    assert notebook.metadata == {
        "course": {"scale": "laptop"},
        "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    assert texts[0].endswith("}\n")


def notebook_showing(*outputs, **metadata):
    cell = new_code_cell("x", execution_count=7, outputs=list(outputs), metadata={"execution": {"iopub": "now"}})
    return new_notebook(cells=[cell], metadata=metadata)


WIDGET = {"application/vnd.jupyter.widget-view+json": {"model_id": "1"}, "text/plain": "Move the slider."}
OUTPUTS = {
    "a text given with a widget stays, and its model goes": (
        new_output("display_data", data=WIDGET),
        [new_output("display_data", data={"text/plain": "Move the slider."})],
    ),
    "what only means something on a live page goes": (
        new_output("display_data", data={"text/html": "<script></script>", "text/plain": ""}, metadata=LIVE_OUTPUT),
        [],
    ),
    "a warning is no progress bar and stays to be found": (
        new_output("stream", name="stderr", text="50%|#  | 1/2\nUserWarning: look"),
        [new_output("stream", name="stderr", text="50%|#  | 1/2\nUserWarning: look")],
    ),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_of_outputs_only_results_are_stored(name):
    outputs, expected = OUTPUTS[name]
    (cell,) = clean(notebook_showing(copy.deepcopy(outputs)), "a", "laptop").cells
    assert (cell.outputs, cell.metadata) == (expected, {})


def test_what_the_notebook_says_of_itself_stays():
    notebook = notebook_showing(course={"unlinked": ["rank"], "scale": "smoke"}, widgets={"state": {}})
    assert clean(notebook, "a", "laptop").metadata.course == {"unlinked": ["rank"], "scale": "laptop"}


@pytest.mark.parametrize("text", ["saved to /home/ada/x", r"C:\Users\ada", "/tmp/tmpx1"])
def test_a_path_of_this_machine_is_refused_not_edited(text):
    with pytest.raises(CourseError, match=r"a.ipynb, cell 1: the output contains .*(ada|tmp)"):
        clean(notebook_showing(new_output("stream", text=text)), "a.ipynb", "laptop")


def test_seconds_of_a_busy_machine_are_refused():
    warning = "UserWarning: Other programs use 80% of this machine's cores: the rates are what they leave"
    with pytest.raises(CourseError, match="other programs kept this machine busy"):
        clean(notebook_showing(new_output("stream", name="stderr", text=warning)), "a.ipynb", "laptop")


def showing_progress(text):
    notebook = notebook_showing(new_output("display_data", data={"text/plain": text}))
    notebook.cells[0].metadata["tags"] = ["fresh-learner"]
    return notebook


def test_progress_is_stored_only_as_a_beginner_sees_it():
    beginner = showing_progress("No question passed yet, of 9.")
    assert clean(beginner, "a.ipynb", "laptop").cells[0].outputs
    with pytest.raises(CourseError, match="a.ipynb, cell 1: it shows your own progress"):
        clean(showing_progress("2 of 9 questions passed"), "a.ipynb", "laptop")


def test_a_file_that_is_no_notebook_is_named(tmp_path):
    (tmp_path / "x.ipynb").write_text("{}")
    for path, sentence in (
        (tmp_path / "x.ipynb", "is not a notebook"),
        (tmp_path / "y.ipynb", "There is no notebook at"),
    ):
        with pytest.raises(CourseError, match=sentence):
            read_notebook(path)
