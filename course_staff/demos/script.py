"""A demo as it is written: a TOML file called as its chapter, in the folder `demos` beside it."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from course_utils.errors import CourseError
from course_utils.files import require_names
from course_utils.settings import SCALES


@dataclass(frozen=True)
class Number:
    """An expression over the kernel's names, its expected value, the relative error that is allowed, and all that in words.

    A number without words is rehearsed, but not shown.
    """

    of: str
    value: float
    within: float = 0.0
    says: str = ""


@dataclass(frozen=True)
class Step:
    """One page of a demo; what it runs is a `cell` of the chapter or `code` of its own."""

    title: str
    minutes: float
    say: str  # what the class reads
    then: str = ""  # what it reads once it has bet and seen
    notes: str = ""  # for the presenter alone
    covered: bool = False  # whether the output waits until everybody has made a bet
    cell: str | None = None
    code: str | None = None
    needs: Sequence[str] = ()
    click: Mapping = field(default_factory=dict)  # values for controls of the figure, by name
    text: Sequence[str] = ()  # words expected in the output
    picture: Sequence[str] = ()  # words expected in the description of the last picture after the clicks
    numbers: Sequence[Number] = ()  # expected in the kernel

    def __post_init__(self):
        for name in ("title", "say"):
            if not getattr(self, name):
                raise ValueError(f"{name!r} is empty")
        if self.cell and self.code:
            raise ValueError("it has both a cell and its own code; keep one")
        if self.covered and not self.then:
            raise ValueError("it is covered, but 'then' is empty; answer 'say' there")
        if not self.minutes > 0:
            raise ValueError("'minutes' is not above 0")


@dataclass(frozen=True)
class Demo:
    """A chapter's demo; its cells are those of the notebook of the same name, run at one scale of `course_utils.settings`."""

    path: Path
    title: str
    minutes: float
    steps: tuple[Step, ...]
    scale: str = "smoke"

    @property
    def name(self) -> str:
        """The chapter's name, such as `03_adamw`."""
        return self.path.stem

    @property
    def notebook(self) -> Path:
        """The chapter that the cells come from."""
        return self.path.parent.parent / f"{self.name}.ipynb"


def demos_in(notebooks: Path, names: Iterable[str] = ()) -> list[Path]:
    """The demos beside the chapters in `notebooks`, or those whose names begin with one of `names`.

    `3`, `03` and `03_adamw` are the same one. Raises `CourseError` on a name of none.
    """
    paths = sorted((notebooks / "demos").glob("*.toml"))
    stems = [path.stem for path in paths]
    selected = [stem for name in names for stem in require_names(name, stems, "demo")] if names else stems
    return [paths[stems.index(stem)] for stem in selected]


def read_demo(path: Path) -> Demo:
    """The demo at `path`; raises `CourseError`, saying which step, if it is not one."""
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8"))
        steps = tuple(_read_step(number, step) for number, step in enumerate(fields.pop("steps", ()), start=1))
        demo = Demo(path, steps=steps, **fields)
        total = sum(step.minutes for step in steps)
        if not steps:
            raise ValueError("it has no steps")
        if demo.scale not in SCALES:
            raise ValueError(f"its scale {demo.scale!r} is not one of {', '.join(SCALES)}")
        if abs(total - demo.minutes) > 1e-9:
            raise ValueError(f"its steps take {total:g} minutes in total, but it says {demo.minutes:g}")
    except (OSError, TypeError, ValueError) as error:
        raise CourseError(f"{path.name} is not a demo ({error}); see docs/demos.md for its format.") from None
    return demo


def _read_step(number: int, fields: dict) -> Step:
    try:
        expected = fields.pop("expect", {})
        numbers = [Number(value=number.pop("is"), **number) for number in expected.pop("numbers", ())]
        texts = {name: value.strip() if isinstance(value, str) else value for name, value in fields.items()}
        return Step(**texts, **expected, numbers=numbers)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"step {number}: {error}") from None
