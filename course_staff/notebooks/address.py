"""The repository's address: written in one place, pyproject.toml, and from there into whatever shows it."""

import re
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

from course_staff.notebooks.files import edit_text
from course_utils.errors import CourseError
from course_utils.files import find_place

_PROJECT = re.compile(r'(\[project\.urls\]\n(?:#.*\n)*)(?:Repository = ".*"\n)?')
_CITATION = re.compile(r"(license: .*\n)(?:repository-code: .*\n)?")


def repository_address(root: Path | None = None) -> str:
    """The address in the checkout's pyproject.toml; empty until `course stamp --repository` has written one."""
    path = (root or find_place().root) / "pyproject.toml"
    project = tomllib.loads(path.read_text(encoding="utf-8"))["project"] if path.is_file() else {}
    return project.get("urls", {}).get("Repository", "")


def set_address(root: Path, address: str) -> None:
    """Write `address` into pyproject.toml, or remove the present one if `address` is empty.

    Raises `CourseError` for an address from which git and pip could not fetch, and if no pyproject.toml has a place for it.
    """
    parts = urlsplit(address)
    is_url = parts.scheme in ("https", "http") and parts.hostname and parts.path.strip("/") and " " not in address
    if address and not is_url:
        raise CourseError(
            f"{address} is no address of a repository; write it out, as https://github.com/NAME/REPOSITORY."
        )
    path = root / "pyproject.toml"
    if not path.is_file() or not _PROJECT.search(path.read_text(encoding="utf-8")):
        raise CourseError(f"{path} has no [project.urls]; restore it with `git checkout`.")
    line = f'Repository = "{address}"\n' if address else ""
    edit_text(path, lambda text: _PROJECT.sub(lambda match: match[1] + line, text, count=1))


def stamp_citation(path: Path, address: str) -> bool:
    """Write `address` into the CITATION.cff at `path`, or take it out where it is empty; True where that changed it."""
    line = f"repository-code: {address}\n" if address else ""
    return edit_text(path, lambda text: _CITATION.sub(lambda match: match[1] + line, text, count=1))
