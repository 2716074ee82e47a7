"""JupyterLab on a learner's own copy of the course, as `course lab` opens it."""

import json
import threading
import warnings
import webbrowser
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from course_utils.desk.doctor import has_display
from course_utils.desk.start import write_start_page
from course_utils.desk.workspace import find_workspace, hand_out
from course_utils.errors import CourseError
from course_utils.files import chapters_in, find_place, replacing, require_writable
from course_utils.settings import settings

_RENEWED = "Its start page is updated; if a window shows it, choose File → Reload Markdown File from Disk there."
_END_FIRST = "To update the course, save your work there, choose File → Shut Down, and run `course lab` again."

# Defaults that the reader's own JupyterLab settings still override.
_DEFAULTS = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    # A notebook that is opened again shows its boxes and figures to play with as they were, and not an error in their place.
    "@jupyter-widgets/jupyterlab-manager:plugin": {"saveState": True},
    # In a narrow window a line of code goes on below, where else its end would be out of sight.
    "@jupyterlab/notebook-extension:tracker": {"codeCellConfig": {"lineNumbers": False, "lineWrap": True}},
    # Links to the glossary open it to be read, and not as a file to be edited.
    "@jupyterlab/docmanager-extension:plugin": {"defaultViewers": {"markdown": "Markdown Preview"}},
}


def open_course(named: str | None, folder: Path | None, port: int, browser: bool) -> int:
    """Hand out the learner's copy in `folder` and serve it until interrupted, unless it is open already; the exit code.

    It opens the chapter that is `named`, or else the page that says what is next. Raises `CourseError` if there is none.
    """
    import_module("jupyterlab")  # where it is missing, that is said before anything is handed out
    place, browser = find_place(), browser and has_display()
    notebook = chapters_in(place.notebooks, [named])[0] if named else None
    workspace = find_workspace(place, folder)
    server = _find_server(workspace)
    if server is None:
        for line in hand_out(place, workspace):
            print(line, flush=True)
    page = write_start_page(workspace)
    file = workspace / notebook.parent.name / notebook.name if notebook else page
    if not file.is_file():
        raise CourseError(f"{named} is not a chapter in {workspace}; open it with `jupyter lab`.")
    if server is not None:
        address = f"{server['url']}lab/tree/{file.relative_to(workspace).as_posix()}?token={server['token']}"
        print(f"Your course is already open: {address}\n{_RENEWED}\n{_END_FIRST}", flush=True)
        return 0 if not browser or webbrowser.open(address) else 1
    _start(server_arguments(workspace, file, store_defaults(settings().home / "jupyterlab"), port, browser))
    return 0


def _find_server(folder: Path) -> dict | None:
    """The JupyterLab that serves `folder`: its windows hold what is not saved yet, and would take a merge on disk for
    somebody else's change.
    """
    from jupyter_server.serverapp import list_running_servers

    servers = list_running_servers()
    return next((server for server in servers if Path(server["root_dir"]).resolve() == folder.resolve()), None)


def store_defaults(folder: Path) -> Path:
    """`folder`, with the defaults that JupyterLab reads there: it neither asks about news nor looks for updates.

    Raises `CourseError` if nothing can be written there.
    """
    remedy = "set COURSE_HOME to a folder of your own"
    with require_writable(folder, remedy), replacing(folder / "overrides.json") as draft:
        draft.write_text(json.dumps(_DEFAULTS), encoding="utf-8")
    return folder


def server_arguments(workspace: Path, file: Path, settings_folder: Path, port: int, browser: bool) -> list[str]:
    """JupyterLab's command line: it serves the learner's folder, opens the file, and logs but problems."""
    arguments = [
        f"--ServerApp.root_dir={workspace}",
        f"--LabApp.default_url=/lab/tree/{file.relative_to(workspace).as_posix()}",
        f"--LabApp.app_settings_dir={settings_folder}",
        f"--ServerApp.port={port}",
        "--ServerApp.log_level=ERROR",
        "--LabApp.log_level=ERROR",
        "--ServerApp.answer_yes=True",
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.handlers.announcements.NeverCheckForUpdate",
        "--KernelManager.transport_encryption=auto",
        "--ContentsManager.pre_save_hook=course_utils.desk.widget_states.keep",
        "--allow-root",  # as in a container
    ]
    return arguments if browser else [*arguments, "--no-browser"]


def _start(arguments: list[str]) -> None:
    from jupyterlab.labapp import main as jupyterlab

    if find_spec("voila"):  # the server would import it, and then show what is deprecated in packages of others
        with warnings.catch_warnings():
            import_module("voila")
    try:
        jupyterlab(arguments)
    finally:
        stop_workers()


def stop_workers() -> None:
    """End the worker threads of requests that the server left unanswered when it stopped: Python would wait for them for ever.

    https://github.com/jupyterlab/jupyterlab/issues/10442
    """
    for thread in threading.enumerate():
        if thread.name == "AnyIO worker thread":
            thread.stop()
