"""A learner's own folder: chapters without outputs and exercises as released, updated without losing the learner's work.

A hidden folder in it holds what was handed out last, so a later version of the course is merged three ways: notebooks cell by
cell, other files as a whole. If both sides changed one cell, the learner's stays and the course's follows it as text, which does
not run; if both changed another file, the learner's is renamed.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

from course_utils.errors import CourseError
from course_utils.files import Place, atomic_write, free_name
from course_utils.settings import settings, variables
from course_utils.units import format_counted

WORKSPACE_NAME, HANDED_OUT = "my-course", ".handed-out"
SOURCES = (
    "notebooks/*.ipynb",
    "exercises/*.ipynb",
    # The pages that chapters and exercises link to.
    *(f"docs/{name}.md" for name in ("glossary", "accuracy", "authors", "package", "plan", "train", "nodes", "died")),
)

Cells = dict[str, dict]
"""A notebook's cells by id."""
_NEW_VERSION_NOTE = """\
**New from the course.** You changed or removed the older version of this cell, and your choice stands. This text does not run:
take over what you like, then delete it.
"""


def find_workspace(place: Place, folder: Path | None = None) -> Path:
    """`folder`, or the workspace around the working directory, or `my-course` in COURSE_HOME, or else in the checkout."""
    if folder is not None:
        return folder.expanduser().absolute()
    cwd = Path.cwd()
    workspace = next((parent for parent in (cwd, *cwd.parents) if (parent / HANDED_OUT).is_dir()), None)
    return workspace or (settings().home if variables("COURSE_HOME") else place.root) / WORKSPACE_NAME


def hand_out(place: Place, folder: Path) -> Iterator[str]:
    """Bring `folder` to the version of the checkout at `place`, and yield lines on what changed.

    Raises `CourseError` if it cannot be written, lies on the checkout itself, or a notebook of the checkout is damaged.
    """
    is_new = not (folder / HANDED_OUT).is_dir()
    renewed = []
    for source in sorted(path for pattern in SOURCES for path in place.root.glob(pattern)):
        relative = source.relative_to(place.root)
        if (folder / "course_utils").is_dir() or (folder / relative).resolve() == source.resolve():
            raise CourseError(f"{folder} contains the course's own notebooks; name another folder with --folder.")
        try:
            is_changed, remark = _renew(folder / relative, folder / HANDED_OUT / relative, without_outputs(source))
        except OSError as error:
            raise CourseError(
                f"{folder / relative} cannot be read or written ({error.strerror}); fix its permissions, or name another "
                "folder with --folder or COURSE_HOME."
            ) from None
        if is_changed:
            renewed.append(relative.as_posix())
        if remark:
            yield f"{relative.as_posix()}: {remark}"
    if is_new:
        yield f"Your copies of the chapters and exercises are in {folder}."
    elif renewed:
        yield f"Updated {', '.join(renewed)} in {folder}; your changes stay."


def merge(current: list[dict], base: list[dict], new: list[dict]) -> tuple[list[dict], int]:
    """The `new` cells with all that the learner wrote, changed or removed since `base`; and how many cells both changed.

    If both changed a cell, or one removed what the other changed, the learner's decision stands and the course's new cell
    follows as text. It replaces that of an earlier merge, unless the learner wrote in it. The learner's further cells stay
    after the cells that they follow.
    """
    current_by_id, base_by_id, new_by_id = ({cell.get("id"): cell for cell in cells} for cells in (current, base, new))
    changed_cells = [cell for name, cell in base_by_id.items() if _content(cell) != _content(new_by_id.get(name))]
    outdated = {(cell["id"], cell["source"]) for cell in map(_as_text, changed_cells)}
    current = [cell for cell in current if (cell.get("id"), "".join(cell["source"])) not in outdated]
    merged, conflicts = _place_course_cells(current_by_id, base_by_id, new_by_id)
    return merged, conflicts + _insert_other_cells(merged, current, base_by_id, new_by_id)


def _place_course_cells(current: Cells, base: Cells, new: Cells) -> tuple[list[dict], int]:
    """The `new` cells, each as the learner has it if they changed it; and how many cells both changed."""
    merged, conflicts = [], 0
    for name, cell in new.items():
        learner_cell, base_cell = current.get(name), base.get(name)
        if _content(learner_cell) == _content(base_cell) != _content(cell):  # new, or changed by the course alone
            merged.append(cell)
            continue
        if learner_cell:
            merged.append(learner_cell)
        if _content(cell) not in (_content(base_cell), _content(learner_cell)):
            conflicts += 1
            if _as_text(cell)["id"] not in current:
                merged.append(_as_text(cell))
    return merged, conflicts


def _insert_other_cells(merged: list[dict], current: list[dict], base: Cells, new: Cells) -> int:
    """Insert the learner's further cells into `merged`; returns how many of these the course has removed."""
    current_by_id = {cell.get("id"): cell for cell in current}
    last, conflicts = -1, 0
    for cell in current:
        name = cell.get("id")
        if name in new and current_by_id[name] is cell:
            versions = cell, new[name], _as_text(new[name])
            last = max((i for i, other in enumerate(merged) if other in versions), default=last)
        elif name is None or name in new or _content(cell) != _content(base.get(name)):
            last += 1
            merged.insert(last, cell)
            conflicts += name in base and name not in new
    return conflicts


def _renew(path: Path, base_path: Path, new: bytes) -> tuple[bool, str]:
    """Merge `new` into the file at `path`, handed out as `base_path`; returns whether it changed, and a remark."""
    current, base = (file.read_bytes() if file.is_file() else None for file in (path, base_path))
    merged, remark, is_replaced = new, "", False
    if current is not None and path.suffix == ".ipynb":
        merged, remark, is_replaced = _merge_notebooks(current, base, new)
    elif current not in (None, base, new):
        is_replaced = base != new
        merged, remark = (new, "you and the course both changed it") if is_replaced else (current, "")
    if is_replaced:
        copy = free_name(path)
        _write(copy, current)
        remark += f"; the old file is saved as {copy.name}."
    if merged != current:
        _write(path, merged)
    if new != base:
        _write(base_path, new)
    return merged != current, remark


def _merge_notebooks(current: bytes, base: bytes | None, new: bytes) -> tuple[bytes, str, bool]:
    """The merged notebook, a remark, and whether it replaces `current` because that could not be read."""
    try:
        notebook = _parse(current)
    except ValueError:
        return new, "it could not be read, so you have a new one", True
    if base == new:
        return current, "", False
    try:
        base_cells = _parse(base or b"")["cells"]
    except ValueError:
        base_cells = []
    cells, conflicts = merge(notebook["cells"], base_cells, _parse(new)["cells"])
    count = format_counted(conflicts, "cell")
    remark = f"you and the course both changed {count}: yours stays, and the course's version follows as text."
    merged = current if cells == notebook["cells"] else _dump(notebook | {"cells": cells})
    return merged, remark if conflicts else "", False


def without_outputs(source: Path) -> bytes:
    """The file as it is handed out: a notebook without outputs; raises `CourseError` for a damaged one."""
    if source.suffix != ".ipynb":
        return source.read_bytes()
    try:
        notebook = _parse(source.read_bytes())
        if len({cell["id"] for cell in notebook["cells"]}) < len(notebook["cells"]):
            raise ValueError("two cells have one id")
    except (ValueError, KeyError):
        raise CourseError(f"{source} is damaged; restore it with `git checkout`.") from None
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
    return _dump(notebook)


def _parse(text: bytes) -> dict:
    """The notebook in `text`; raises `ValueError` if there is none."""
    notebook = json.loads(text)
    cells = notebook.get("cells") if isinstance(notebook, dict) and notebook.get("nbformat") == 4 else None
    if not (
        isinstance(cells, list) and all(isinstance(cell, dict) and {"cell_type", "source"} <= {*cell} for cell in cells)
    ):
        raise ValueError("no notebook of format 4")
    return notebook


def _dump(notebook: dict) -> bytes:
    return (json.dumps(notebook, indent=1, ensure_ascii=False) + "\n").encode()


def _content(cell: dict | None) -> tuple[str, str] | None:
    """The type and the source of a cell; None if there is none."""
    return cell and (cell["cell_type"], "".join(cell["source"]))


def _as_text(cell: dict) -> dict:
    """The course's version of a cell as Markdown, which does not run, to put beside the learner's."""
    kind, text = _content(cell)
    fence = max(["``", *re.findall("`{3,}", text)], key=len) + "`"
    quoted = text if kind == "markdown" else f"{fence}{'python' if kind == 'code' else ''}\n{text}\n{fence}"
    version = hashlib.sha256(f"{kind} {text}".encode()).hexdigest()[:8]
    return {
        "id": f"{cell['id'][:40]}-course-{version}",
        "cell_type": "markdown",
        "metadata": {"tags": ["course-version"]},
        "source": "\n".join([_NEW_VERSION_NOTE, *(f"> {line}" for line in quoted.split("\n"))]),
    }


def _write(path: Path, content: bytes) -> None:
    with atomic_write(path) as draft:
        draft.write_bytes(content)
