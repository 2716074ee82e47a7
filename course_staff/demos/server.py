"""The presentation in a browser, by Voilà, with pages of our own."""

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from course_staff.demos import SETTINGS
from course_staff.demos.script import Demo
from course_utils.desk.lab import stop_workers
from course_utils.settings import set_variable, variables

TEMPLATE = "course"
_SHARE = Path(__file__).parent / "share"
_QUIET = {"ws_ping_interval": 0}  # a page on this machine needs no pings, and their default ends in a warning


def arguments(notebook: Path, port: int, browser: bool) -> Sequence[str]:
    """Voilà's command line: one notebook, our template, no word but problems."""
    given = [
        str(notebook),
        f"--template={TEMPLATE}",
        f"--port={port}",
        "--Voila.ip=127.0.0.1",
        "--Voila.port_retries=0",
        "--Voila.log_level=ERROR",
        "--show_tracebacks=True",
        "--strip_sources=False",
        "--KernelManager.transport_encryption=auto",
    ]
    return given if browser else [*given, "--no-browser"]


def serve(demo: Demo, folder: Path, browser: bool) -> None:
    """Serve `demo` at any free port until interrupted, with the demos' settings; what belongs to it is kept in `folder`.

    Raises `CourseError` where nothing can be written there.
    """
    for name, value in SETTINGS.items():
        set_variable(name, value)
    elsewhere = variables("JUPYTER_PATH").get("JUPYTER_PATH")
    set_variable("JUPYTER_PATH", f"{_SHARE}{os.pathsep}{elsewhere}" if elsewhere else str(_SHARE))
    # Importing Voilà would spend two seconds on a grammar of addresses, which no schema here asks for.
    sys.modules.setdefault("rfc3987_syntax", None)

    from course_staff.demos.performance import Theater
    from course_staff.demos.presentation import presentation
    from course_staff.notebooks.files import write_notebook

    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port = trial.getsockname()[1]
    notebook = folder / f"{demo.name}.ipynb"
    write_notebook(presentation(demo), notebook)
    try:
        Theater.launch_instance(arguments(notebook, port, browser), demo=demo, tornado_settings=_QUIET)
    finally:
        stop_workers()
