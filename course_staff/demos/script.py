"""A demo as it is written: a TOML file called as its chapter, in the folder `demos` beside it."""

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from course_utils.chapters import some
from course_utils.errors import CourseError

FOLDER = "demos"
_KEYS = {
    "the demo": {"title", "minutes", "steps"},
    "a step": {"title", "minutes", "say", "then", "covered", "cell", "needs", "click", "expect"},
    "what is expected": {"text", "picture", "numbers"},
    "a number": {"of", "is", "within", "says"},
}


@dataclass(frozen=True)
class Number:
    """An expression over the kernel's names, what it comes to, the relative error that is allowed, and all that in words.

    Without words it is rehearsed, and not shown.
    """

    of: str
    value: float
    within: float = 0.0
    says: str = ""


@dataclass(frozen=True)
class Step:
    """One page: `say` are the presenter's words, `then` those after the class has seen; `cell` is run and shown, or waits
    `covered` until everybody has made a bet; `click` sets controls of its figure by name.

    Expected are words in the cell's output (`text`), words in the description of its last picture after the clicks
    (`picture`), and `numbers` in the kernel.
    """

    title: str
    minutes: float
    say: str
    then: str
    covered: bool
    cell: str | None
    needs: tuple[str, ...]
    click: dict
    text: tuple[str, ...]
    picture: tuple[str, ...]
    numbers: tuple[Number, ...]


@dataclass(frozen=True)
class Demo:
    """A chapter's demo; its cells are those of the notebook of the same name."""

    path: Path
    title: str
    minutes: float
    steps: tuple[Step, ...]

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
    every = sorted((notebooks / FOLDER).glob("*.toml"))
    stems = [path.stem for path in every]
    return [every[stems.index(stem)] for name in names for stem in some(name, stems, "demo")] if names else every


def read_demo(path: Path) -> Demo:
    """The demo at `path`; raises `CourseError`, saying which step, where it is not one."""
    try:
        written = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CourseError(f"{path.name} cannot be read as TOML ({error}); put that right.") from None
    try:
        return _demo(path, written)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CourseError(
            f"{path.name} is no demo ({_reason(error)}); see docs/demos.md for what belongs in it."
        ) from None


def _demo(path: Path, written: dict) -> Demo:
    _check_keys("the demo", written)
    steps = tuple(_step(number, step) for number, step in enumerate(written.get("steps", []), start=1))
    if not steps:
        raise ValueError("it has no steps")
    together = sum(step.minutes for step in steps)
    if abs(together - written["minutes"]) > 1e-9:
        raise ValueError(f"its steps take {together:g} minutes together, but it says {written['minutes']:g}")
    return Demo(path, str(written["title"]), written["minutes"], steps)


def _step(number: int, written: dict) -> Step:
    try:
        _check_keys("a step", written)
        expected = written.get("expect", {})
        _check_keys("what is expected", expected)
        return Step(
            title=_words(written, "title"),
            minutes=_positive(written["minutes"]),
            say=_words(written, "say"),
            then=_words(written, "then") if "then" in written else "",
            covered=_flag(written, "covered"),
            cell=written.get("cell"),
            needs=_strings(written, "needs"),
            click=dict(written.get("click", {})),
            text=_strings(expected, "text"),
            picture=_strings(expected, "picture"),
            numbers=tuple(map(_number, expected.get("numbers", []))),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"step {number}: {_reason(error)}") from None


def _number(written: dict) -> Number:
    _check_keys("a number", written)
    return Number(_words(written, "of"), written["is"], float(written.get("within", 0.0)), written.get("says", ""))


def _words(written: dict, key: str) -> str:
    if not written[key].strip():
        raise ValueError(f"{key!r} is empty")
    return written[key].strip()


def _flag(written: dict, key: str) -> bool:
    if not isinstance(written.get(key, False), bool):
        raise ValueError(f"{key!r} is neither true nor false")
    return written.get(key, False)


def _strings(written: dict, key: str) -> tuple[str, ...]:
    values = written.get(key, [])
    if not isinstance(values, list) or not all(isinstance(value, str) and value for value in values):
        raise ValueError(f"{key!r} is not a list of texts")
    return tuple(values)


def _positive(minutes: float) -> float:
    if not minutes > 0:
        raise ValueError("'minutes' is not above 0")
    return minutes


def _check_keys(what: str, written: dict) -> None:
    unknown = sorted(set(written) - _KEYS[what])
    if unknown:
        raise ValueError(f"{', '.join(map(repr, unknown))} means nothing in {what}")


def _reason(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error)
