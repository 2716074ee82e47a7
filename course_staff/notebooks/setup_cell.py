"""The first code cell of every notebook: it brings the package where it is missing (Colab), then opens the chapter.

`%pip` installs into the kernel's own Python, on every system. Without `--upgrade`, pip leaves alone what is installed and
satisfies our lower bounds, such as a notebook service's own torch and numpy. `-qqq` keeps a failed download to one line at most;
the `assert` then says in one sentence what to do.
"""

from importlib.metadata import metadata
from pathlib import Path
from urllib.parse import urlsplit

from course_staff.notebooks.files import edit_notebook
from course_utils.errors import CourseError

_SOURCE = """\
from importlib.util import find_spec

if not find_spec("course_utils"):
    %pip install -qqq "course-utils @ git+{address}"
why = "The course could not be fetched: check the network, then run this cell again."
assert find_spec("course_utils"), why

from course_utils.chapters import begin

begin()"""


def repository_address() -> str:
    """The address in pyproject.toml's `[project.urls]`, as the installed package carries it."""
    for url in metadata("course-utils").get_all("Project-URL") or []:
        label, _, address = url.partition(", ")
        if label == "Repository":
            return address
    raise CourseError("The installed package names no repository; run `pip install -e .` in the clone to renew it.")


def known_repository() -> str:
    """The address where the course can be fetched; empty as long as pyproject.toml has the example's."""
    address = repository_address()
    return "" if (urlsplit(address).hostname or "").endswith("example.org") else address


def setup_source(address: str | None = None) -> str:
    """The set-up cell's source, fetching from `address` (by default the course's own)."""
    return _SOURCE.format(address=address or repository_address())


def is_setup(cell: dict) -> bool:
    """Whether a notebook's cell carries the tag `setup`."""
    return cell["cell_type"] == "code" and "setup" in cell["metadata"].get("tags", [])


def stamp(path: Path) -> bool:
    """Write today's set-up cell into the notebook at `path`; True where that changed the file.

    Raises `CourseError` when the notebook has not exactly one cell tagged `setup`.
    """

    def edit(notebook) -> None:
        cells = [cell for cell in notebook.cells if is_setup(cell)]
        if len(cells) != 1:
            raise CourseError(
                f"{path.name} has {len(cells)} cells tagged 'setup' where it needs one; tag its first code cell."
            )
        cells[0].source = setup_source()

    return edit_notebook(path, edit)
