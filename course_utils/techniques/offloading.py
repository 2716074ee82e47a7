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
    `smallest` bytes. Memory shared by several saved tensors is written once. `bytes_written` and `pieces_written` count
    what has been written since the context was entered. The file has no name: it is gone with the last tensor in it, or
    with the process, however that ends. `folder` is by default the course's own, as the system's temporary one may lie in memory.

    Raises `CourseError` when the file cannot be written. Saving costs one write, backward one read, per byte.
    """

    def __init__(self, model: nn.Module | None = None, *, smallest: int = 16_384, folder: Path | str | None = None):
        super().__init__(self._save, _load)
        kept = [] if model is None else [*model.parameters(), *model.buffers()]
        self._resident = {StorageWeakRef(tensor.untyped_storage()) for tensor in kept}
        self.smallest, self.folder = smallest, Path(settings().home if folder is None else folder)
        self.bytes_written = self.pieces_written = 0

    def __enter__(self):
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
        del self._file, self._written  # from here on only what was saved keeps the file

    def _save(self, tensor: torch.Tensor):
        storage = tensor.untyped_storage()
        reference = StorageWeakRef(storage)
        if storage.nbytes() < self.smallest or reference in self._resident:
            return tensor.detach()  # the tensor itself would hold the graph that holds it
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
    """A tensor in a piece: shape, strides, type and device."""

    def __init__(self, piece: _Piece, tensor: torch.Tensor):
        self.piece, self.dtype, self.device = piece, tensor.dtype, tensor.device
        self.place = tensor.storage_offset(), tensor.shape, tensor.stride()


def _load(saved: "_Saved | torch.Tensor") -> torch.Tensor:
    if isinstance(saved, torch.Tensor):
        return saved
    return torch.empty(0, dtype=saved.dtype).set_(saved.piece.mapped(), *saved.place).to(saved.device)


def _write_all(file, numbers: memoryview) -> None:
    """An unbuffered file may write less than it is given."""
    while numbers:
        numbers = numbers[file.write(numbers) :]
