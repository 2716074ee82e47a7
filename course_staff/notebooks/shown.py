"""How much of the code by hand the chapters show, by their stored outputs of `viz.source`."""

import re
from collections.abc import Iterator
from pathlib import Path

from course_staff.notebooks.files import read_notebook
from course_utils.files import chapters_in

SHOWN_AT_LEAST = 0.9
"""The least share of the lines by hand that the chapters must show."""

ROOMS = ("autodiff", "optim", "precision", "techniques", "distributed")
# Of `distributed`: what starts ranks, waits for them and counts their traffic is no lesson.
_NOT_BY_HAND = ("launch", "worker", "preload", "torchrun", "traffic", "waiting", "communication")
_SOURCE = re.compile(r"`(?:course_utils\.)(?P<name>[\w.]+)`\n\n```python\n(?P<code>.*)\n```\s*", re.DOTALL)


def shown_lines(root: Path) -> dict[str, tuple[int, int]]:
    """How many lines of each file, such as `optim/adam.py`, are shown, and how many it has, blank ones left out."""
    package = root / "course_utils"
    paths = [path for room in ROOMS for path in sorted((package / room).rglob("*.py")) if _is_by_hand(path)]
    lines = {path.relative_to(package).as_posix(): _lines(path.read_text(encoding="utf-8")) for path in paths}
    shown_by_file = {name: set() for name in lines}
    for qualified_name, code in _sources(root / "notebooks"):
        for name in lines:
            if f"{qualified_name}.".startswith(f"{name.removesuffix('.py').replace('/', '.')}."):
                shown_by_file[name] |= _line_numbers(_lines(code), lines[name])
    return {name: (len(shown_by_file[name]), len(lines[name])) for name in lines}


def share(counts: dict[str, tuple[int, int]]) -> float:
    """The share of all lines that is shown."""
    return sum(count for count, _ in counts.values()) / max(1, sum(total for _, total in counts.values()))


def _is_by_hand(path: Path) -> bool:
    return path.stem != "__init__" and not (path.parent.name == "distributed" and path.stem in _NOT_BY_HAND)


def _sources(notebooks: Path) -> Iterator[tuple[str, str]]:
    """The name and the code of everything that a stored output shows."""
    for path in chapters_in(notebooks):
        for cell in read_notebook(path).cells:
            for output in cell.get("outputs", []):
                if match := _SOURCE.fullmatch(output.get("data", {}).get("text/markdown", "")):
                    yield match["name"], match["code"]


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _line_numbers(part: list[str], lines: list[str]) -> set[int]:
    """The indices of the `lines` that `part` shows; none if the stored output is older than the file."""
    starts = (start for start in range(len(lines) - len(part) + 1) if lines[start : start + len(part)] == part)
    return {start + offset for start in starts for offset in range(len(part))}
