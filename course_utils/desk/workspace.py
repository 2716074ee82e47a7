"""A learner's own folder: chapters without outputs and exercises as released; renewed without touching what was written.

A hidden folder in it holds what was handed out last, so a later version of the course is merged three ways: notebooks cell by
cell, other files whole. Nothing that somebody wrote is lost: where both sides changed one cell, the learner's stays and the
course's follows it as text, which does not run; where both changed another file, the old one stays beside.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

from course_utils.errors import CourseError
from course_utils.files import Place, free_name, replacing
from course_utils.settings import settings, variables
from course_utils.units import format_counted

NAME, HANDED_OUT = "my-course", ".handed-out"
SOURCES = (
    "notebooks/*.ipynb",
    "exercises/*.ipynb",
    # The pages that chapters and exercises link to.
    *(f"docs/{name}.md" for name in ("glossary", "accuracy", "authors", "package", "plan", "train", "nodes", "died")),
)

_BESIDE = """\
**New from the course.** You changed or removed the older version of this cell, and your choice stands. This text does not run:
take over what you like, then delete it.
"""


def find_workspace(place: Place, folder: Path | None = None) -> Path:
    """`folder`, or the one that the working directory lies in, or `my-course` in COURSE_HOME, or else in the checkout."""
    if folder is not None:
        return folder.expanduser().absolute()
    here = Path.cwd()
    around = next((parent for parent in (here, *here.parents) if (parent / HANDED_OUT).is_dir()), None)
    return around or (settings().home if variables("COURSE_HOME") else place.root) / NAME


def hand_out(place: Place, folder: Path) -> Iterator[str]:
    """Bring `folder` to the version of the checkout at `place`, and yield what its owner should know, a line each.

    Raises `CourseError` if it cannot be written, lies on the checkout itself, or a notebook of the checkout is damaged.
    """
    fresh, renewed = not (folder / HANDED_OUT).is_dir(), []
    for source in sorted(path for pattern in SOURCES for path in place.root.glob(pattern)):
        inside = source.relative_to(place.root)
        if (folder / "course_utils").is_dir() or (folder / inside).resolve() == source.resolve():
            raise CourseError(f"{folder} contains the course's own notebooks; name another folder with --folder.")
        try:
            changed, remark = _renew(folder / inside, folder / HANDED_OUT / inside, without_outputs(source))
        except OSError as error:
            raise CourseError(
                f"{folder / inside} cannot be read or written ({error.strerror}); fix its permissions, or name another "
                "folder with --folder or COURSE_HOME."
            ) from None
        if changed:
            renewed.append(inside.as_posix())
        if remark:
            yield f"{inside.as_posix()}: {remark}"
    if fresh:
        yield f"Your copies of the chapters and exercises are in {folder}."
    elif renewed:
        yield f"Updated {', '.join(renewed)} in {folder}; your changes stay."


def merge(mine: list[dict], base: list[dict], new: list[dict]) -> tuple[list[dict], int]:
    """`new` cells with all that the learner wrote, changed or removed since `base`; and how many cells both changed.

    Where both changed a cell, or one removed what the other changed, the learner's decision stands and the course's new cell
    follows as text. It takes the place of the one of an earlier merge, unless the learner wrote in that.
    A cell of the learner's own follows the cell that it followed.
    """
    mine_by_id, base_by_id, new_by_id = ({cell.get("id"): cell for cell in cells} for cells in (mine, base, new))
    shown = {name: _as_text(cell) for name, cell in new_by_id.items()}
    changed = [cell for name, cell in base_by_id.items() if _text(cell) != _text(new_by_id.get(name))]
    outdated = {(cell["id"], cell["source"]) for cell in map(_as_text, changed)}
    mine = [cell for cell in mine if (cell.get("id"), "".join(cell["source"])) not in outdated]
    merged, conflicts = [], 0
    for name, cell in new_by_id.items():
        own, old = mine_by_id.get(name), base_by_id.get(name)
        if _text(own) == _text(old) != _text(cell):  # new, or changed by the course alone
            merged.append(cell)
            continue
        merged += [own] if own else []
        if _text(cell) not in (_text(old), _text(own)):
            merged += [shown[name]] if shown[name]["id"] not in mine_by_id else []
            conflicts += 1
    last = -1
    for cell in mine:
        name = cell.get("id")
        if name in new_by_id and mine_by_id[name] is cell:
            versions = cell, new_by_id[name], shown[name]
            last = max((i for i, other in enumerate(merged) if other in versions), default=last)
        elif name is None or name in new_by_id or _text(cell) != _text(base_by_id.get(name)):
            last += 1
            merged.insert(last, cell)
            conflicts += name in base_by_id and name not in new_by_id
    return merged, conflicts


def _renew(path: Path, handed: Path, new: bytes) -> tuple[bool, str]:
    """Merge `new` into the file at `path`, `handed` holding what was handed out; whether it changed, and what to say."""
    mine, base = (file.read_bytes() if file.is_file() else None for file in (path, handed))
    merged, remark, is_replaced = new, "", False
    if mine is not None and path.suffix == ".ipynb":
        merged, remark, is_replaced = _merge_notebooks(mine, base, new)
    elif mine not in (None, base, new):
        is_replaced = base != new
        merged, remark = (new, "you and the course both changed it") if is_replaced else (mine, "")
    if is_replaced:
        copy = free_name(path)
        _write(copy, mine)
        remark += f"; the old file is saved as {copy.name}."
    if merged != mine:
        _write(path, merged)
    if new != base:
        _write(handed, new)
    return merged != mine, remark


def _merge_notebooks(mine: bytes, base: bytes | None, new: bytes) -> tuple[bytes, str, bool]:
    """The merged notebook, what to say of it, and whether it replaces `mine` because that could not be read."""
    try:
        notebook = _parse(mine)
    except ValueError:
        return new, "it could not be read, so you have a new one", True
    if base == new:
        return mine, "", False
    try:
        before = _parse(base or b"")["cells"]
    except ValueError:
        before = []
    cells, conflicts = merge(notebook["cells"], before, _parse(new)["cells"])
    count = format_counted(conflicts, "cell")
    remark = f"you and the course both changed {count}: yours stays, and the course's version follows as text."
    merged = mine if cells == notebook["cells"] else _dump(notebook | {"cells": cells})
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
    """A notebook; raises `ValueError` if it is none."""
    notebook = json.loads(text)
    cells = notebook.get("cells") if isinstance(notebook, dict) and notebook.get("nbformat") == 4 else None
    if not (
        isinstance(cells, list) and all(isinstance(cell, dict) and {"cell_type", "source"} <= {*cell} for cell in cells)
    ):
        raise ValueError("no notebook of format 4")
    return notebook


def _dump(notebook: dict) -> bytes:
    return (json.dumps(notebook, indent=1, ensure_ascii=False) + "\n").encode()


def _text(cell: dict | None) -> tuple | None:
    return cell and (cell["cell_type"], "".join(cell["source"]))


def _as_text(cell: dict) -> dict:
    """The course's version of a cell beside the learner's: Markdown, so that it takes the place of nothing that runs."""
    kind, text = _text(cell)
    fence = max(["``", *re.findall("`{3,}", text)], key=len) + "`"
    quoted = text if kind == "markdown" else f"{fence}{'python' if kind == 'code' else ''}\n{text}\n{fence}"
    version = hashlib.sha256(f"{kind} {text}".encode()).hexdigest()[:8]
    return {
        "id": f"{cell['id'][:40]}-course-{version}",
        "cell_type": "markdown",
        "metadata": {"tags": ["course-version"]},
        "source": "\n".join([_BESIDE, *(f"> {line}" for line in quoted.split("\n"))]),
    }


def _write(path: Path, content: bytes) -> None:
    with replacing(path) as draft:
        draft.write_bytes(content)
