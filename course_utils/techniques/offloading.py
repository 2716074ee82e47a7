"""What backward needs, kept on disk between forward and backward."""

from pathlib import Path
from tempfile import TemporaryFile

import numpy as np
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from course_utils.errors import CourseError
from course_utils.settings import settings
from course_utils.units import format_bytes

_ALIGNMENT = 4096  # a page: what is mapped starts at one


class SavedOnDisk(saved_tensors_hooks):
    """A context in which autograd saves to a file, and from which backward reads by memory mapping.

    Parameters and buffers of `model` stay where they are, since they exist anyway, and so does what is smaller than
    `smallest` bytes, empty or sparse. Memory shared by several saved tensors is written once. `bytes_written` and
    `pieces_written` count what has been written since the context was entered. The file has no name: it is gone with the
    last tensor in it, or with the process, however that ends. `folder` is by default the course's own, as the system's
    temporary one may lie in memory.

    Raises `CourseError` when the file cannot be written, when the same context is entered again inside itself, and in
    backward when what stayed where it was has been changed in place since. Saving costs one write, backward one read, per byte.
    """

    def __init__(self, model: nn.Module | None = None, *, smallest: int = 16_384, folder: Path | str | None = None):
        super().__init__(self._save, _load)
        kept = [] if model is None else [*model.parameters(), *model.buffers()]
        self._resident = {StorageWeakRef(tensor.untyped_storage()) for tensor in kept}
        self.smallest, self.folder = smallest, Path(settings().home if folder is None else folder)
        self.bytes_written = self.pieces_written = 0
        self._file = None

    def __enter__(self):
        if self._file is not None:
            raise CourseError("This SavedOnDisk is at work already; make another one for a context inside it.")
        self.bytes_written = self.pieces_written = 0
        self._written: dict[tuple, _Piece] = {}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file = TemporaryFile(dir=self.folder, buffering=0)
        except OSError as error:
            raise CourseError(f"No file can be made in {self.folder} ({error}); pass another folder.") from error
        super().__enter__()
        return self

    def __exit__(self, *error):
        super().__exit__(*error)
        self._file, self._written = None, {}  # from here on only what was saved keeps the file

    def _save(self, tensor: torch.Tensor):
        if tensor.layout != torch.strided or tensor.untyped_storage().nbytes() < max(1, self.smallest):
            return _Stayed(tensor)
        storage = tensor.untyped_storage()
        reference = StorageWeakRef(storage)
        if reference in self._resident:
            return _Stayed(tensor)
        key = (reference, tensor._version)
        if key not in self._written:
            self._written[key] = self._write(storage, tensor.device)
        return _Saved(self._written[key], tensor)

    def _write(self, storage: torch.UntypedStorage, device: torch.device) -> "_Piece":
        numbers = torch.empty(0, dtype=torch.uint8, device=device).set_(storage).cpu().numpy()
        start = -(-self._file.tell() // _ALIGNMENT) * _ALIGNMENT
        try:
            self._file.seek(start)
            _write_all(self._file, memoryview(numbers))
        except OSError as error:
            raise CourseError(
                f"{format_bytes(numbers.size)} could not be written to {self.folder} ({error.strerror}); free some space "
                "there, or pass a folder on another disk."
            ) from error
        self.bytes_written += numbers.size
        self.pieces_written += 1
        return _Piece(self._file, start, numbers.size)


class _Piece:
    """Bytes in a file, mapped into memory when they are asked for."""

    def __init__(self, file, start: int, size: int):
        self.file, self.start, self.size = file, start, size

    def mapped(self) -> torch.UntypedStorage:
        """Copied only page by page where it is written to; the file stays as it is."""
        numbers = np.memmap(self.file, dtype=np.uint8, mode="c", offset=self.start, shape=(self.size,))
        return torch.from_numpy(numbers).untyped_storage()


class _Saved:
    """A tensor in a piece: shape, strides, type, device, and whether its numbers are to be read conjugated or negated."""

    def __init__(self, piece: _Piece, tensor: torch.Tensor):
        self.piece, self.dtype, self.device = piece, tensor.dtype, tensor.device
        self.place = tensor.storage_offset(), tensor.shape, tensor.stride()
        self.conjugated, self.negated = tensor.is_conj(), tensor.is_neg()

    def load(self) -> torch.Tensor:
        tensor = torch.empty(0, dtype=self.dtype, device="cpu").set_(self.piece.mapped(), *self.place)
        tensor = tensor.conj() if self.conjugated else tensor
        return (torch._neg_view(tensor) if self.negated else tensor).to(self.device)


class _Stayed:
    """A tensor that was left where it is."""

    def __init__(self, tensor: torch.Tensor):
        self.tensor = tensor.detach()  # the tensor itself would hold the graph that holds it
        self.version = tensor._version

    def load(self) -> torch.Tensor:
        if self.tensor._version != self.version:
            raise CourseError(
                f"A tensor {list(self.tensor.shape)} that backward needs was changed in place after it was saved; call "
                "backward before, or use the operation that makes a new tensor."
            )
        return self.tensor


def _load(saved: "_Saved | _Stayed") -> torch.Tensor:
    return saved.load()


def _write_all(file, numbers: memoryview) -> None:
    """An unbuffered file may write less than it is given."""
    while numbers:
        numbers = numbers[file.write(numbers) :]
