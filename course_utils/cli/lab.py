"""`course lab`."""

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from course_utils.chapters import find_place
from course_utils.errors import CourseError
from course_utils.settings import environment_for_child, settings

HELP = "open the course in JupyterLab"

# Defaults that the reader's own JupyterLab settings still override.
_DEFAULTS = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which notebook, on which port."""
    parser.add_argument("notebook", nargs="?", type=Path, help="the notebook to open (default: the first chapter)")
    parser.add_argument("--port", type=int, default=8888, help="where to listen; 0 for any free port (default: 8888)")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")


def run(arguments: argparse.Namespace) -> int:
    """Serve until interrupted; raises `CourseError` without the notebook or JupyterLab."""
    notebook = _notebook(arguments.notebook)
    browser = not arguments.no_browser and has_display(environment_for_child(), sys.platform)
    write_defaults(settings_folder := settings().home / "jupyterlab")
    _start(server_arguments(notebook, settings_folder, arguments.port, browser))
    return 0


def has_display(environment: Mapping[str, str], platform: str) -> bool:
    """Whether a browser opened from here would be seen by the person who asked for it."""
    if environment.get("CI") or environment.get("SSH_CONNECTION"):
        return False
    return not platform.startswith("linux") or bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def write_defaults(folder: Path) -> None:
    """Put into `folder` what JupyterLab reads its defaults from: it neither asks about news nor looks for updates."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "overrides.json").write_text(json.dumps(_DEFAULTS), encoding="utf-8")


def server_arguments(notebook: Path, settings_folder: Path, port: int, browser: bool) -> list[str]:
    """JupyterLab's command line: it serves the checkout of the notebook, opens that, and logs nothing but problems."""
    root = _root_of(notebook)
    arguments = [
        f"--ServerApp.root_dir={root}",
        f"--LabApp.default_url=/lab/tree/{notebook.relative_to(root).as_posix()}",
        f"--ServerApp.port={port}",
        "--ServerApp.log_level=ERROR",
        "--LabApp.log_level=ERROR",
        "--ServerApp.answer_yes=True",
        f"--LabApp.app_settings_dir={settings_folder}",
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.handlers.announcements.NeverCheckForUpdate",
        "--KernelManager.transport_encryption=auto",
    ]
    return arguments + ([] if browser else ["--no-browser"]) + (["--allow-root"] if _is_root() else [])


def _notebook(named: Path | None) -> Path:
    notebook = (named or find_place().start).absolute()
    if not notebook.is_file():
        raise CourseError(f"There is no notebook at {notebook}; check the name, or restore it with `git checkout`.")
    return notebook


def _root_of(notebook: Path) -> Path:
    """The checkout that the notebook lies in, so that its links to other folders work, or else its own folder."""
    checkouts = (folder for folder in notebook.parents if (folder / "course_utils").is_dir())
    return next(checkouts, notebook.parent)


def _is_root() -> bool:
    """Whether this is the system's administrator, as in a container; Jupyter then wants to be told that it may start."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _start(arguments: list[str]) -> None:
    try:
        from jupyterlab.labapp import main as jupyterlab
    except ImportError:
        raise CourseError('JupyterLab is not installed; run `pip install -e ".[lab]"` in the clone.') from None
    jupyterlab(arguments)
