"""The presentation in a browser, by Voilà, with a page of our own."""

import os
import socket
from pathlib import Path
from tempfile import TemporaryDirectory

from course_staff.demos import SETTINGS
from course_staff.demos.script import Demo
from course_utils.desk.lab import stop_workers
from course_utils.settings import set_variable, variables

_SHARE = Path(__file__).parent / "share"
_QUIET = {"ws_ping_interval": 0}  # a page on this machine needs no pings, and their default ends in a warning


def serve(demo: Demo, browser: bool) -> None:
    """Serve `demo` at any free port until interrupted, with the demos' settings.

    A kernel runs it before a page asks for it; the next one then begins for the case that the page is loaded again.
    """
    for name, value in SETTINGS.items():
        set_variable(name, value)
    set_variable("JUPYTER_PATH", os.pathsep.join([str(_SHARE), *variables("JUPYTER_PATH").values()]))

    from voila.app import Voila

    from course_staff.demos.presentation import presentation
    from course_staff.notebooks.files import write_notebook

    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port = trial.getsockname()[1]
    with TemporaryDirectory() as folder:
        notebook = Path(folder) / f"{demo.name}.ipynb"
        write_notebook(presentation(demo), notebook)
        print(f"{demo.title}, {demo.minutes:g} minutes: http://127.0.0.1:{port}/ (Ctrl-C ends it)", flush=True)
        command = [
            str(notebook),
            "--template=course",
            f"--port={port}",
            "--Voila.ip=127.0.0.1",
            "--Voila.port_retries=0",
            "--Voila.log_level=ERROR",
            "--show_tracebacks=True",
            "--preheat_kernel=True",
            "--KernelManager.transport_encryption=auto",
            *([] if browser else ["--no-browser"]),
        ]
        try:
            Voila.launch_instance(command, tornado_settings=_QUIET)
        finally:
            stop_workers()
