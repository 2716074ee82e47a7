"""TRL's output layer and loss, by its own code; on a GPU its Triton kernels write into what is there, and allocate nothing."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from unittest.mock import patch

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from course_utils.errors import CourseError
from course_utils.memory.step.chunked import causal_model


def fuse_head(model: nn.Module) -> None:
    """Let the causal language model within adapters take `fused_lm_head=True`, as SFTTrainer does; in place.

    Raises `CourseError` for another model, and where TRL has no such head.
    """
    plain = causal_model(model, "trl_loss")
    try:
        from trl.trainer.utils import add_fused_lm_head
    except ImportError:
        raise CourseError("trl_loss is TRL 1.16's loss; pip install 'trl>=1.16', or leave it out.") from None
    add_fused_lm_head(plain, outputs=("log_probs", "entropy", "is_top1"))


@contextmanager
def kernels_of_cuda() -> Iterator[None]:
    """Inside, TRL takes the way that it takes on CUDA, without its kernels."""
    from trl.kernels import chunked_logprob
    from trl.trainer import utils

    with ExitStack() as entered:
        for module in (chunked_logprob, utils):
            entered.enter_context(patch.object(module, "_use_triton", lambda device: True))
        for name in ("_forward_kernel", "_backward_kernel"):
            entered.enter_context(patch.object(chunked_logprob, name, _Kernel()))
        triton = SimpleNamespace(cdiv=lambda size, block: -(-size // block))
        entered.enter_context(patch.object(chunked_logprob, "triton", triton, create=True))
        entered.enter_context(patch.object(chunked_logprob, "_addmm_fp32", _add_product))
        entered.enter_context(_EveryLabel())
        yield


class _EveryLabel(TorchFunctionMode):
    """A mask that chooses the tokens with a label chooses all of them, since a fake one of many tokens has no values."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        mask = args[1] if func is torch.Tensor.__getitem__ else None
        if isinstance(mask, torch.Tensor) and mask.dtype is torch.bool:
            places = mask.new_zeros(mask.numel(), mask.ndim, dtype=torch.int64).unbind(1)
            return func(args[0], places)
        return func(*args, **(kwargs or {}))


class _Kernel:
    """Launched as `kernel[grid](…)`, it does nothing."""

    def __getitem__(self, grid):
        return lambda *tensors, **options: None


def _add_product(total: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """What CUDA's product of halves with a sum in float32 costs, written into that sum's own bytes: the CPU has no such thing."""
    columns = total.shape[-1]
    torch.mm(a, b, out=total if total.dtype == a.dtype else total.view(a.dtype)[..., :columns])
