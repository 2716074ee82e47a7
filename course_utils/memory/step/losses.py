"""Losses in place of a model's own: of some tokens at a time, without whole logits; with a teacher's logits; and TRL's.

TRL's loss is computed by its own code. Its Triton kernels on a GPU write into existing memory and allocate nothing.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import partialmethod, wraps
from types import SimpleNamespace
from unittest.mock import patch

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from course_utils.errors import CourseError
from course_utils.techniques import distillation_loss
from course_utils.techniques.chunked_loss import IGNORED, LossWithGradients

# What some configurations do to logits before the loss, which the loss by pieces does not.
_SCALES = ("final_logit_softcapping", "logit_scale", "logits_scaling")


def chunk_loss(model: nn.Module, tokens: int) -> None:
    """Let `model(**batch)` return hidden states and the loss by `LossWithGradients`, `tokens` at a time; changed in place.

    Raises `CourseError` for a model with anything else between hidden states and loss than the output layer's weight.
    """
    plain = causal_model(model, "chunked_loss")
    kind = type(plain)
    obstacles = ["a bias"] if getattr(plain.get_output_embeddings(), "bias", None) is not None else []
    obstacles += [name for name in _SCALES if getattr(plain.config, name, None)]
    if obstacles:
        raise CourseError(f"{kind.__name__} has {obstacles[0]} between hidden states and loss; leave chunked_loss out.")

    @wraps(kind.forward)  # it has the same inputs
    def forward(self: nn.Module, **inputs) -> dict:
        return _forward_by_pieces(self, tokens, **inputs)

    # Of a class of its own, so that hooks, adapters and FSDP2 find a forward like any other.
    plain.__class__ = type(kind.__name__, (kind,), {"forward": forward})


def causal_model(model: nn.Module, field: str) -> nn.Module:
    """The model without its adapters. Raises `CourseError`, which names the recipe's `field`, if that is not causal."""
    plain = without_adapters(model)
    if not is_causal(type(plain)):
        raise CourseError(
            f"{field} is for causal language models of Transformers, such as GPT-2 and Llama; "
            f"leave it out for {type(plain).__name__}."
        )
    return plain


def without_adapters(model: nn.Module) -> nn.Module:
    """The model within PEFT's adapters, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def is_causal(kind: type) -> bool:
    """Whether the class `kind` is one of Transformers' causal language models."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    return kind.__name__ in CAUSAL.values()


def _forward_by_pieces(
    self: nn.Module, tokens: int, *, labels: torch.Tensor, shift_labels: torch.Tensor | None = None, **inputs
) -> dict:
    hidden = self.base_model(**inputs).last_hidden_state
    if shift_labels is None:
        shift_labels = next_tokens(labels)
    weight = self.get_output_embeddings().weight
    loss = LossWithGradients.apply(hidden.flatten(0, 1), weight, shift_labels.flatten(), tokens)
    return {"loss": loss, "last_hidden_state": hidden}


def next_tokens(labels: torch.Tensor) -> torch.Tensor:
    """For each place of `labels` (…, s) the label after it, and `IGNORED` for the last, as in Transformers' own loss."""
    return F.pad(labels, (0, 1), value=IGNORED)[..., 1:]


def learn_from(model: nn.Module, teacher: nn.Module) -> None:
    """Let `model(**batch)` return the `distillation_loss` of its logits, the teacher's and the labels; changed in place.

    The teacher becomes the module `teacher` of the model. It is frozen, has no dropout and is not saved. In evaluation the model
    returns its own loss, as before.
    """
    plain = without_adapters(model)
    plain.teacher = teacher.requires_grad_(False)
    kind = type(plain)  # of a class of its own, so that hooks and adapters find a forward like any other
    plain.__class__ = type(kind.__name__, (kind,), {"forward": partialmethod(_forward_with_teacher, kind)})


def own_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """The model's `state_dict` without the teacher's."""
    return {name: tensor for name, tensor in model.state_dict().items() if "teacher" not in name.split(".")}


def _forward_with_teacher(self: nn.Module, kind: type, *others, labels: torch.Tensor | None = None, **inputs) -> object:
    if not self.training:
        return kind.forward(self, *others, labels=labels, **inputs)
    if others or labels is None:
        raise CourseError(f"A teacher needs labels by Transformers' names; leave teacher out for {kind.__name__}.")
    outputs = kind.forward(self, **inputs)
    with torch.no_grad():
        teacher_logits = self.teacher.eval()(**inputs).logits
    student_logits = outputs.logits
    if student_logits.shape[-1] != teacher_logits.shape[-1]:
        raise CourseError(
            f"The student says {student_logits.shape[-1]:,} numbers for each label and the teacher {teacher_logits.shape[-1]:,}; "
            "choose a teacher with the same vocabulary, or the same classes."
        )
    targets = next_tokens(labels) if is_causal(kind) else labels
    outputs["loss"] = distillation_loss(student_logits, teacher_logits, targets)
    return outputs


def fuse_head(model: nn.Module) -> None:
    """Let a causal language model take `fused_lm_head=True`, as SFTTrainer does; the model is changed in place.

    Raises `CourseError` for another model, and if TRL has no such head.
    """
    plain = causal_model(model, "trl_loss")
    try:
        from trl.trainer.utils import add_fused_lm_head
    except ImportError:
        raise CourseError("trl_loss is TRL 1.16's loss; pip install 'trl>=1.16', or leave it out.") from None
    add_fused_lm_head(plain, outputs=("log_probs", "entropy", "is_top1"))


@contextmanager
def kernels_of_cuda() -> Iterator[None]:
    """A context in which TRL takes the same steps as on CUDA, with kernels that do nothing."""
    from trl.kernels import chunked_logprob
    from trl.trainer import utils

    with ExitStack() as stack:
        for module in (chunked_logprob, utils):
            stack.enter_context(patch.object(module, "_use_triton", lambda device: True))
        for name in ("_forward_kernel", "_backward_kernel"):
            stack.enter_context(patch.object(chunked_logprob, name, _Kernel()))
        triton = SimpleNamespace(cdiv=lambda size, block: -(-size // block))
        stack.enter_context(patch.object(chunked_logprob, "triton", triton, create=True))
        stack.enter_context(patch.object(chunked_logprob, "_addmm_fp32", _add_product))
        stack.enter_context(EveryLabel())
        yield


class EveryLabel(TorchFunctionMode):
    """A mode in which a mask, such as that of tokens with a label, selects all, since a large fake mask has no values."""

    def __torch_function__(self, func: Callable, types: Collection[type], args: tuple = (), kwargs: dict | None = None):
        mask = args[1] if func is torch.Tensor.__getitem__ else None
        if isinstance(mask, torch.Tensor) and mask.dtype is torch.bool:
            indices = mask.new_zeros(mask.numel(), mask.ndim, dtype=torch.int64).unbind(1)
            return func(args[0], indices)
        return func(*args, **(kwargs or {}))


class _Kernel:
    """A Triton kernel, launched as `kernel[grid](…)`, that does nothing."""

    def __getitem__(self, grid: tuple[int, ...]):
        return lambda *tensors, **options: None


def _add_product(total: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    """Allocate as little as CUDA's product of 16-bit matrices added to a float32 `total`, which the CPU does not have."""
    columns = total.shape[-1]
    torch.mm(a, b, out=total if total.dtype == a.dtype else total.view(a.dtype)[..., :columns])
