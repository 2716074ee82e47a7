"""A causal language model of Transformers', whose loss is made by pieces of tokens: whole logits are never there."""

from functools import wraps

import torch
from torch import nn
from torch.nn import functional as F

from course_utils.errors import CourseError
from course_utils.techniques.chunked_loss import IGNORED, LossWithGradients

_SCALES = ("final_logit_softcapping", "logit_scale", "logits_scaling")
"""What some configurations do to logits before the loss, which the loss by pieces does not."""


def chunk_loss(model: nn.Module, tokens: int) -> None:
    """Let `model(**batch)` return hidden states and the loss, `LossWithGradients` of so many tokens at a time; in place."""
    plain = causal_model(model, "chunked_loss")
    more = ["a bias"] * (getattr(plain.get_output_embeddings(), "bias", None) is not None)
    more += [name for name in _SCALES if getattr(plain.config, name, None)]
    if more:
        raise CourseError(
            f"{type(plain).__name__} has {more[0]} between hidden states and loss; leave chunked_loss out."
        )
    kind = type(plain)

    @wraps(kind.forward)  # it has the same inputs
    def forward(self, **inputs):
        return _forward(self, tokens, **inputs)

    # Of a class of its own, so that hooks, adapters and FSDP2 find a forward like any other.
    plain.__class__ = type(kind.__name__, (kind,), {"forward": forward})


def causal_model(model: nn.Module, field: str) -> nn.Module:
    """The causal language model within adapters; raises `CourseError`, for the `field` that wants one, where it is none."""
    plain = model.get_base_model() if hasattr(model, "get_base_model") else model
    if not is_causal(type(plain)):
        raise CourseError(
            f"{field} is for causal language models of Transformers, such as GPT-2 and Llama; "
            f"leave it out for {type(plain).__name__}."
        )
    return plain


def is_causal(kind: type) -> bool:
    """Whether this is the class of one of Transformers' causal language models."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    return kind.__name__ in CAUSAL.values()


def _forward(self, tokens: int, *, labels: torch.Tensor, shift_labels: torch.Tensor | None = None, **inputs) -> dict:
    hidden = self.base_model(**inputs).last_hidden_state
    if shift_labels is None:  # each token is to be told from those before it, as Transformers' own loss has it
        shift_labels = F.pad(labels, (0, 1), value=IGNORED)[..., 1:]
    weight = self.get_output_embeddings().weight
    loss = LossWithGradients.apply(hidden.flatten(0, 1), weight, shift_labels.flatten(), tokens)
    return {"loss": loss, "last_hidden_state": hidden}
