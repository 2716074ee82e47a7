"""A notebook as the rules see it, and what they say where it breaks one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from course_staff.notebooks import markdown


@dataclass(frozen=True)
class Violation:
    """A broken rule; `cell` counts from 1 and is 0 where the whole notebook is meant."""

    chapter: str
    cell: int
    remark: str

    def __str__(self) -> str:
        place = f"{self.chapter}, cell {self.cell}" if self.cell else self.chapter
        return f"{place}: {self.remark}"


@dataclass(frozen=True)
class Chapter:
    """A notebook with its place; `address` is the one its set-up cell should fetch from."""

    path: Path
    notebook: dict[str, Any]
    address: str | None = field(default=None)

    @property
    def name(self) -> str:
        """The file's name."""
        return self.path.name

    @cached_property
    def cells(self) -> list[tuple[int, dict]]:
        """Every cell with its number, from 1."""
        return list(enumerate(self.notebook["cells"], start=1))

    @cached_property
    def code(self) -> list[tuple[int, dict]]:
        """The code cells with their numbers."""
        return [(number, cell) for number, cell in self.cells if cell["cell_type"] == "code"]

    @cached_property
    def prose(self) -> list[tuple[int, str]]:
        """The text of the Markdown cells with their numbers."""
        return [(number, cell["source"]) for number, cell in self.cells if cell["cell_type"] == "markdown"]

    @cached_property
    def headings(self) -> list[tuple[int, markdown.Heading]]:
        """Every heading with its cell's number."""
        return [(number, heading) for number, text in self.prose for heading in markdown.headings(text)]

    @cached_property
    def course_metadata(self) -> dict[str, Any]:
        """What the notebook says about itself to the course."""
        return self.notebook["metadata"].get("course", {})

    def says(self, cell: int, remark: str) -> Violation:
        """A violation in this chapter."""
        return Violation(self.name, cell, remark)


Rule = Callable[[Chapter], Iterator[Violation]]
