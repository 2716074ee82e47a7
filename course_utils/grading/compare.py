"""The first place where two sets of values differ, and by how much."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isfinite

import torch

from course_utils.errors import shorten
from course_utils.grading.question import Tolerance, Values

_MOST_BITS, _LONGEST_NAME, _MOST_NAMES = 100, 60, 3
# A distance in tolerances, from which on it goes without saying how far off a value is.
_OBVIOUSLY_WRONG = 1e6
STEPS = "steps"
"""A list of this name holds one entry per step, counted from 1 for the reader."""


@dataclass(frozen=True)
class Rule:
    """Stands in `expected` where no single value is right: `broken(value)` returns a sentence, or None if the rule holds."""

    broken: Callable[[object], str | None]


def at_most(limit: float) -> Rule:
    """A number up to `limit`, for costs."""

    def broken(actual: object) -> str | None:
        if type(actual) not in (int, float):
            return f"is {_name_kind(actual)} where a number is expected"
        return None if actual <= limit else f"is {_show(actual)} where at most {_show_limit(limit)} is allowed"

    return Rule(broken)


@dataclass(frozen=True)
class Difference:
    """The first difference, in the parts of a sentence: its subject, and two ends, of which one keeps the right value secret."""

    subject: str
    problem: str
    problem_without_value: str

    def sentence(self, reveal: bool = True) -> str:
        """One sentence for the learner; `reveal` lets it show the right value."""
        return f"{self.subject} {self.problem if reveal else self.problem_without_value}."


def compare(expected: Values, actual: Values, tolerance: Tolerance) -> Difference | None:
    """The first difference in the order of `expected`, or None if there is none.

    Both hold plain values only (see `values.plain`); `expected` may hold a `Rule` in place of a value.
    """
    return _compare(expected, actual, tolerance, ())


def _compare(expected: object, actual: object, tolerance: Tolerance, path: tuple) -> Difference | None:
    """Compare two values by their type; `path` has the names and indices that lead to them."""
    if isinstance(expected, Rule):
        try:
            problem = expected.broken(actual)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            problem = f"cannot be judged by the rule ({reason}); compare its form with the statement"
        return _differ(path, problem) if problem else None
    if isinstance(expected, torch.Tensor):
        return _compare_tensors(expected, actual, tolerance, path)
    if type(expected) is not type(actual) and _name_kind(expected) != _name_kind(actual):
        return _differ(path, f"is {_name_kind(actual)} where {_name_kind(expected)} is expected")
    if isinstance(expected, dict):
        return _compare_dicts(expected, actual, tolerance, path)
    if isinstance(expected, list):
        return _compare_lists(expected, actual, tolerance, path)
    if type(expected) in (int, float):
        return _compare_numbers(expected, actual, tolerance, path)
    if expected != actual:
        problem = f"is {_show(actual)} but should be {_show(expected)}"
        return _differ(path, problem, f"is {_show(actual)}, which is not right")
    return None


def _compare_dicts(expected: dict, actual: dict, tolerance: Tolerance, path: tuple) -> Difference | None:
    for name, value in expected.items():
        if name not in actual:
            return _differ((*path, name), f"is missing{_list_extra(expected, actual)}")
        difference = _compare(value, actual[name], tolerance, (*path, name))
        if difference:
            return difference
    extra = [name for name in actual if name not in expected]
    return _differ((*path, extra[0]), "is there, but was not asked for") if extra else None


def _list_extra(expected: dict, actual: dict) -> str:
    """The names that nobody asked for: one may be the missing name, misspelt."""
    names = [name for name in actual if name not in expected]
    rest = " and more" if len(names) > _MOST_NAMES else ""
    return f"; not asked for: {', '.join(map(_show, names[:_MOST_NAMES]))}{rest}" if names else ""


def _compare_lists(expected: list, actual: list, tolerance: Tolerance, path: tuple) -> Difference | None:
    for i, (a, b) in enumerate(zip(expected, actual, strict=False)):
        difference = _compare(a, b, tolerance, (*path, i))
        if difference:
            return difference
    if len(expected) != len(actual):
        return _differ(path, f"has the length {len(actual)} where {len(expected)} is expected", "has another length")
    return None


def _compare_numbers(expected: float, actual: float, tolerance: Tolerance, path: tuple) -> Difference | None:
    if actual != actual and expected == expected:
        return _differ(path, f"is NaN but should be {_show(expected)}", "is NaN")
    distance = distance_in_tolerances(expected, actual, tolerance)
    if distance <= 1:
        return None
    size = "too small" if actual < expected else "too large"
    return _differ(path, _say_expected(expected, actual, distance), f"is {_show(actual)}, which is {size}")


def distance_in_tolerances(expected: complex, actual: complex, tolerance: Tolerance) -> float:
    """|expected − actual| in units of what is allowed; 0 where they are the same, infinite where one is not finite."""
    if expected == actual or (expected != expected and actual != actual):
        return 0.0
    try:
        distance = float(abs(expected - actual))
        allowed = tolerance.absolute + tolerance.relative * abs(expected)
    except OverflowError:  # a whole number beyond every float
        return inf
    return distance / allowed if allowed and isfinite(distance) else inf


def _compare_tensors(expected: torch.Tensor, actual: object, tolerance: Tolerance, path: tuple) -> Difference | None:
    if not isinstance(actual, torch.Tensor):
        return _differ(path, f"is {_name_kind(actual)} where a tensor is expected")
    if actual.dtype != expected.dtype:
        return _differ(path, f"has the dtype {actual.dtype} where {expected.dtype} is expected")
    if actual.device != expected.device:
        return _differ(path, f"is on the device {actual.device} where {expected.device} is expected")
    if actual.shape != expected.shape:
        return _differ(path, f"has the shape {tuple(actual.shape)} where {tuple(expected.shape)} is expected")
    return _compare_elements(expected.detach(), actual.detach(), tolerance, path)


def _compare_elements(
    expected: torch.Tensor, actual: torch.Tensor, tolerance: Tolerance, path: tuple
) -> Difference | None:
    """Compare tensors of one shape and dtype, in the widest dtype of their kind."""
    if torch.equal(expected, actual):
        return None
    wide = torch.complex128 if expected.is_complex() else torch.float64
    if not (expected.is_floating_point() or expected.is_complex()):
        wide = torch.int64
    a, b = expected.to(wide), actual.to(wide)
    differs = a != b
    if wide != torch.int64:  # equal infinities and two NaNs agree, an infinity and a number never do
        differs = ~torch.isclose(b, a, rtol=tolerance.relative, atol=tolerance.absolute, equal_nan=True)
    count = int(differs.sum())
    if not count:
        return None
    index = tuple(differs.nonzero()[0].tolist())
    right, wrong = a[index].item(), b[index].item()
    others = f"; {count} of {differs.numel()} elements differ" if differs.numel() > 1 else ""
    if wrong != wrong:
        return _differ(path, f"is NaN but should be {_show(right)}{others}", "is NaN", index)
    problem = _say_expected(right, wrong, distance_in_tolerances(right, wrong, tolerance)) + others
    return _differ(path, problem, f"is {_show(wrong)}, which is not right", index)


def _say_expected(right: complex, wrong: complex, distance: float) -> str:
    ratio = f", {_say_how_far(distance)} is allowed" if distance < _OBVIOUSLY_WRONG else ""
    return f"is {_show(wrong)} but should be {_show(right)}{ratio}"


def _say_how_far(number: float) -> str:
    if number < 1.1:
        return "a little further off than"
    return f"{number:,.0f} times as far off as" if number >= 100 else f"{number:.2g} times as far off as"


def _differ(path: tuple, problem: str, guarded: str = "", index: tuple[int, ...] = ()) -> Difference:
    """The difference at `path`: `("a", "b", 2)` is called `a · b[2]`, and `("steps", 2, "a")` is `a` after step 3."""
    step, names = "", []
    for previous, part in zip((None, *path), path, strict=False):
        if previous == STEPS and isinstance(part, int):
            step = f"After step {part + 1}, "
            names.pop()
        elif isinstance(part, int):
            names[-1:] = [f"{names[-1]}[{part}]" if names else f"[{part}]"]
        else:
            names.append(part[:_LONGEST_NAME])
    name = " · ".join(names) or "the answer"
    return Difference(f"{step}`{name}{list(index) if index else ''}`", problem, guarded or problem)


def _name_kind(value: object) -> str:
    """The type of a value in words; whole numbers and floats are one kind, truth values another."""
    if isinstance(value, torch.Tensor):
        return "a tensor"
    names = {bool: "a truth value", int: "a number", float: "a number", str: "a string", type(None): "None"}
    return {**names, list: "a list or tuple", dict: "a dict"}.get(type(value), f"of type {type(value).__name__}")


def _show_limit(limit: float) -> str:
    if float(limit).is_integer():
        return _show(int(limit))
    return f"{limit:,.2f}" if limit > 1 else _show(limit)


def _show(value: object) -> str:
    """A value in a sentence: whole numbers in full, others to 10 significant digits, strings as code, long ones cut."""
    if type(value) is int:
        return f"{value:,}" if value.bit_length() <= _MOST_BITS else f"a whole number of {value.bit_length():,} bits"
    if type(value) in (float, complex):
        return f"{value:.10g}"
    if type(value) is not str:
        return repr(value)
    plain = "".join(c if c.isprintable() and c != "`" else "�" for c in value)
    return f"`{shorten(plain, _LONGEST_NAME)}`" if value else "an empty string"
