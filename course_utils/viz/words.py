"""The words of a plot's alternative text: values with their unit, lines and seeds in a sentence, titles as sentences."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import NamedTuple

from course_utils.units import BYTE_UNITS, SECOND_UNITS, format_bytes, format_counted, format_seconds
from course_utils.viz.parts import unit_for

FEW_POINTS = 12
"""Up to so many points a line has a mark, a tick and a place in the text for each."""


class Unit(NamedTuple):
    """The unit of an axis: its `name`, and the `size` that values are divided by. `kind` is what the plots take as `unit`."""

    kind: str
    name: str
    size: float

    @classmethod
    def for_largest(cls, kind: str, largest: float) -> "Unit":
        if kind in ("bytes", "seconds"):
            return cls(kind, *unit_for(largest, BYTE_UNITS if kind == "bytes" else SECOND_UNITS))
        return cls(kind, "%", 0.01) if kind == "%" else cls(kind, "", 1)

    def label(self, quantity: str) -> str:
        return f"{quantity}, {self.name}" if self.name else quantity

    def say(self, value: float, number: str = ".3g") -> str:
        if not isfinite(value):
            return "diverged"
        if self.kind in ("bytes", "seconds"):
            return (format_bytes if self.kind == "bytes" else format_seconds)(value)
        return f"{value:{number if number.endswith('%') or self.kind != '%' else '.1%'}}"


def say_parts(parts: Mapping[str, float], unit: Unit, number: str, names_single: bool) -> str:
    """`'3.00 GiB, of it parameters 1.00 GiB, gradients 2.00 GiB'`; a single part has its name with `names_single`."""
    total = unit.say(sum(parts.values()), number)
    by_kind = [f"{kind} {unit.say(part, number)}" for kind, part in parts.items() if kind]
    if len(parts) > 1:
        return f"{total}, of it {', '.join(by_kind)}"
    return by_kind[0] if by_kind and names_single else total


def say_seeds(values: Sequence[float], unit: Unit, number: str) -> str:
    """`'1.00 to 2.00, mean 1.50'`, and how many diverged."""
    finite = [value for value in values if isfinite(value)]
    texts = [unit.say(value, number) for value in finite]
    if len(finite) > 1:
        low, high, mean = (unit.say(v, number) for v in (min(finite), max(finite), sum(finite) / len(finite)))
        texts = [f"{low} to {high}, mean {mean}"]
    if len(finite) < len(values):
        texts.append(f"{len(values) - len(finite)} diverged")
    return ", ".join(texts)


def say_line(line: Sequence[tuple[float, tuple[float, ...]]], unit: Unit, number: str) -> str:
    """All points of a short line, ends and extremes of a long one, with their range over seeds."""

    def say_point(place: float, values: tuple[float, ...]) -> str:
        mean = unit.say(sum(values) / len(values), number)
        reach = f" ({unit.say(min(values), number)} to {unit.say(max(values), number)})" if len(values) > 1 else ""
        return f"{mean}{reach} at {place:,.6g}"

    if len(line) <= FEW_POINTS:
        return ", ".join(say_point(*point) for point in line)
    text = f"from {say_point(*line[0])} to {say_point(*line[-1])}"
    for word, find in (("lowest", min), ("highest", max)):
        extreme = find(line, key=lambda point: sum(point[1]))
        if extreme[1] not in (line[0][1], line[-1][1]):
            text += f", {word} {say_point(*extreme)}"
    return text


def seeds_of(count: int) -> str:
    """`'Mean and range over 3 seeds.'`"""
    return f"Mean and range over {format_counted(count, 'seed')}."


def compose_alt(title: str, subject: str, sentences: Sequence[str] = ()) -> str:
    """The alternative text: the title, what is drawn, and what it says of each name."""
    names = f"{'; '.join(sentences)}." if sentences else ""
    return " ".join(filter(None, (as_sentence(title), f"{capitalize(subject)}." if subject else "", names)))


def as_sentence(title: str) -> str:
    """A title as a sentence, or one for each of its lines."""
    lines = [capitalize(line) for line in title.splitlines()]
    return " ".join(line if line.endswith((".", ":")) else f"{line}." for line in lines)


def capitalize(text: str) -> str:
    """The text on one line, its first word with a large letter; a symbol, such as v, stays small."""
    is_word = text[:2].isalpha() or text.startswith("a ")
    return (text[:1].upper() + text[1:] if is_word else text).replace("\n", " ")
