"""How a learner's process answers the judge: values as bytes, in a form that cannot run code, and these bytes over a pipe.

The bytes of values are the length of a JSON text (8 bytes, big-endian), the text, then the tensors' elements one after the other,
each as it lies in memory: both ends are on the same machine. In the text a list is a list, a dict is `{"dict": {…}}`, a tensor is
`{"tensor": [dtype, shape]}`. A message over a pipe is its length (8 bytes, big-endian), then itself. `oracles.py` writes such
a tree, with the elements in it, to a JSON file; its values are trusted, so it sets no limits.
"""

import json
import math
import os
import struct

import torch

from course_utils.errors import CourseError
from course_utils.grading.values import DEEPEST

DEEPEST_MESSAGE = DEEPEST + 4  # containers within each other: a value's, and the reply's around it
LONGEST_TEXT = 400  # characters of a text that comes back beside the values; both ends cut it
LONGEST_TREE = 16 * 2**20  # bytes of a message's JSON
LONGEST_MESSAGE = 64 * 2**20  # bytes
MOST_VALUES = 200_000
MOST_TENSORS = 20_000  # an empty one takes 20 bytes of a message, and a thousand of the judge's memory

_LENGTH = struct.Struct(">Q")
_BIGGEST = 10**4000  # Python itself refuses to read whole numbers of more than 4300 digits
_NAMES = (
    "bool uint8 uint16 uint32 uint64 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 complex128 "
    "float8_e4m3fn float8_e5m2 float8_e4m3fnuz float8_e5m2fnuz"
)
_DTYPES = {name: getattr(torch, name) for name in _NAMES.split()}


class EncodingError(CourseError):
    """Bytes do not encode values, or values cannot be encoded; the message is a sentence."""


class TornError(Exception):
    """The other side closed the pipe, or sent something other than a message."""


def dump(values: object) -> bytes:
    """`values` (numbers, strings, truth values, None, CPU tensors, and lists and dicts of these) as bytes.

    Raises `EncodingError` for anything else, for what is nested deeper than `DEEPEST_MESSAGE`, and for more than
    `LONGEST_MESSAGE` bytes.
    """
    tensors: list[torch.Tensor] = []
    try:
        tree = json.dumps(_pack(values, tensors), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise EncodingError("A string holds half of a surrogate pair, which is no text; give it whole.") from None
    length = len(tree) + sum(tensor.nbytes for tensor in tensors)
    if len(tree) > LONGEST_TREE or length > LONGEST_MESSAGE:
        raise EncodingError(
            f"The values take {length:,} bytes, more than the {LONGEST_MESSAGE:,} that are judged; give fewer."
        )
    flat = [tensor.resolve_conj().resolve_neg().contiguous().reshape(-1) for tensor in tensors]
    elements = [vector.view(torch.uint8).numpy().tobytes() for vector in flat if len(vector)]
    return b"".join([_LENGTH.pack(len(tree)), tree, *elements])


def _pack(value: object, tensors: list, depth: int = 0) -> object:
    if depth > DEEPEST_MESSAGE:
        raise EncodingError(f"The values are nested more than {DEEPEST_MESSAGE} deep; give flatter ones.")
    if type(value) is int and abs(value) >= _BIGGEST:
        raise EncodingError("A whole number has more than 4,000 digits; give a smaller one.")
    if type(value) in (bool, int, float, str, type(None)):
        return value
    if type(value) is list:
        return [_pack(item, tensors, depth + 1) for item in value]
    if type(value) is dict and all(type(key) is str for key in value):
        return {"dict": {key: _pack(item, tensors, depth + 1) for key, item in value.items()}}
    if not isinstance(value, torch.Tensor):
        name = type(value).__name__
        raise EncodingError(f"A value of type {name} cannot cross to the judge; give numbers, text or tensors.")
    dtype = str(value.dtype).removeprefix("torch.")
    if dtype not in _DTYPES or value.device.type != "cpu" or value.layout is not torch.strided:
        raise EncodingError(
            f"A tensor of {value.dtype} on {value.device} cannot cross to the judge; give a dense CPU tensor."
        )
    tensors.append(value.detach())
    return {"tensor": [dtype, list(value.shape)]}


def load(message: bytes) -> object:
    """The values of a message from `dump`; raises `EncodingError` for any other bytes."""
    end = _LENGTH.size + int.from_bytes(message[: _LENGTH.size])
    if not _LENGTH.size <= end <= len(message) <= LONGEST_MESSAGE + _LENGTH.size or end > LONGEST_TREE + _LENGTH.size:
        raise EncodingError("The message's length is not what it says.")
    reader = _Reader(message, end)
    try:
        values = reader.unpack(json.loads(message[_LENGTH.size : end]))
    except (ValueError, RecursionError, TypeError, AttributeError, OverflowError, RuntimeError):
        raise EncodingError("The message is not made of values.") from None
    if reader.position != len(message):
        raise EncodingError("The message holds more than its values.")
    return values


class _Reader:
    """Makes values of a JSON tree; takes the tensors' elements from `message`, from `position` on, and counts what it makes."""

    def __init__(self, message: bytes, position: int):
        self.message = message
        self.position = position
        self.values = self.tensors = 0

    def unpack(self, tree: object, depth: int = 0) -> object:
        self.values += 1
        self.tensors += type(tree) is dict and "tensor" in tree
        if depth > DEEPEST_MESSAGE or self.values > MOST_VALUES or self.tensors > MOST_TENSORS:
            raise EncodingError(
                f"It is nested too deep, or holds more than {MOST_VALUES:,} values or {MOST_TENSORS:,} tensors; "
                "give fewer, in larger tensors."
            )
        if type(tree) is list:
            return [self.unpack(item, depth + 1) for item in tree]
        if type(tree) is not dict:
            return tree
        [(kind, content)] = tree.items()
        if kind == "dict":
            return {key: self.unpack(item, depth + 1) for key, item in content.items()}
        if kind != "tensor":
            raise EncodingError(f"The message has a value of an unknown kind {kind[:20]!r}.")
        return self._unpack_tensor(*content)

    def _unpack_tensor(self, name: str, shape: list) -> torch.Tensor:
        if type(shape) is not list or not all(type(size) is int and 0 <= size <= LONGEST_MESSAGE for size in shape):
            raise EncodingError("A tensor of the message has a shape that there is not.")
        if name not in _DTYPES or len(shape) > DEEPEST_MESSAGE:
            raise EncodingError("A tensor of the message has a dtype or a shape that there is not.")
        dtype = _DTYPES[name]
        start = self.position
        self.position += math.prod(shape) * dtype.itemsize
        if self.position > len(self.message):
            raise EncodingError("A tensor is longer than the message.")
        if self.position == start:
            return torch.empty(shape, dtype=dtype)
        elements = torch.frombuffer(bytearray(self.message[start : self.position]), dtype=torch.uint8)
        flat = elements.ne(0) if dtype is torch.bool else elements.view(dtype)  # a truth value must be 0 or 1 in memory
        return flat.reshape(shape)


def send(pipe: int, message: bytes) -> None:
    """Write a whole message to the file descriptor `pipe`; raises `TornError` if nobody reads it any more."""
    rest = memoryview(_LENGTH.pack(len(message)) + message)
    try:
        while rest:
            rest = rest[os.write(pipe, rest) :]
    except OSError as error:
        raise TornError(str(error)) from None


def receive(pipe: int, longest: int = LONGEST_MESSAGE + _LENGTH.size) -> bytes:
    """The next message of the file descriptor `pipe`; raises `TornError` at its end, and for one of more than `longest` bytes."""
    length = _LENGTH.unpack(_read_exactly(pipe, _LENGTH.size))[0]
    if length > longest:
        raise TornError(f"a message of {length:,} bytes")
    return _read_exactly(pipe, length)


def _read_exactly(pipe: int, length: int) -> bytes:
    content = bytearray()
    while len(content) < length:
        try:
            part = os.read(pipe, min(length - len(content), 2**20))
        except OSError as error:
            raise TornError(str(error)) from None
        if not part:
            raise TornError("the pipe was closed")
        content += part
    return bytes(content)
