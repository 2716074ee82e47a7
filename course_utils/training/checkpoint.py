"""Checkpoints from which a run goes on exactly as if it had never stopped."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.utils.data import SequentialSampler

from course_utils.errors import CourseError, first_line
from course_utils.files import atomic_write
from course_utils.training.callbacks import Callback

if TYPE_CHECKING:
    from course_utils.training.loop import Run


class SaveCheckpoints(Callback):
    """Write the run to `path` every `interval` batches; a new checkpoint replaces the last only once it is complete.

    Parameters, gradients not yet used, optimizer, schedule, callbacks, history, torch's random state and the place in the
    data are saved. What a callback gives as its state is made of tensors, numbers, strings, lists and dicts (`CourseError`).
    """

    def __init__(self, path: Path | str, interval: int):
        if interval < 1:
            raise CourseError(f"interval={interval}: a checkpoint is written every 1 batch or more.")
        self.path = Path(path)
        self.interval = interval

    def after_batch(self, run: "Run") -> None:
        if run.step % self.interval == 0:
            save(run, self.path)


def save(run: "Run", path: Path) -> None:
    """Write all that `restore` needs; raises `CourseError` where it could not be read again, and keeps the old file then."""
    gradients = {name: p.grad for name, p in run.model.named_parameters() if p.grad is not None}
    state = {
        "model": run.model.state_dict(),
        "gradients": gradients,
        "optimizer": run.optimizer.state_dict(),
        "optimizer_kind": type(run.optimizer).__name__,
        "schedule": None if run.schedule is None else run.schedule.state_dict(),
        "callbacks": {name: callback.state_dict() for name, callback in _callbacks_with_state(run).items()},
        "history": run.history.state_dict(),
        "place": [run.step, run.epoch, run.position, run.seconds],
        "random": torch.get_rng_state(),
        "random_cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }
    try:
        with atomic_write(path) as partial:
            torch.save(state, partial)
            torch.load(partial, weights_only=True, map_location="cpu", mmap=True)
    except Exception as error:  # torch raises many kinds
        raise CourseError(
            f"The checkpoint could not be written to {path} ({first_line(error)}); free some space or choose another "
            "place, and make the states of callbacks of tensors, numbers, strings, lists and dicts."
        ) from error


def restore(run: "Run", path: Path) -> None:
    """Put `run` where `save` found it; raises `CourseError` when the file is missing, damaged or of another run."""
    if not path.is_file():
        raise CourseError(f"There is no checkpoint at {path}; start without resume_from.")
    try:
        state = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # torch raises many kinds for a damaged file
        raise CourseError(
            f"The checkpoint {path} is damaged and cannot be read; resume from an older one, or start over."
        ) from error
    callbacks = _callbacks_with_state(run)
    _refuse_another_run(run, state, callbacks, path)
    try:
        run.model.load_state_dict(state["model"])
        run.optimizer.load_state_dict(state["optimizer"])
    except (RuntimeError, ValueError, KeyError) as error:
        raise CourseError(
            f"The checkpoint {path} belongs to another model or optimizer; build the ones it was saved from."
        ) from error
    for name, parameter in run.model.named_parameters():
        gradient = state["gradients"].get(name)
        parameter.grad = None if gradient is None else gradient.to(parameter.device)
    if run.schedule is not None:
        run.schedule.load_state_dict(state["schedule"])
    for name, callback in callbacks.items():
        callback.load_state_dict(state["callbacks"][name])
    run.history.load_state_dict(state["history"])
    run.step, run.epoch, run.position, run.seconds = state["place"]
    torch.set_rng_state(state["random"])
    if state["random_cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["random_cuda"])


def _callbacks_with_state(run: "Run") -> dict[str, Callback]:
    """The callbacks that have a state; a progress bar or a checkpointer may come and go between runs."""
    stateful = [callback for callback in run.callbacks if type(callback).state_dict is not Callback.state_dict]
    return {f"{index} {type(callback).__name__}": callback for index, callback in enumerate(stateful)}


def _refuse_another_run(run: "Run", state: dict, callbacks: dict[str, Callback], path: Path) -> None:
    """Raise `CourseError`, before anything is changed, where going on would not be the same run."""
    if not isinstance(state, dict) or "place" not in state:
        raise CourseError(f"{path} is not a checkpoint of SaveCheckpoints; resume from one that is.")
    for name, saved, current in (
        ("optimizer", state["optimizer_kind"], type(run.optimizer).__name__),
        ("schedule", state["schedule"] is not None, run.schedule is not None),
        ("set of callbacks", list(state["callbacks"]), list(callbacks)),
    ):
        if saved != current:
            raise CourseError(
                f"The checkpoint {path} was written with another {name} ({saved}, here {current}); resume with the same."
            )
    sampler = getattr(run.batches, "sampler", None)
    if state["place"][2] and not (hasattr(sampler, "set_epoch") or isinstance(sampler, SequentialSampler)):
        raise CourseError(
            "A shuffled order that nobody can repeat cannot be resumed in the middle; use data.batches(…, seed=…)."
        )
