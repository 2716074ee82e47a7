"""What the environment says about this run, read once; no other module reads `os.environ`.

| variable | values | without it |
|---|---|---|
| `COURSE_SCALE` | `smoke`, `laptop`, `gpu` | `gpu` where CUDA is available, else `laptop` |
| `COURSE_DEVICE` | `cpu`, `cuda` (which GPU: `CUDA_VISIBLE_DEVICES`) | `cuda` where it is available, else `cpu` |
| `COURSE_SEED` | a whole number | 0 |
| `COURSE_HOME` | a folder for cache, checkpoints, ledger, progress and bets | the platform's own place for user caches |
| `COURSE_STRICT` | 1: a failed check raises, and outputs are those to be compared; 0 | 0 |
| `COURSE_READER` | 0: nobody reads along, so the bets are those of the cells and none is kept; 1 | 1 |
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from course_utils.errors import CourseError

if TYPE_CHECKING:
    import torch


LIVE_OUTPUT = {"course": "live"}
"""Metadata of an output that means nothing in a stored notebook."""


@dataclass(frozen=True)
class Scale:
    """How large a chapter's model and data are.

    `sequence` is in tokens, `batch_size` in examples, `train_rows` and `eval_rows` in examples (the most that are used).
    """

    name: str
    layers: int
    width: int
    heads: int
    vocabulary: int
    sequence: int
    batch_size: int
    train_rows: int
    eval_rows: int
    epochs: int

    def one_at_smoke(self, items: Sequence) -> Sequence:
        """`items`; of them only the first at the smoke scale, at which tests run every cell."""
        return items[:1] if self.name == "smoke" else items


SCALES = {
    scale.name: scale
    for scale in (
        Scale("smoke", 1, 32, 2, 1_000, 32, 16, 320, 160, 1),
        Scale("laptop", 2, 128, 4, 4_000, 64, 32, 4_000, 500, 4),
        Scale("gpu", 6, 768, 12, 28_996, 128, 32, 4_000, 500, 4),
    )
}


@dataclass(frozen=True)
class Settings:
    """One run's choices. `device_name` and `scale_name` are as asked for; `device` and `scale` are what they come to."""

    scale_name: str = "auto"
    device_name: str = "auto"
    seed: int = 0
    home: Path = Path(".course")
    strict: bool = False
    reader: bool = True

    @property
    def attended(self) -> bool:
        """Whether somebody reads along: only then is anything of theirs kept or looked up, such as a bet."""
        return self.reader and not self.strict

    @cached_property
    def device(self) -> "torch.device":
        """The device to train on; raises `CourseError` when CUDA was asked for and is not there."""
        import torch

        name = ("cuda" if torch.cuda.is_available() else "cpu") if self.device_name == "auto" else self.device_name
        if name == "cuda" and not torch.cuda.is_available():
            raise CourseError(
                f"COURSE_DEVICE={name} asks for a GPU, but PyTorch sees none; unset COURSE_DEVICE or set it to cpu."
            )
        return torch.device(name)

    @cached_property
    def scale(self) -> Scale:
        """The sizes to train at."""
        automatic = "gpu" if self.scale_name == "auto" and self.device.type == "cuda" else "laptop"
        return SCALES[automatic if self.scale_name == "auto" else self.scale_name]


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Settings from environment variables; raises `CourseError`, naming the variable, on a value it cannot use."""
    seed = environment.get("COURSE_SEED", "0")
    if not (seed.isascii() and seed.isdigit()):
        raise CourseError(f"COURSE_SEED={seed!r} is not a whole number from 0 up; set it to one, such as 0.")
    return Settings(
        scale_name=_check_choice("COURSE_SCALE", environment.get("COURSE_SCALE", "auto"), ["auto", *SCALES]),
        device_name=_check_choice("COURSE_DEVICE", environment.get("COURSE_DEVICE", "auto"), ["auto", "cpu", "cuda"]),
        seed=int(seed),
        home=_home(environment.get("COURSE_HOME")),
        strict=_check_choice("COURSE_STRICT", environment.get("COURSE_STRICT", "0"), ["0", "1"]) == "1",
        reader=_check_choice("COURSE_READER", environment.get("COURSE_READER", "1"), ["0", "1"]) == "1",
    )


@lru_cache(maxsize=1)
def settings() -> Settings:
    """This process's settings, read at the first call."""
    return read_settings(os.environ)


def variables(*beginnings: str) -> dict[str, str]:
    """The variables of this process's environment whose names begin with one of `beginnings`, to be looked at."""
    return {name: value for name, value in os.environ.items() if name.startswith(beginnings)}


def has_display() -> bool:
    """Whether a browser opened from here would be seen by the person who asked for it."""
    environment = variables("CI", "SSH_CONNECTION", "DISPLAY", "WAYLAND_DISPLAY")
    if environment.get("CI") or environment.get("SSH_CONNECTION"):
        return False
    has_server = bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))
    return has_server or not sys.platform.startswith("linux")


def environment_for_child(**changes: str) -> dict[str, str]:
    """This process's environment with `changes`, for a process started from here."""
    return {**os.environ, **changes}


def set_variable(name: str, value: str) -> None:
    """Set a variable of this process's environment, for a library that can be told no other way."""
    os.environ[name] = value


def _check_choice(variable: str, value: str, allowed: list[str]) -> str:
    if value not in allowed:
        raise CourseError(
            f"{variable}={value!r} is not one of {', '.join(allowed)}; set it to one of them or unset it."
        )
    return value


def _home(value: str | None) -> Path:
    if value:
        try:
            return Path(value).expanduser().absolute()
        except RuntimeError:
            raise CourseError(f"COURSE_HOME={value!r} names an unknown user; write the full path.") from None
    try:
        from platformdirs import user_cache_path
    except ModuleNotFoundError:  # `course doctor` then says that it is missing
        return Path.home() / ".cache" / "efficient-training-course"
    return user_cache_path("efficient-training-course")
