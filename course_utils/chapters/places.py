"""Where the course lies on this machine."""

from dataclasses import dataclass
from pathlib import Path

from course_utils.errors import CourseError


@dataclass(frozen=True)
class Place:
    """A checkout of the course."""

    root: Path

    @property
    def notebooks(self) -> Path:
        """The folder of the chapters."""
        return self.root / "notebooks"

    @property
    def start(self) -> Path:
        """The chapter to begin with."""
        return self.notebooks / "00_start_here.ipynb"


def find_place(start: Path | None = None) -> Place:
    """The checkout that `start` (by default the working directory) lies in, or else the one this package was imported from.

    Raises `CourseError` where there is neither, as when only the package was installed.
    """
    here = (start or Path.cwd()).absolute()
    for folder in (here, *here.parents, Path(__file__).parents[2]):
        if (folder / "notebooks").is_dir() and (folder / "course_utils").is_dir():
            return Place(folder)
    raise CourseError(f"There are no chapters in or above {here}; change to a clone of the course's repository.")


def chapters_in(folder: Path, names: list[str] | None = None) -> list[Path]:
    """The notebooks of `folder` in order, or those whose file names begin with one of `names`, in that order.

    A name may also be a path to a notebook. Raises `CourseError`, listing the chapters, on a name that fits none.
    """
    every = sorted(folder.glob("*.ipynb"))
    if not names:
        return every
    return [path for name in names for path in _chapters_called(name, every)]


def _chapters_called(name: str, every: list[Path]) -> list[Path]:
    if name.endswith(".ipynb") and Path(name).is_file():
        return [Path(name).absolute()]
    found = [path for path in every if path.name.startswith(name)]
    if not found:
        known = ", ".join(path.stem for path in every) or "none yet"
        raise CourseError(f"No chapter is called {name!r}; the chapters are: {known}.")
    return found
