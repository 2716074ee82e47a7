"""Messages over a pipe: each is its length in bytes (8, big-endian), then itself."""

import os
import struct
from collections.abc import Callable

_LENGTH = struct.Struct(">Q")


class TornError(Exception):
    """The other side closed the pipe, or sent what is no message."""


def send(pipe: int, message: bytes) -> None:
    """Write a whole message to the file descriptor `pipe`; raises `TornError` where nobody reads it any more."""
    rest = memoryview(_LENGTH.pack(len(message)) + message)
    try:
        while rest:
            rest = rest[os.write(pipe, rest) :]
    except OSError as error:
        raise TornError(str(error)) from None


def receive(pipe: int, longest: int) -> bytes:
    """The next message of the file descriptor `pipe`; raises `TornError` at its end, and for one of more than `longest` bytes."""
    read = _reader(pipe)
    length = _LENGTH.unpack(read(_LENGTH.size))[0]
    if length > longest:
        raise TornError(f"a message of {length:,} bytes")
    return read(length)


def _reader(pipe: int) -> Callable[[int], bytes]:
    def read(length: int) -> bytes:
        parts = bytearray()
        while len(parts) < length:
            try:
                part = os.read(pipe, min(length - len(parts), 2**20))
            except OSError as error:
                raise TornError(str(error)) from None
            if not part:
                raise TornError("the pipe was closed")
            parts += part
        return bytes(parts)

    return read
