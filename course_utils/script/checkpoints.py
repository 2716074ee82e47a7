"""Checkpoints of many ranks: written aside, made whole by one rename, checked when read.

A checkpoint is a folder `step-00000040`: what `torch.distributed.checkpoint` wrote, or DeepSpeed, and `run.json`, which says of
what run it is, how far that had come, and how large each file is. While it is written its name ends in `.partial`.
"""

import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

from course_utils.errors import CourseError
from course_utils.script.rank import PATIENCE
from course_utils.strategies.engines import Alone

_NAME, _RUN, _PARTIAL = "step-{:08d}", "run.json", ".partial"
_ERRORS = (Exception, CheckpointException)  # which is none of the others
_NUMBERS = {int: torch.int64, float: torch.float64, bool: torch.bool}
_BY_DTYPE = {dtype: kind for kind, dtype in _NUMBERS.items()}


class Checkpoints:
    """Those of one run, in `folder`; `identity` is what they must share with it.

    Every rank makes one. `saving` is one of `SAVING`: `sync` returns when the checkpoint is whole, the others when a copy of the
    state is made; the writing then goes on in a thread or a process, and the next `save`, or `finish`, waits for it.
    """

    def __init__(self, folder: Path, engine: Alone, identity: dict, keep: int, saving: str):
        self.folder, self.engine, self.identity, self.keep, self.saving = folder, engine, identity, keep, saving
        self.rank, self.ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self._begun: Future | None = None
        # Threads that write talk to each other while the ranks go on training: over a group of their own.
        apart, limit = dist.is_initialized() and saving != "sync", timedelta(seconds=PATIENCE)
        self.group = dist.new_group(backend="gloo", timeout=limit) if apart else None
        if self.rank == 0:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                for begun in folder.glob(f"*{_PARTIAL}"):
                    shutil.rmtree(begun)
            except OSError as error:
                raise self._not_written(error) from error
        self._meet()

    def save(self, step: int, more: dict) -> None:
        """Write the state after update `step`; `more` are plain values to keep with it, those of rank 0."""
        self.finish()
        partial = self.folder / (_NAME.format(step) + _PARTIAL)
        about = {"step": step, "ranks": self.ranks, "identity": self.identity, "more": more}
        try:
            if self.rank == 0:
                partial.mkdir(exist_ok=True)
            self._meet()
            if self.engine.opaque:
                self.engine.write(partial)
            elif self.saving == "sync":
                with _quiet():
                    dcp.save(self._state(), storage_writer=FileSystemWriter(partial), no_dist=self.ranks == 1)
            else:
                self._begin(partial, about)
                return
            self._meet()
            self._name(partial, about)
        except CourseError:
            raise
        except _ERRORS as error:
            raise self._not_written(error) from error

    def _begin(self, partial: Path, about: dict) -> None:
        """Let it be written, and named as soon as it is: when rank 0 has written the metadata, all shards are there."""
        kind, writer = AsyncCheckpointerType[self.saving.upper()], FileSystemWriter(partial)
        written = dcp.async_save(
            self._state(), storage_writer=writer, process_group=self.group, async_checkpointer_type=kind
        )
        begun = self._begun = Future()

        def name(ended: Future) -> None:
            try:
                ended.result()
                self._name(partial, about)
                begun.set_result(None)
            except BaseException as error:  # for `finish`, which raises it
                begun.set_exception(error)

        written.add_done_callback(name)

    def finish(self) -> None:
        """Wait for the checkpoint that is being written. Raises `CourseError` where it could not be."""
        try:
            if self._begun is not None:
                self._begun.result()
        except _ERRORS as error:
            raise self._not_written(error) from error
        finally:
            self._begun = None
        self._meet()

    def close(self) -> None:
        """At the end, also after an error: what is being written gets the time to become whole, whatever comes of it."""
        with suppress(*_ERRORS):
            if self._begun is not None:
                self._begun.result(PATIENCE)

    def _name(self, partial: Path, about: dict) -> None:
        """On rank 0: give it its name, now that all is written, and drop those that are too old."""
        if self.rank != 0:
            return
        about["files"] = _synced(partial)
        (partial / _RUN).write_text(json.dumps(about), encoding="utf-8")
        _synced(partial)
        whole = partial.with_suffix("")
        shutil.rmtree(whole, ignore_errors=True)  # it could not be read, or this run would have begun after it
        os.replace(partial, whole)
        with suppress(OSError):  # Windows opens no folders
            place = os.open(self.folder, os.O_RDONLY)
            os.fsync(place)
            os.close(place)
        for old in [path for path in self.found() if path.name <= whole.name][self.keep :]:
            shutil.rmtree(old)

    def found(self) -> list[Path]:
        """Those that have their name, the newest first."""
        return sorted((p for p in self.folder.glob("step-*") if p.suffix != _PARTIAL), reverse=True)

    def load(self, say: Callable[[str], None]) -> dict | None:
        """Put model and optimizer where the newest good checkpoint has them; what `run.json` says, or None where there is none.

        A torn or foreign one is named by `say`, and the one before it is taken. Raises `CourseError` where all there are belong
        to another run.
        """
        unreadable: dict[Path, str] = {}
        while True:
            answer = [self._choose(unreadable)] if self.rank == 0 else [None]
            if self.ranks > 1:
                dist.broadcast_object_list(answer)
            path, about, left_out = answer[0]
            if path is None:
                break
            if not (wrong := self._found_wrong(path, about)):
                break
            unreadable[path] = wrong
        if path is None and about:
            raise CourseError(about["wrong"])
        for sentence in left_out:
            say(sentence)
        return about

    def _found_wrong(self, path: Path, about: dict) -> str:
        """Read it; what one of the ranks found wrong with it, or nothing."""
        wrong = [""] * self.ranks
        try:
            self._read(path, about)
        except _ERRORS as error:
            wrong[self.rank] = f"it cannot be read ({type(error).__name__})"
        if self.ranks > 1:
            dist.all_gather_object(wrong, wrong[self.rank])
        return max(wrong)

    def _read(self, path: Path, about: dict) -> None:
        if self.engine.opaque:
            self.engine.read(path)
            return
        reader = FileSystemReader(path)
        with torch.no_grad(), _quiet():
            model, kept, more = self._model(), self._empty_state(reader.read_metadata(), about["ranks"]), self._more()
            dcp.load({**model, **kept, **more}, storage_reader=reader, no_dist=self.ranks == 1)
            self._put_back(kept)

    def _choose(self, unreadable: dict[Path, str]) -> tuple[Path | None, dict | None, list[str]]:
        """The newest that is whole and of this run, its `run.json`, and what is left out; or why there are others only."""
        foreign, left_out = [], []
        for path in self.found():
            wrong = unreadable.get(path) or self._torn(path)
            about = {} if wrong else json.loads((path / _RUN).read_text(encoding="utf-8"))
            if not wrong and (wrong := self._foreign(path, about)):
                foreign.append(wrong)
            if not wrong:
                return path, about, left_out
            left_out.append(f"The checkpoint {path} is left out: {wrong}.")
        if not foreign:
            return None, None, left_out
        sentence = (
            f"{self.folder} has checkpoints of another run ({foreign[0]}); give another --out, or that run's flags."
        )
        return None, {"wrong": sentence}, left_out

    def _torn(self, path: Path) -> str:
        try:
            sizes = json.loads((path / _RUN).read_text(encoding="utf-8"))["files"]
            if ".metadata" in sizes:
                FileSystemReader(path).read_metadata()
            short = [name for name, size in sizes.items() if (path / name).stat().st_size < size]
        except Exception as error:  # reading what is damaged raises many kinds
            return f"it cannot be read ({type(error).__name__})"
        return f"{short[0]} is shorter than it was" if short else ""

    def _foreign(self, path: Path, about: dict) -> str:
        for name in self.identity | about["identity"]:
            there, here = (_shown(values.get(name)) for values in (about["identity"], self.identity))
            if there != here:
                return f"its {name.replace('_', ' ')} is {there}, here {here}"
        if self.engine.opaque:
            known = about["ranks"]
            return (
                "" if known == self.ranks else f"{known} ranks wrote it, and only as many can read it, not {self.ranks}"
            )
        saved = FileSystemReader(path).read_metadata().state_dict_metadata
        for name, tensor in self._model().items():
            known = saved.get(name)
            if not isinstance(known, TensorStorageMetadata) or known.size != tensor.size():
                return f"it has no {name.partition('.')[2]} of shape {tuple(tensor.shape)}"
        return ""

    def _state(self) -> dict[str, torch.Tensor]:
        names, kept = self._names(), {}
        for parameter, state in self.engine.state():
            for key, value in state.items():
                if type(value) in _NUMBERS:
                    kept[f"{self._of(names[parameter])}.number {key}"] = torch.tensor(
                        value, dtype=_NUMBERS[type(value)]
                    )
                elif isinstance(value, torch.Tensor):
                    kept[f"{self._of(names[parameter])}.{key}"] = value
                elif value is not None:
                    raise CourseError(
                        f"The optimizer keeps a {type(value).__name__} for each parameter, which no checkpoint here holds; "
                        "take another."
                    )
        return {**self._model(), **kept, **self._more()}

    def _empty_state(self, metadata: Metadata, ranks: int) -> dict[str, torch.Tensor]:
        """Places for what was kept of this rank's parameters, as large as the checkpoint says."""
        places, saved = {}, metadata.state_dict_metadata
        for name, parameter in ((name, p) for p, name in self._names().items() if self._is_mine(p)):
            beginning = f"{self._of(name, self.rank % ranks)}."
            for key, about in saved.items():
                if key.startswith(beginning) and isinstance(about, TensorStorageMetadata):
                    places[key] = _place(parameter, key, about, self.engine.keeps_counts_on_device)
        return places

    def _put_back(self, places: dict[str, torch.Tensor]) -> None:
        parameters = {name: parameter for parameter, name in self._names().items()}
        states: dict[str, dict] = {}
        for key, value in places.items():
            name = max((n for n in parameters if key.split(".", 1)[1].startswith(f"{n}.")), key=len)
            what = key.split(".", 1)[1][len(name) + 1 :]
            if what.startswith("number "):
                what, value = what.removeprefix("number "), _BY_DTYPE[value.dtype](value.item())
            states.setdefault(name, {})[what] = value
        for name, state in states.items():
            self.engine.set_state(parameters[name], state)

    def _is_mine(self, parameter: torch.nn.Parameter) -> bool:
        return any(parameter is one for one, _ in self.engine.state())

    def _of(self, name: str, rank: int | None = None) -> str:
        """Where the state of a parameter is kept: ranks that train alone have one each."""
        place = "optimizer" if self.engine.of_one_model else f"optimizer {self.rank if rank is None else rank}"
        return f"{place}.{name}"

    def _model(self) -> dict[str, torch.Tensor]:
        return {f"model.{name}": tensor for name, tensor in self.engine.plain.state_dict().items()}

    def _more(self) -> dict[str, torch.Tensor]:
        return {f"more.{name}": tensor for name, tensor in self.engine.more_state().items()}

    def _names(self) -> dict[torch.nn.Parameter, str]:
        return {parameter: name for name, parameter in self.engine.plain.named_parameters()}

    def _meet(self) -> None:
        if self.ranks > 1:
            dist.barrier(self.group)

    def _not_written(self, error: Exception) -> CourseError:
        return CourseError(
            f"No checkpoint could be written to {self.folder} ({str(error).splitlines()[0] if str(error) else error!r}); make "
            "room there. The one before it is whole."
        )


def parameters_in(out: Path) -> dict[str, torch.Tensor]:
    """By name those of the newest checkpoint of a run in `out`, whole, whichever ranks and strategy of torch's wrote it."""
    with tempfile.TemporaryDirectory() as folder, _quiet():
        whole = Path(folder) / "whole.pt"
        dcp_to_torch_save(max((out / "checkpoints").glob("step-*[0-9]")), whole)
        kept = torch.load(whole)
    return {name.removeprefix("model."): tensor for name, tensor in kept.items() if name.startswith("model.")}


@contextmanager
def _quiet() -> Iterator[None]:
    """Without DCP's warning that one process saves for itself, which is meant here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        yield


def _synced(folder: Path) -> dict[str, int]:
    """Bytes of every file below it, by its name from there; they are on the disk when this returns."""
    sizes = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb+") as file:
            os.fsync(file.fileno())
            sizes[path.relative_to(folder).as_posix()] = os.fstat(file.fileno()).st_size
    return sizes


def _shown(value) -> str:
    return "another" if value is None else repr(value)


def _place(
    parameter: torch.nn.Parameter, key: str, about: TensorStorageMetadata, counts_on_device: bool
) -> torch.Tensor:
    """An empty tensor like the one that was saved: shared out as the parameter is, where it has its shape."""
    if about.size == parameter.size():
        return torch.empty_like(parameter, dtype=about.properties.dtype, requires_grad=False)
    on_host = "number " in key or (about.size == torch.Size() and not counts_on_device)
    device = torch.device("cpu") if on_host else parameter.device
    return torch.empty(about.size, dtype=about.properties.dtype, device=device)
