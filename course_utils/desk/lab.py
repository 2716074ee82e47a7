"""`course lab`: JupyterLab on a learner's own copy of the course."""

import json
import threading
import warnings
import webbrowser
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from course_utils.desk.start import write_start_page
from course_utils.desk.workspace import find_workspace, hand_out
from course_utils.errors import CourseError
from course_utils.files import chapters_in, find_place, require_writable, write_text
from course_utils.settings import has_display, settings

_RENEWED = "Its start page is updated; if a window shows it, choose File → Reload Markdown File from Disk there."
_END_FIRST = "To update the course, save your work there, choose File → Shut Down, and run `course lab` again."

# Defaults that the reader's own JupyterLab settings still override.
_DEFAULTS = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    # A notebook that is opened again shows its boxes and interactive figures as they were, and no errors instead.
    "@jupyter-widgets/jupyterlab-manager:plugin": {"saveState": True},
    # In a narrow window lines of code wrap, so that their ends are in sight.
    "@jupyterlab/notebook-extension:tracker": {"codeCellConfig": {"lineNumbers": False, "lineWrap": True}},
    # Links to the glossary open the rendered page, not an editor.
    "@jupyterlab/docmanager-extension:plugin": {"defaultViewers": {"markdown": "Markdown Preview"}},
}


def open_course(chapter: str | None, folder: Path | None, port: int, browser: bool) -> int:
    """Hand out the learner's copy in `folder` and serve it until interrupted, unless it is open already; returns the exit code.

    Opens `chapter`, by default the start page. Raises `CourseError` if there is no such chapter.
    """
    import_module("jupyterlab")  # raises before anything is handed out
    place = find_place()
    browser = browser and has_display()
    notebook = chapters_in(place.notebooks, [chapter])[0] if chapter else None
    workspace = find_workspace(place, folder)
    server = _find_server(workspace)
    if server is None:
        for line in hand_out(place, workspace):
            print(line, flush=True)
    page = write_start_page(workspace)
    file = workspace / notebook.parent.name / notebook.name if notebook else page
    if not file.is_file():
        raise CourseError(f"{chapter} is not a chapter in {workspace}; open it with `jupyter lab`.")
    if server is not None:
        address = f"{server['url']}lab/tree/{file.relative_to(workspace).as_posix()}?token={server['token']}"
        print(f"Your course is already open: {address}\n{_RENEWED}\n{_END_FIRST}", flush=True)
        return 0 if not browser or webbrowser.open(address) else 1
    _start(server_arguments(workspace, file, store_defaults(settings().home / "jupyterlab"), port, browser))
    return 0


def _find_server(folder: Path) -> dict | None:
    """The JupyterLab that serves `folder`; its windows may hold unsaved work, which a merge on disk would conflict with."""
    from jupyter_server.serverapp import list_running_servers

    servers = list_running_servers()
    return next((server for server in servers if Path(server["root_dir"]).resolve() == folder.resolve()), None)


def store_defaults(folder: Path) -> Path:
    """`folder`, with the defaults that JupyterLab reads there: it neither asks about news nor looks for updates.

    Raises `CourseError` if nothing can be written there.
    """
    with require_writable(folder, "set COURSE_HOME to a folder of your own"):
        write_text(folder / "overrides.json", json.dumps(_DEFAULTS))
    return folder


def server_arguments(workspace: Path, file: Path, settings_folder: Path, port: int, browser: bool) -> list[str]:
    """JupyterLab's command line: it serves the learner's folder, opens the file, and logs only problems."""
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

    if find_spec("voila"):  # else the server imports it and shows its deprecation warnings
        with warnings.catch_warnings():
            import_module("voila")
    try:
        jupyterlab(arguments)
    finally:
        stop_workers()


def stop_workers() -> None:
    """End the worker threads of requests that the server left unanswered when it stopped: Python would wait for them forever.

    https://github.com/jupyterlab/jupyterlab/issues/10442
    """
    for thread in threading.enumerate():
        if thread.name == "AnyIO worker thread":
            thread.stop()
