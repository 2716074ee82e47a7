"""Gradient accumulation: one update from several micro-batches, equal to the update from all of them at once.

A loss is a mean over its terms (tokens, or examples). The mean over all micro-batches of an update is Σ Tᵢ·meanᵢ / Σ Tᵢ, with
Tᵢ the terms of micro-batch i; the plain mean of the means is that only where all Tᵢ are equal.
"""

from collections.abc import Sequence
from inspect import unwrap

import torch
from torch import nn

from course_utils.data import on_device
from course_utils.errors import CourseError
from course_utils.training.callbacks import Callback
from course_utils.training.loop import Run


def num_loss_tokens(model: nn.Module, batch: dict) -> int:
    """The number of terms of which the loss of `model` on `batch` is the mean.

    Labels of whole numbers count unless they are -100: one for each example, or one for each token. A causal language model
    predicts the next token, so the first label of each row is no target and does not count. Labels that are not whole numbers
    (regression, several classes at once) count all. For a loss of another kind it is not right. A wrapper (PEFT's, DDP's,
    `torch.compile`'s, your own) counts as the model in it. Raises `CourseError` for a model that may or may not shift labels.
    """
    labels = batch["labels"]
    if labels.is_floating_point():
        return labels.numel()
    if _shifts_labels(model):
        labels = labels[..., 1:]
    return int((labels != -100).sum())


def _shifts_labels(model: nn.Module) -> bool:
    """Whether the loss compares each token's logits with the next label, as Transformers' loss of causal models does."""
    from transformers import PreTrainedModel

    inner = model
    while not isinstance(inner, PreTrainedModel) and len(children := list(inner.children())) == 1:
        inner = children[0]
    if isinstance(inner, PreTrainedModel):
        answer = _has_causal_loss(inner)
    else:
        parts = [module for module in inner.modules() if isinstance(module, PreTrainedModel)]
        answer = None if any(_has_causal_loss(part) is not False for part in parts) else False
    if answer is None:
        raise CourseError(
            f"The loss of {type(model).__name__} may or may not count the first label of each row; accumulate with a model that "
            "calls Transformers' `loss_function`, alone or in a wrapper that holds nothing else."
        )
    return answer


def _has_causal_loss(model: nn.Module) -> bool | None:
    """Whether a Transformers model calls the library's loss for causal models; None if it has its own loss, shifted or not."""
    from transformers.loss.loss_utils import ForCausalLMLoss

    forwards = [unwrap(vars(kind)["forward"]) for kind in type(model).__mro__ if "forward" in vars(kind)]
    if any("loss_function" in forward.__code__.co_names for forward in forwards if hasattr(forward, "__code__")):
        return model.loss_function is ForCausalLMLoss
    generates = model.loss_type in ("ForCausalLM", "ForConditionalGeneration")
    return None if generates and not model.config.is_encoder_decoder else False


def num_updates(batches: int, k: int, epochs: int = 1) -> int:
    """Updates of a run with `k` micro-batches to each; every epoch ends with one, also if fewer are left for it."""
    return epochs * -(-batches // k)


class Accumulate(Callback):
    """One update from `k` micro-batches, or from as many as are left at the end of an epoch or of the run.

    Each loss is multiplied by Tᵢ/T₁, and the summed gradients are divided once, before the update, by Σ Tᵢ/T₁: exact without
    knowing the later micro-batches. Dividing by T₁ keeps the sum near that of `k` means, which matters in half precision.
    What needs the finished gradient, such as `ClipGradients`, comes after this callback in the list.
    """

    rescales = True

    def __init__(self, k: int):
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise ValueError(f"k={k!r} must be the number of micro-batches of an update, 1 or more.")
        self.k = k
        self.begin_group()

    def begin_group(self) -> None:
        """Count anew what comes for the next update."""
        self.micro_batches = self._terms = self._first_terms = 0

    def on_train_begin(self, run: Run) -> None:
        """Begin with an empty group, unless the run goes on from a checkpoint."""
        if run.step == 0:
            self.begin_group()

    def scale_loss(self, run: Run, loss: torch.Tensor) -> torch.Tensor:
        """The loss times Tᵢ/T₁; T₁ is that of the first micro-batch in which anything counts."""
        terms = num_loss_tokens(run.model, run.batch)
        self._first_terms = self._first_terms or terms
        self.micro_batches += 1
        self._terms += terms
        return loss * (terms / max(1, self._first_terms))

    def should_update(self, run: Run) -> bool:
        """True after the k-th micro-batch, and after the last one."""
        return self.micro_batches >= self.k or run.is_last_of_epoch

    def before_update(self, run: Run) -> None:
        weights = self._terms / max(1, self._first_terms)
        for parameter in run.model.parameters():
            if parameter.grad is not None and weights not in (0, 1):
                parameter.grad.div_(weights)
        self.begin_group()

    def state_dict(self) -> dict:
        return {"seen": self.micro_batches, "terms": self._terms, "first": self._first_terms}

    def load_state_dict(self, state: dict) -> None:
        self.micro_batches, self._terms, self._first_terms = state["seen"], state["terms"], state["first"]


def accumulated_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    micro_batches: Sequence[dict],
    callbacks: Sequence[Callback] = (),
) -> float:
    """Make one update from all `micro_batches`, as `train` does with `Accumulate`; returns their joint mean loss."""
    run = Run(model, optimizer, list(micro_batches), callbacks=[Accumulate(len(micro_batches)), *callbacks])
    total = terms = 0
    with run.callback_context():
        for batch in micro_batches:
            loss = run.forward_backward(on_device(batch, run.device)).detach()
            count = num_loss_tokens(model, batch)
            total += count * loss if count else 0
            terms += count
        run.update()
    return float(total) / max(1, terms)
