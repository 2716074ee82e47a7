"""The command line of a sandbox: what a program sees of this machine, by bubblewrap."""

import os
import site
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import course_staff
import course_utils
from course_staff.grading import limits

_LIBRARIES = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/alternatives", "/nix/store")


def bwrap_command(program: Iterable[str], private: Iterable[Path] = ()) -> list[str]:
    """The command line that runs `program` in the sandbox, which sees nothing of what is `private`.

    The program has no network, no other processes and no rights. It can read Python, its packages and the course, and
    write to small empty folders.
    """
    size = str(limits.LIMITS.folder_bytes)
    visible = _visible({*map(Path.resolve, private), *_own_secrets()})
    return [
        *("bwrap", "--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"),
        *("--die-with-parent", "--new-session"),
        *visible,
        *("--proc", "/proc", "--dev", "/dev", "--size", size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev"),
        *("--size", size, "--tmpfs", limits.BOX),
        *(() if any(place.startswith("/tmp/") for place in visible) else ("--symlink", limits.BOX, "/tmp")),
        *("--remount-ro", "/", "--chdir", limits.BOX),
        *program,
    ]


def _own_secrets() -> set[Path]:
    """The folder of released sets, and the checkout, which contains the solutions; the checkout's packages stay visible."""
    package = Path(course_utils.__file__).resolve().parent
    root = package.parent
    return {package / "grading" / "sets", *([root] if (root / "solutions").is_dir() else [])}


def _visible(private: set[Path]) -> list[str]:
    """Arguments that show the system's libraries, Python, its packages and the course, and cover what is `private` among them.

    Paths come from the outermost inwards: one within a visible folder is visible with it, one within a covered folder is hidden
    with it unless it is shown. Links stay links (`/bin` mostly is one), and their targets are shown.
    """
    packages = [*site.getsitepackages(), site.getusersitepackages()]
    rooms = [Path(room.__file__).resolve().parent for room in (course_utils, course_staff)]
    python = [sys.base_prefix, sys.prefix, os.path.dirname(os.path.realpath(sys.executable))]
    paths = *_LIBRARIES, *python, sys.executable, os.path.dirname(os.__file__), *packages
    public = {step for path in (*map(Path, paths), *rooms) for step in _steps(path)}
    private = private - public
    arguments, covers = [], []
    visibility: dict[Path, bool] = {}
    for path in sorted((path for path in public | private if path.exists()), key=lambda path: len(path.parts)):
        is_visible = next((visibility[place] for place in path.parents if place in visibility), False)
        if is_visible is (path not in private):
            continue
        if path in private:
            arguments += ["--tmpfs", str(path)]
            covers += ["--remount-ro", str(path)]
        elif path.is_symlink():
            arguments += ["--symlink", os.readlink(path), str(path)]
            continue
        else:
            arguments += ["--ro-bind", str(path), str(path)]
        visibility[path] = path not in private
    return arguments + covers


def _steps(path: Path) -> Iterator[Path]:
    """Every link on the way to `path`, and what it finally leads to; nothing if that does not exist."""
    if not path.exists():
        return
    for place in (*reversed(path.parents), path):
        if place.is_symlink():
            yield place
            target = Path(os.path.normpath(place.parent / os.readlink(place)))
            yield from _steps(target / path.relative_to(place))
            return
    yield path
