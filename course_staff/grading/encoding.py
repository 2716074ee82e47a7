"""Values as bytes and back, in a form that cannot run code: JSON for the tree, raw memory for the tensors.

A message is the length of the JSON (8 bytes, big-endian), the JSON, then the tensors' elements one after the other, each as
it lies in memory: both ends are on the same machine. In the tree a container is a list that begins with its kind:
`["list", …]`, `["tuple", …]`, `["dict", key, value, key, value, …]`, `["tensor", dtype, shape, requires_grad]`.
"""

import json
import math
import struct
from collections.abc import Iterator

import torch

from course_utils.errors import CourseError

DEEPEST = 24
LONGEST_TREE = 16 * 2**20
LONGEST = 64 * 2**20
MOST_VALUES, MOST_TENSORS = 200_000, 20_000
"""Bytes of a whole message; `LONGEST_TREE` bytes of its JSON; `DEEPEST` containers within each other; `MOST_…` of what it holds:
an empty tensor takes 20 bytes of a message and a thousand of the judge's memory."""

_LENGTH = struct.Struct(">Q")
_SCALARS = (bool, int, float, str, type(None))
_BIGGEST = 10**4000  # Python itself refuses to read whole numbers of more than 4300 digits
_NAMES = (
    "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128 "
    "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz"
)
_DTYPES = {name: getattr(torch, name) for name in _NAMES.split()}


class EncodingError(CourseError):
    """Bytes that are no values, or values that cannot become bytes; the message is a sentence."""


def dump(values) -> bytes:
    """`values` (numbers, strings, truth values, None, CPU tensors, and lists, tuples and dicts of these) as bytes.

    Raises `EncodingError` for anything else, for what is nested deeper than `DEEPEST`, and for more than `LONGEST` bytes.
    """
    tensors: list[torch.Tensor] = []
    try:
        tree = json.dumps(_packed(values, tensors, 0), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise EncodingError("A string holds half of a surrogate pair, which is no text; give it whole.") from None
    length = len(tree) + sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if len(tree) > LONGEST_TREE or length > LONGEST:
        raise EncodingError(f"The values take {length:,} bytes, more than the {LONGEST:,} that are judged; give fewer.")
    return b"".join([_LENGTH.pack(len(tree)), tree, *map(_bytes, tensors)])


def load(message: bytes):
    """The values of a message of `dump`; raises `EncodingError` for anything that is none."""
    if not _LENGTH.size <= len(message) <= LONGEST + _LENGTH.size:
        raise EncodingError("The message is too short or too long to hold values.")
    end = _LENGTH.size + _LENGTH.unpack_from(message)[0]
    if not _LENGTH.size <= end <= min(len(message), LONGEST_TREE + _LENGTH.size):
        raise EncodingError("The message's length is not what it says.")
    rest = _Rest(message, end)
    try:
        values = _unpacked(json.loads(message[_LENGTH.size : end]), rest, 0)
    except (ValueError, RecursionError, TypeError, OverflowError, RuntimeError):
        raise EncodingError("The message is not made of values.") from None
    if rest.position != len(message):
        raise EncodingError("The message holds more than its values.")
    return values


class _Rest:
    """The tensors' bytes, read from front to back, and how many values were made so far."""

    def __init__(self, message: bytes, position: int):
        self.message, self.position = message, position
        self.values = self.tensors = 0

    def count(self, tensor: bool) -> None:
        self.values, self.tensors = self.values + 1, self.tensors + tensor
        if self.values > MOST_VALUES or self.tensors > MOST_TENSORS:
            raise EncodingError(
                f"It holds more than {MOST_VALUES:,} values or {MOST_TENSORS:,} tensors; give fewer, in larger tensors."
            )

    def take(self, length: int) -> bytearray:
        start, self.position = self.position, self.position + length
        if self.position > len(self.message):
            raise EncodingError("A tensor is longer than the message.")
        return bytearray(self.message[start : self.position])


def _packed(value, tensors: list, depth: int):
    if depth > DEEPEST:
        raise EncodingError(f"The values are nested more than {DEEPEST} deep; give flatter ones.")
    if type(value) in _SCALARS:
        return _scalar(value)
    if isinstance(value, torch.Tensor):
        return _packed_tensor(value, tensors)
    if type(value) in (list, tuple):
        return [type(value).__name__, *(_packed(item, tensors, depth + 1) for item in value)]
    if type(value) is dict and all(type(key) is str for key in value):
        return ["dict", *(part for key in value for part in (_scalar(key), _packed(value[key], tensors, depth + 1)))]
    raise EncodingError(
        f"A value of type {type(value).__name__} cannot cross to the judge; give numbers, text or tensors."
    )


def _scalar(value):
    if type(value) is int and abs(value) >= _BIGGEST:
        raise EncodingError("A whole number has more than 4,000 digits; give a smaller one.")
    return value


def _packed_tensor(tensor: torch.Tensor, tensors: list):
    dtype = str(tensor.dtype).removeprefix("torch.")
    if dtype not in _DTYPES or tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        raise EncodingError(
            f"A tensor of {tensor.dtype} on {tensor.device} cannot cross to the judge; give a dense CPU tensor."
        )
    tensors.append(tensor.detach())
    return ["tensor", dtype, list(tensor.shape), tensor.requires_grad]


def _bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if len(flat) else b""


def _unpacked(tree, rest: _Rest, depth: int):
    rest.count(type(tree) is list and tree[:1] == ["tensor"])
    if type(tree) in _SCALARS:
        return tree
    if depth > DEEPEST or type(tree) is not list or not tree or type(tree[0]) is not str:
        raise EncodingError("The message is not made of values, or nested too deep.")
    kind, *parts = tree
    if kind == "tensor":
        return _unpacked_tensor(rest, *parts)
    if kind == "dict":
        return dict(_pairs(parts, rest, depth))
    if kind not in ("list", "tuple"):
        raise EncodingError(f"The message has a value of an unknown kind {kind[:20]!r}.")
    return (list if kind == "list" else tuple)(_unpacked(part, rest, depth + 1) for part in parts)


def _pairs(parts: list, rest: _Rest, depth: int) -> Iterator[tuple]:
    if len(parts) % 2 or not all(type(key) is str for key in parts[::2]):
        raise EncodingError("A dict of the message has keys that are no strings, or a key without a value.")
    return ((key, _unpacked(value, rest, depth + 1)) for key, value in zip(parts[::2], parts[1::2], strict=True))


def _unpacked_tensor(rest: _Rest, name: str, shape: list, requires_grad: bool) -> torch.Tensor:
    if name not in _DTYPES or type(shape) is not list or not all(type(size) is int and size >= 0 for size in shape):
        raise EncodingError("A tensor of the message has a dtype or a shape that there is not.")
    if max(shape, default=0) > LONGEST or len(shape) > DEEPEST:
        raise EncodingError("A tensor of the message is too large.")
    dtype, count = _DTYPES[name], math.prod(shape)
    if not count:
        return torch.empty(shape, dtype=dtype)
    raw = torch.frombuffer(rest.take(count * dtype.itemsize), dtype=torch.uint8)
    flat = raw.ne(0) if dtype is torch.bool else raw.view(dtype)  # a truth value must be 0 or 1 in memory
    return flat.reshape(shape).requires_grad_(bool(requires_grad))
