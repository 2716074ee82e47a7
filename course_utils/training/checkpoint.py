"""Checkpoints from which a run goes on exactly as if it had never stopped."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from course_utils.errors import CourseError
from course_utils.training.plugins import Plugin

if TYPE_CHECKING:
    from course_utils.training.loop import Run


class SaveCheckpoints(Plugin):
    """Write the run to `path` every `every` batches; a new checkpoint replaces the last only once it is complete."""

    def __init__(self, path: Path | str, every: int):
        if every < 1:
            raise CourseError(f"every={every}: a checkpoint is written every 1 batch or more.")
        self.path, self.every = Path(path), every

    def after_step(self, run):
        """Save when it is time."""
        if run.step % self.every == 0:
            save(run, self.path)


def save(run: "Run", path: Path) -> None:
    """Write all that `restore` needs; raises `CourseError` when the place cannot be written, leaving the old file whole."""
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(_state(run), partial)
        os.replace(partial, path)
    except (OSError, RuntimeError) as error:
        raise CourseError(
            f"The checkpoint could not be written to {path} ({error}); choose another place or free some space."
        ) from error


def restore(run: "Run", path: Path | str) -> None:
    """Put `run` where `save` found it; raises `CourseError` when the file is missing, damaged or of another model."""
    state = _read(Path(path))
    try:
        run.model.load_state_dict(state["model"])
        run.optimizer.load_state_dict(state["optimizer"])
    except (RuntimeError, ValueError) as error:
        raise CourseError(
            f"The checkpoint {path} belongs to another model or optimizer; build the ones it was saved from."
        ) from error
    if run.schedule is not None:
        run.schedule.load_state_dict(state["schedule"])
    for plugin, saved in zip(_stateful(run), state["plugins"], strict=True):
        plugin.load_state_dict(saved)
    run.history.load_state_dict(state["history"])
    run.step, run.epoch, run.position, run.seconds_before = state["place"]
    torch.set_rng_state(state["random"])
    if state["random_cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["random_cuda"])


def _state(run: "Run") -> dict:
    return {
        "model": run.model.state_dict(),
        "optimizer": run.optimizer.state_dict(),
        "schedule": None if run.schedule is None else run.schedule.state_dict(),
        "plugins": [plugin.state_dict() for plugin in _stateful(run)],
        "history": run.history.state_dict(),
        "place": [run.step, run.epoch, run.position, run.history.steps[-1]["seconds"]],
        "random": torch.get_rng_state(),
        "random_cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def _stateful(run: "Run") -> list[Plugin]:
    """Plug-ins that keep something; a progress bar or a checkpointer may come and go between runs."""
    return [plugin for plugin in run.plugins if type(plugin).state_dict is not Plugin.state_dict]


def _read(path: Path) -> dict:
    if not path.exists():
        raise CourseError(f"There is no checkpoint at {path}; start without resume_from.")
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # torch raises many kinds for a damaged file
        raise CourseError(
            f"The checkpoint {path} is damaged and cannot be read; delete it and resume from an older one."
        ) from error
