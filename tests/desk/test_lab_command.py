"""`course lab`: what it starts, and what it says where it cannot."""

import subprocess
import sys

import nbformat
import pytest

from course_utils.cli import main
from course_utils.desk import lab
from course_utils.settings import settings


@pytest.fixture
def argvs(monkeypatch):
    """The arguments of each JupyterLab that was started."""
    argvs = []
    monkeypatch.setattr("jupyterlab.labapp.main", argvs.append)
    return argvs


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout with two chapters, as the working directory."""
    for name in ("course_utils", "notebooks"):
        (tmp_path / name).mkdir()
    for name in ("00_start_here", "01_b"):
        cell = nbformat.v4.new_code_cell("x = 1", id="first")
        nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "notebooks" / f"{name}.ipynb")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_request_that_was_never_answered_does_not_keep_the_process():
    """Python waits at exit for threads that are no daemons, and anyio's threads end only with their request."""
    program = """if True:
        import asyncio, threading, anyio
        from course_utils.desk.lab import stop_workers

        async def request():
            await anyio.to_thread.run_sync(int)
            await asyncio.sleep(10**6)

        loop = asyncio.new_event_loop()
        pending = loop.create_task(request())
        loop.run_until_complete(asyncio.sleep(0.5))
        print(sum(not each.daemon for each in threading.enumerate()))
        stop_workers()
    """
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (process.returncode, process.stdout) == (0, "2\n")


def test_where_its_defaults_cannot_be_written_lab_says_so(checkout, argvs, capsys, monkeypatch):
    monkeypatch.setenv("COURSE_HOME", str(checkout / "notebooks" / "01_b.ipynb" / "home"))
    settings.cache_clear()
    assert main(["lab", "--folder", str(checkout / "mine")]) == 2
    assert "set COURSE_HOME to a folder of your own" in capsys.readouterr().err
    assert argvs == []


@pytest.mark.slow
def test_voila_does_not_show_the_reader_the_deprecations_of_others(checkout):
    program = """import sys, warnings
from pathlib import Path
from course_utils.desk import lab
before = list(warnings.filters)
import jupyterlab.labapp
jupyterlab.labapp.main = lambda arguments: None
lab.open_course(None, Path("mine"), 0, browser=False)
print("voila" in sys.modules, [rule for rule in warnings.filters if rule not in before and "traitlets" in str(rule)])
"""
    # Without -P, Python would take the empty folder course_utils of this checkout for the package.
    process = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=100)
    assert process.stdout.splitlines()[-1] == "True []"


def test_every_option_given_to_jupyterlab_is_one_it_has(checkout):
    from jupyter_client import KernelManager
    from jupyter_server.serverapp import ServerApp
    from jupyter_server.services.contents.manager import ContentsManager
    from jupyterlab.labapp import LabApp

    classes = {kind.__name__: kind for kind in (LabApp, ServerApp, KernelManager, ContentsManager)}
    arguments = lab.server_arguments(checkout, checkout / "start.md", checkout, 0, browser=True)
    options = [
        argument.removeprefix("--").partition("=")[0].split(".")
        for argument in arguments
        if "." in argument.partition("=")[0]
    ]
    assert len(options) >= 8
    assert [name for name, trait in options if trait not in classes[name].class_trait_names(config=True)] == []
