"""Where a dry run is: the caller's own line, and the module that it calls."""

import linecache
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

import torch
from torch import nn

_ROOMS = [Path(__file__).parents[2] / room for room in ("memory", "cli")]
_LIBRARIES = (Path(torch.__file__).parents[1], Path(sys.prefix), Path(sys.base_prefix), *_ROOMS)


def describe_location(frames: Iterable[tuple[FrameType, int]]) -> str:
    """A text that names the caller's own line and the module that it calls.

    `frames` are pairs of frame and line number, innermost first. A command has no caller's line; there the text is the module.
    """
    module = text = ""
    for frame, line in frames:
        if not is_of_a_library(frame):
            file = frame.f_code.co_filename
            text = f"at line {line} of {Path(file).name} (`{linecache.getline(file, line).strip()}`)"
            break
        if not module and isinstance(frame.f_locals.get("self"), nn.Module):
            module = f"inside {type(frame.f_locals['self']).__name__}"
    return ", ".join(filter(None, (text, module))) or "in a line of the libraries"


def is_of_a_library(frame: FrameType) -> bool:
    """Whether the frame's code is Python's, a library's or the course's, not the caller's own."""
    file = frame.f_code.co_filename
    return file.startswith("<frozen") or any(Path(file).is_relative_to(folder) for folder in _LIBRARIES)
