"""Values that may be judged: turned into plain types by their exact type, so that no object of a learner's is ever asked."""

import torch

from course_utils.errors import CourseError

DEEPEST = 20
_EXACT = (bool, int, float, str, type(None))
_ALLOWED = "numbers, strings, truth values, None, tensors, and lists and dicts of these"


class UnfitError(CourseError):
    """A value that cannot be judged; the message says which and what to give instead."""


class UnansweredError(CourseError):
    """A value that is still `...`, as the stub left it."""


def plain(value, where: str = "", depth: int = 0):
    """`value` in exact built-in types and strided CPU tensors, copied; tuples become lists, NumPy's scalars numbers.

    Raises `UnfitError` for anything else, and `UnansweredError` for an `...`; `where` is what the message calls the value.
    """
    if value is ...:
        raise UnansweredError(f"{_name_place(where)} is still `...`; write your answer in its place.")
    if depth > DEEPEST:
        raise UnfitError(f"{_name_place(where)} is nested more than {DEEPEST} deep; give a flatter value.")
    if type(value) in _EXACT:
        return value
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        return _tensor(value, where)
    if type(value) in (list, tuple):
        return [plain(item, f"{where}[{i}]", depth + 1) for i, item in enumerate(value)]
    if type(value) is dict:
        odd = [type(key).__name__ for key in value if type(key) is not str]
        if odd:
            raise UnfitError(f"{_name_place(where)} has a key of type {odd[0]}; only strings can be keys.")
        return {key: plain(item, f"{where}[{key!r}]" if where else key, depth + 1) for key, item in value.items()}
    kind = type(value)
    if kind.__module__ == "numpy" and hasattr(kind, "item") and not hasattr(kind, "__len__"):
        number = kind.item(value)
        if type(number) in _EXACT:
            return number
    is_known = kind.__module__ in ("builtins", "__main__")
    name = kind.__name__ if is_known else f"{kind.__module__}.{kind.__name__}"
    raise UnfitError(f"{_name_place(where)} is of type {name}; the check takes {_ALLOWED} only.")


def _name_place(where: str) -> str:
    return f"`{where}`" if where else "The answer"


def _tensor(tensor: torch.Tensor, where: str) -> torch.Tensor:
    name = _name_place(where)
    if tensor.device.type != "cpu":
        raise UnfitError(
            f"{name} is on the device {tensor.device}, but the inputs are on cpu; create it where they are."
        )
    if tensor.layout is not torch.strided:
        raise UnfitError(f"{name} is a tensor in the layout {tensor.layout}; give a dense one.")
    return tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


def same(a, b) -> bool:
    """Whether two values are the same to the last bit, NaN included; used to see that inputs were left alone."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        if (a.dtype, a.shape, a.device) != (b.dtype, b.shape, b.device):
            return False
        a, b = a.detach(), b.detach()
        return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b or (a != a and b != b))
