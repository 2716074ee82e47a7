"""Values that may be judged: turned into plain types by their exact type, so that no object of a learner's is ever asked."""

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
"""Up to here every whole number is a float too."""


class UnfitError(CourseError):
    """A value that cannot be judged; the message says which and what to give instead."""


class UnansweredError(CourseError):
    """A value that is still `...`, as the stub left it."""


def plain(value: object, where: str = "", depth: int = 0) -> object:
    """`value` in exact built-in types and strided CPU tensors, copied; tuples become lists, NumPy's scalars, fractions and
    decimals numbers.

    Raises `UnfitError` for anything else, and `UnansweredError` for an `...`; `where` is what the message calls the value.
    """
    if value is ...:
        raise UnansweredError(f"{_name_place(where)} is still `...`; write your answer in its place.")
    if depth > DEEPEST:
        raise UnfitError(f"{_name_place(where)} is nested more than {DEEPEST} deep; give a flatter value.")
    if type(value) in _EXACT:
        return value
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        return _copy_tensor(value, where)
    if type(value) in (list, tuple):
        return [plain(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    if type(value) is dict:
        odd = [type(key).__name__ for key in value if type(key) is not str]
        if odd:
            raise UnfitError(f"{_name_place(where)} has a key of type {odd[0]}; only strings can be keys.")
        return {key: plain(item, f"{where}[{key!r}]" if where else key, depth + 1) for key, item in value.items()}
    kind = type(value)
    if kind in (Fraction, Decimal):
        return _to_float(value, where)
    is_scalar = hasattr(kind, "item") and (not hasattr(kind, "__len__") or kind.ndim.__get__(value) == 0)
    if kind.__module__ == "numpy" and is_scalar:
        number = kind.item(value)
        if type(number) in _EXACT:
            return number
    is_known = kind.__module__ in ("builtins", "__main__")
    name = kind.__name__ if is_known else f"{kind.__module__}.{kind.__name__}"
    raise UnfitError(f"{_name_place(where)} is of type {name}; the check takes {_ALLOWED} only.")


def conform(expected: object, got: object) -> object:
    """Plain values `got` in the form of those `expected`, where another form says the same.

    This is the one rule on forms, for every question. Where a number is expected, a tensor of one element is that number, and
    where a truth value is, that truth value; a tensor is a list where a list is expected; strings and the names of a dict may
    differ from what is right in upper and lower case and in the spaces around them. A number is no tensor, because a tensor
    also has a dtype, a shape and a graph. Where a rule stands in the place of a value, `got` stays as it is.
    """
    if isinstance(got, torch.Tensor) and type(expected) in (bool, int, float, list):
        if type(expected) is list:
            got = got.tolist() if got.ndim else got
        elif got.numel() == 1 and (got.dtype == torch.bool) == (type(expected) is bool):
            return got.item()
    if type(expected) is str and type(got) is str:
        return expected if fold(got) == fold(expected) else got
    if type(expected) is list and type(got) is list:
        rest = got[len(expected) :]
        return [*map(conform, expected, got), *rest]
    if type(expected) is dict and type(got) is dict:
        named = respell(got, expected)
        return {name: conform(expected[name], value) if name in expected else value for name, value in named.items()}
    return got


def respell(values: dict, names: Collection[str]) -> dict:
    """`values` under the names in `names` that differ from theirs in case and spaces around only, where no two are alike."""
    by_fold = {fold(name): name for name in names}
    if len(by_fold) < len(names) or len({fold(name) for name in values}) < len(values):
        return values
    return {by_fold.get(fold(name), name): value for name, value in values.items()}


def fold(text: str) -> str:
    """What is left of a string when neither case nor the spaces around it count."""
    return text.strip().casefold()


def whole(value: object) -> object:
    """A float that is a whole number as an int; anything else as it is."""
    is_whole = type(value) is float and value.is_integer() and abs(value) <= EXACT_WHOLE
    return int(value) if is_whole else value


def _to_float(value: Fraction | Decimal, where: str) -> float | int:
    try:
        number = float(value)
    except (OverflowError, ValueError):
        number = inf
    if type(number) is not float or number in (inf, -inf):
        raise UnfitError(f"{_name_place(where)} is beyond every float; give a smaller number.")
    return number


def _name_place(where: str) -> str:
    return f"`{where}`" if where else "The answer"


def _copy_tensor(tensor: torch.Tensor, where: str) -> torch.Tensor:
    name = _name_place(where)
    if tensor.device.type != "cpu":
        raise UnfitError(
            f"{name} is on the device {tensor.device}, but the inputs are on cpu; create it where they are."
        )
    if tensor.layout is not torch.strided:
        raise UnfitError(f"{name} is a tensor in the layout {tensor.layout}; give a dense one.")
    return tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


def same(a: object, b: object) -> bool:
    """Whether two values are the same to the last bit, NaN included, and tensors ask for a gradient and have one alike; used to
    see that inputs were left alone."""
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
