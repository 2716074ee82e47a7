"""Checkpoints of many ranks: written aside, made whole by one rename, checked when read.

A checkpoint is a folder `step-00000040`: what `torch.distributed.checkpoint` (DCP) wrote, or DeepSpeed, and `run.json`, which
says of what run it is, how far that had come, and how large each file is. While it is written its name ends in `.partial`.

The optimizer's state goes to DCP by parameter, as it is. `get_optimizer_state_dict` would not do: of the course's 8-bit AdamW it
loses the codes, and it takes neither chained optimizers nor what `ZeroRedundancyOptimizer` keeps on one rank.
"""

import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from course_utils.errors import CourseError, first_line
from course_utils.script.engines import Engine

_FOLDER_NAME, _MANIFEST, _PARTIAL_SUFFIX = "step-{:08d}", "run.json", ".partial"
_ERRORS = (Exception, CheckpointException)  # CheckpointException is a BaseException.


class Checkpoints:
    """The checkpoints of one run, in `folder`, whose `identity` they must have. Every rank makes one of these objects."""

    def __init__(self, folder: Path, engine: Engine, identity: dict, keep: int):
        self.folder, self.engine, self.identity, self.keep = folder, engine, identity, keep
        self.rank, self.ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self.names = {parameter: name for name, parameter in engine.plain.named_parameters()}
        if self.rank == 0:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                for unfinished in folder.glob(f"*{_PARTIAL_SUFFIX}"):
                    shutil.rmtree(unfinished)
            except OSError as error:
                raise self._explain_failed_write(error) from error
        self._barrier()

    def save(self, step: int, extras: dict) -> None:
        """Write the state after update `step`, and with it the plain values `extras` of rank 0."""
        partial = self.folder / (_FOLDER_NAME.format(step) + _PARTIAL_SUFFIX)
        try:
            if self.rank == 0:
                partial.mkdir(exist_ok=True)
            self._barrier()
            if self.engine.is_opaque:
                self.engine.write(partial)
            else:
                state = {
                    "model": self.engine.plain.state_dict(),
                    "optimizer": {self.names[parameter]: values for parameter, values in self.engine.state()},
                }
                with _silence():
                    dcp.save(state, storage_writer=FileSystemWriter(partial), no_dist=self.ranks == 1)
            self._barrier()
            if self.rank == 0:
                manifest = {"step": step, "ranks": self.ranks, "identity": self.identity, "extras": extras}
                self._publish(partial, manifest)
        except _ERRORS as error:
            raise self._explain_failed_write(error) from error
        self._barrier()

    def _publish(self, partial: Path, manifest: dict) -> None:
        """Give a complete checkpoint its final name, and delete those that are too old."""
        manifest["files"] = _sync(partial)
        (partial / _MANIFEST).write_text(json.dumps(manifest), encoding="utf-8")
        _sync(partial)
        target = partial.with_suffix("")
        shutil.rmtree(target, ignore_errors=True)  # it could not be read, or this run would have begun after it
        os.replace(partial, target)
        with suppress(OSError):  # Windows opens no folders
            descriptor = os.open(self.folder, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        for old in [path for path in self.paths() if path.name <= target.name][self.keep :]:
            shutil.rmtree(old)

    def paths(self) -> list[Path]:
        """The complete checkpoints, the newest first."""
        return sorted((p for p in self.folder.glob("step-*") if p.suffix != _PARTIAL_SUFFIX), reverse=True)

    def load(self, say: Callable[[str], None]) -> dict | None:
        """Load model and optimizer from the newest good checkpoint; returns what its `run.json` says, or None without one.

        `say` names each damaged or foreign one, and the one before it is taken. Raises `CourseError` where there are some, and
        none can be taken: reading may have changed the model already.
        """
        paths = [self.paths()]
        if self.ranks > 1:
            dist.broadcast_object_list(paths)
        left_out = {}
        for path in paths[0]:
            complaint = self._agree_on(self._explain_misfit(path)) or self._agree_on(self._try_to_read(path))
            if not complaint:
                for skipped, reason in left_out.items():
                    say(f"The checkpoint {skipped} is left out: {reason}.")
                return json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
            left_out[path] = complaint
        if left_out:
            newest, reason = next(iter(left_out.items()))
            raise CourseError(
                f"No checkpoint in {self.folder} can be loaded ({newest.name}: {reason}); give another --out to "
                "begin from the first update, or the flags of the run that is there."
            )
        return None

    def _agree_on(self, complaint: str) -> str:
        """The complaint of one of the ranks, the same on all of them, or an empty string."""
        complaints = [complaint] * self.ranks
        if self.ranks > 1:
            dist.all_gather_object(complaints, complaint)
        return max(complaints)

    def _explain_misfit(self, path: Path) -> str:
        """Why a checkpoint is damaged or of another run, as far as `run.json` tells, or an empty string."""
        try:
            manifest = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))
            shortened = [name for name, size in manifest["files"].items() if (path / name).stat().st_size < size]
        except Exception as error:  # reading what is damaged raises many kinds
            return f"it cannot be read ({type(error).__name__})"
        if shortened:
            return f"{shortened[0]} is shorter than it was"
        for name, expected in self.identity.items():
            actual = manifest["identity"].get(name)
            if actual != expected:
                return f"its {name.replace('_', ' ')} is {actual!r}, here {expected!r}"
        if self.engine.is_opaque and manifest["ranks"] != self.ranks:
            return f"{manifest['ranks']} ranks wrote it, and only as many can read it, not {self.ranks}"
        return ""

    def _try_to_read(self, path: Path) -> str:
        """Load a checkpoint; returns why that failed, or an empty string."""
        try:
            self._read(path)
        except _ERRORS as error:
            return f"it cannot be read ({type(error).__name__})"
        return ""

    def _read(self, path: Path) -> None:
        if self.engine.is_opaque:
            self.engine.read(path)
            return
        reader = FileSystemReader(path)
        saved = reader.read_metadata().state_dict_metadata
        parameters = [parameter for parameter, _ in self.engine.state()]
        states = {self.names[parameter]: self._empty_state_of(parameter, saved) for parameter in parameters}
        with torch.no_grad(), _silence():
            state = {"model": self.engine.plain.state_dict(), "optimizer": states}
            dcp.load(state, storage_reader=reader, no_dist=self.ranks == 1)
        for parameter in parameters:
            if states[self.names[parameter]]:
                self.engine.set_state(parameter, states[self.names[parameter]])

    def _empty_state_of(self, parameter: nn.Parameter, saved: dict) -> dict[str, torch.Tensor | None]:
        """A parameter's state for DCP to fill: tensors as large as the checkpoint says, None for other values."""
        beginning = f"optimizer.{self.names[parameter]}."
        return {
            key.removeprefix(beginning): self._empty_like_saved(parameter, metadata)
            for key, metadata in saved.items()
            if key.startswith(beginning)
        }

    def _empty_like_saved(self, parameter: nn.Parameter, metadata: object) -> torch.Tensor | None:
        """An empty tensor as the checkpoint describes it, sharded as the parameter is where it has its shape; or None."""
        if not isinstance(metadata, TensorStorageMetadata):
            return None
        dtype = metadata.properties.dtype
        if metadata.size == parameter.size():
            return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
        is_count_on_host = metadata.size == torch.Size() and not self.engine.keeps_counts_on_device
        return torch.empty(metadata.size, dtype=dtype, device="cpu" if is_count_on_host else parameter.device)

    def _barrier(self) -> None:
        if self.ranks > 1:
            dist.barrier()

    def _explain_failed_write(self, error: Exception) -> CourseError:
        return CourseError(
            f"No checkpoint could be written to {self.folder} ({first_line(error)}); make "
            "room there. The one before it is whole."
        )


def parameters_in(out: Path) -> dict[str, torch.Tensor]:
    """The whole parameters, by name, of the newest checkpoint of a run in `out`, which DeepSpeed did not write."""
    with tempfile.TemporaryDirectory() as folder, _silence():
        path = Path(folder) / "whole.pt"
        dcp_to_torch_save(max((out / "checkpoints").glob("step-*[0-9]")), path)
        return torch.load(path)["model"]


@contextmanager
def _silence() -> Iterator[None]:
    """A context without DCP's warning that one process saves for itself, which is meant here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield


def _sync(folder: Path) -> dict[str, int]:
    """Write all files below `folder` through to the disk; returns their bytes by their paths from there."""
    sizes = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb+") as file:
            os.fsync(file.fileno())
            sizes[path.relative_to(folder).as_posix()] = os.fstat(file.fileno()).st_size
    return sizes
