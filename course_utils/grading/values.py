"""Plain values, which may be judged: made by a value's exact type, so that no method of a learner's object is called."""

from collections.abc import Collection
from decimal import Decimal
from fractions import Fraction
from math import inf

import torch

from course_utils.errors import CourseError

DEEPEST = 20
_EXACT = (bool, int, float, str, type(None))
_ALLOWED = "numbers, strings, truth values, None, tensors, and lists and dicts of these"
EXACT_WHOLE = 2**53
"""The largest number up to which every whole number is also a float."""


class UnfitError(CourseError):
    """A value that cannot be judged; the message says which and what to give instead."""


class UnansweredError(CourseError):
    """A value that is still `...`, as the stub left it."""


def plain(value: object, path: str = "", depth: int = 0) -> object:
    """`value` in exact built-in types and strided CPU tensors, copied; tuples become lists, NumPy's scalars, fractions and
    decimals numbers.

    Raises `UnfitError` for anything else, and `UnansweredError` for `...`; their messages call the value `path`.
    """
    if value is ...:
        raise UnansweredError(f"{_in_words(path)} is still `...`; write your answer in its place.")
    if depth > DEEPEST:
        raise UnfitError(f"{_in_words(path)} is nested more than {DEEPEST} deep; give a flatter value.")
    if type(value) in _EXACT:
        return value
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        return _copy_tensor(value, path)
    if type(value) in (list, tuple):
        return [plain(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
    if type(value) is dict:
        odd = [type(key).__name__ for key in value if type(key) is not str]
        if odd:
            raise UnfitError(f"{_in_words(path)} has a key of type {odd[0]}; only strings can be keys.")
        return {key: plain(item, f"{path}[{key!r}]" if path else key, depth + 1) for key, item in value.items()}
    kind = type(value)
    if kind in (Fraction, Decimal):
        return _to_float(value, path)
    is_scalar = hasattr(kind, "item") and (not hasattr(kind, "__len__") or kind.ndim.__get__(value) == 0)
    if kind.__module__ == "numpy" and is_scalar:
        number = kind.item(value)
        if type(number) in _EXACT:
            return number
    is_known = kind.__module__ in ("builtins", "__main__")
    name = kind.__name__ if is_known else f"{kind.__module__}.{kind.__name__}"
    raise UnfitError(f"{_in_words(path)} is of type {name}; the check takes {_ALLOWED} only.")


def conform(expected: object, actual: object) -> object:
    """The plain values `actual` in the form of `expected`, if only the form differs; for every question the same.

    Where a number or a truth value is expected, a tensor of one element is that number or truth value; where a list is, a tensor
    is a list. Strings and the names of a dict may differ in upper and lower case and in the spaces around them. A number is no
    tensor, because a tensor also has a dtype, a shape and a graph. Where a rule is expected, `actual` stays as it is.
    """
    if isinstance(actual, torch.Tensor) and type(expected) in (bool, int, float, list):
        if type(expected) is list:
            actual = actual.tolist() if actual.ndim else actual
        elif actual.numel() == 1 and (actual.dtype == torch.bool) == (type(expected) is bool):
            return actual.item()
    if type(expected) is str and type(actual) is str:
        return expected if fold(actual) == fold(expected) else actual
    if type(expected) is list and type(actual) is list:
        return [*map(conform, expected, actual), *actual[len(expected) :]]
    if type(expected) is dict and type(actual) is dict:
        actual = respell(actual, expected)
        return {name: conform(expected[name], value) if name in expected else value for name, value in actual.items()}
    return actual


def respell(values: dict, names: Collection[str]) -> dict:
    """`values` with their keys spelled as in `names`, whatever their case and the spaces around, unless two would be alike."""
    by_fold = {fold(name): name for name in names}
    if len(by_fold) < len(names) or len({fold(name) for name in values}) < len(values):
        return values
    return {by_fold.get(fold(name), name): value for name, value in values.items()}


def fold(text: str) -> str:
    """The text without its case and the spaces around it."""
    return text.strip().casefold()


def int_if_whole(value: object) -> object:
    """A float that is a whole number as an int; anything else as it is."""
    is_whole = type(value) is float and value.is_integer() and abs(value) <= EXACT_WHOLE
    return int(value) if is_whole else value


def _to_float(value: Fraction | Decimal, path: str) -> float | int:
    try:
        number = float(value)
    except (OverflowError, ValueError):
        number = inf
    if type(number) is not float or number in (inf, -inf):
        raise UnfitError(f"{_in_words(path)} is beyond every float; give a smaller number.")
    return number


def _in_words(path: str) -> str:
    return f"`{path}`" if path else "The answer"


def _copy_tensor(tensor: torch.Tensor, path: str) -> torch.Tensor:
    name = _in_words(path)
    if tensor.device.type != "cpu":
        raise UnfitError(
            f"{name} is on the device {tensor.device}, but the inputs are on cpu; create it where they are."
        )
    if tensor.layout is not torch.strided:
        raise UnfitError(f"{name} is a tensor in the layout {tensor.layout}; give a dense one.")
    return tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


def same(a: object, b: object) -> bool:
    """Whether two values are equal to the last bit, NaN included, and tensors also in `requires_grad` and in having a `grad`."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        traits, others = ((t.dtype, t.shape, t.device, t.requires_grad, t.is_leaf and t.grad is None) for t in (a, b))
        if traits != others:
            return False
        a, b = a.detach(), b.detach()
        return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b or (a != a and b != b))
