"""The first code cell of every notebook: it brings the package where it is missing (Colab), then opens the chapter.

`%pip` installs into the kernel's own Python, on every system. Without `--upgrade`, pip leaves alone what is installed and
satisfies our lower bounds, such as a notebook service's own torch and numpy. `-qqq` keeps a failed download to one line at most;
the `assert` then says in one sentence what to do.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from course_staff.notebooks.address import repository_address
from course_staff.notebooks.files import edit_notebook
from course_utils.errors import CourseError

if TYPE_CHECKING:
    from nbformat import NotebookNode

_FETCH = """\
from importlib.util import find_spec

if not find_spec("course_utils"):
    %pip install -qqq "course-utils[course] @ git+{address}"
why = "The course could not be fetched: check the network, then run this cell again."
"""
# For as long as the repository has no address.
_FROM_WHEEL = '''\
from glob import glob
from importlib.util import find_spec

if not find_spec("course_utils") and (wheels := glob("course_utils-*.whl")):
    %pip install -qqq "{wheels[-1]}[course]"
why = """The course is not installed here. Type `make wheel` in its folder, put the file that it writes beside this
notebook (in Colab: under Files), and run this cell again. Or install the folder itself: `%pip install FOLDER[course]`."""
'''
_BEGIN = """\
assert find_spec("course_utils"), why

from course_utils.chapters import begin

begin()"""


def setup_source(address: str | None = None) -> str:
    """The set-up cell's source, fetching from `address` (by default the repository's own; from a wheel where it is empty)."""
    address = repository_address() if address is None else address
    return (_FETCH.replace("{address}", address) if address else _FROM_WHEEL) + _BEGIN


def is_setup(cell: dict) -> bool:
    """Whether a notebook's cell carries the tag `setup`."""
    return cell["cell_type"] == "code" and "setup" in cell["metadata"].get("tags", [])


def stamp(path: Path, address: str | None = None) -> bool:
    """Write `setup_source(address)` into the notebook at `path`; True where that changed the file.

    Raises `CourseError` when the notebook has not exactly one cell tagged `setup`.
    """

    def edit(notebook: "NotebookNode") -> None:
        cells = [cell for cell in notebook.cells if is_setup(cell)]
        if len(cells) != 1:
            raise CourseError(
                f"{path.name} has {len(cells)} cells tagged 'setup' where it needs one; tag its first code cell."
            )
        cells[0].source = setup_source(address)

    return edit_notebook(path, edit)
