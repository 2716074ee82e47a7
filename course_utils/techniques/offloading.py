"""Saved tensors on disk between forward and backward."""

from os import SEEK_CUR
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from course_utils.settings import settings


class SavedOnDisk(saved_tensors_hooks):
    """A context in which autograd saves to a file; backward maps the file into memory and reads what it touches.

    Parameters and buffers of `model` stay in memory, and so does what is smaller than `smallest` bytes. Memory that several
    saved tensors share is written once. The file has no name: it is gone with the last tensor in it.
    """

    def __init__(self, model: nn.Module | None = None, smallest: int = 16_384, folder: str | Path | None = None):
        super().__init__(self.write, self.read)
        resident = [] if model is None else [*model.parameters(), *model.buffers()]
        self.resident = {StorageWeakRef(tensor.untyped_storage()) for tensor in resident}
        self.smallest = smallest
        self.folder = Path(folder or settings().home)

    def __enter__(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file = TemporaryFile(dir=self.folder, buffering=0)
        self.offsets = {}  # in the file, of each piece of memory
        self.bytes_written = self.pieces_written = 0
        super().__enter__()
        return self

    def __exit__(self, *error):
        super().__exit__(*error)
        self.file = self.offsets = None

    def write(self, tensor: Tensor) -> Tensor | tuple:
        """Write a tensor in forward; returns its place in the file, its shape and its type, or a small tensor itself."""
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        memory = StorageWeakRef(storage)
        if size < self.smallest or memory in self.resident:
            return tensor.detach()
        key = memory, tensor._version  # changed in place, it is written again
        if key not in self.offsets:
            self.offsets[key] = self.file.tell()
            numbers = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            numbers.cpu().numpy().tofile(self.file)
            self.file.seek(-size % 4096, SEEK_CUR)  # each piece begins at a page
            self.bytes_written += size
            self.pieces_written += 1
        layout = tensor.storage_offset(), tensor.shape, tensor.stride()
        return self.file, self.offsets[key], size, tensor.dtype, tensor.device, layout

    @staticmethod
    def read(saved: Tensor | tuple) -> Tensor:
        """Read the tensor again in backward."""
        if isinstance(saved, Tensor):
            return saved
        file, start, size, dtype, device, layout = saved
        numbers = np.memmap(file, np.uint8, "c", start, (size,))
        storage = torch.from_numpy(numbers).untyped_storage()
        return torch.empty(0, dtype=dtype).set_(storage, *layout).to(device)
