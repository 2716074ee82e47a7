"""What a forward pass saves for the backward pass: by tensor and module, or for a dry run nowhere; bytes behind tensors."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial

import pandas as pd
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import _disable_current_modes

_PARAMETER, _EARLIER_SAVE, _ACTIVATION = "parameter or buffer", "saved before", "activation"


def saved_bytes(forward: Callable[[], object], model: nn.Module) -> int:
    """Bytes that autograd saves while `forward()` runs: the activations, A.

    Each piece of memory counts once, however many operations save it; parameters and buffers of `model` do not count, since
    they are kept anyway.
    """
    return int(saved_list(forward, model)["bytes"].sum())


def saved_list(forward: Callable[[], object], model: nn.Module) -> pd.DataFrame:
    """Everything that autograd saves while `forward()` runs, in order: module, shape, dtype, bytes, kind.

    `module` is the innermost running module, empty outside of all. `kind` is an activation, whose memory is kept only for
    backward, or memory that is kept anyway: a parameter or buffer, or what was saved before. The bytes of an activation are
    those of its whole storage, and their sum is `saved_bytes`; the other kinds have 0.
    """
    rows: list[tuple] = []
    kinds: dict[StorageWeakRef, str] = {_storage_of(t): _PARAMETER for t in [*model.parameters(), *model.buffers()]}
    running: list[str] = [""]  # the modules, the innermost last

    def remember(tensor: torch.Tensor) -> torch.Tensor:
        kind = kinds.get(_storage_of(tensor), _ACTIVATION)
        kinds.setdefault(_storage_of(tensor), _EARLIER_SAVE)
        size = tensor.untyped_storage().nbytes() if kind == _ACTIVATION else 0
        rows.append((running[-1], tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), size, kind))
        return tensor.detach()  # without its graph: a tensor saved in its own graph would never be freed

    def leave(*_) -> None:  # a hook that returned something would replace the module's output
        running.pop()

    with ExitStack() as stack:
        for name, module in model.named_modules():
            before = module.register_forward_pre_hook(lambda *_, name=name: running.append(name))
            stack.callback(before.remove)
            stack.callback(module.register_forward_hook(leave, always_call=True).remove)
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor))
        result = forward()
    del result  # the graph must outlive the count, or a freed tensor's address could be counted twice
    return pd.DataFrame(rows, columns=["module", "shape", "dtype", "bytes", "kind"])


class SavedNowhere(torch.autograd.graph.saved_tensors_hooks):
    """`SavedOnDisk` for fake tensors: saved ones take no memory, nor do those that are mapped from the file again."""

    def __init__(self, model: nn.Module):
        resident = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}

        def save(tensor: torch.Tensor) -> torch.Tensor | Callable[[], torch.Tensor]:
            if tensor.untyped_storage()._cdata in resident:
                return tensor.detach()
            return partial(torch.empty_strided, tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)

        def read(saved: torch.Tensor | Callable[[], torch.Tensor]) -> torch.Tensor:
            if isinstance(saved, torch.Tensor):
                return saved
            # Made under the fake mode alone, so that the meter does not see it.
            with _disable_current_modes() as modes, next(mode for mode in modes if isinstance(mode, FakeTensorMode)):
                return saved()

        super().__init__(save, read)


def distinct_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the storages behind `tensors`; a storage that several of them share counts once.

    Tensors on the `meta` device count as if they had memory.
    """
    sizes = {_storage_of(t): t.untyped_storage().nbytes() for t in tensors}
    return sum(sizes.values())


def _storage_of(tensor: torch.Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())
