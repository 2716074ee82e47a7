"""A model that learns from a larger one's logits, beside the labels."""

from functools import partialmethod

import torch
from torch import nn
from torch.nn import functional as F

from course_utils.errors import CourseError
from course_utils.memory.step.chunked import is_causal
from course_utils.techniques import distillation_loss
from course_utils.techniques.chunked_loss import IGNORED


def learn_from(model: nn.Module, teacher: nn.Module) -> None:
    """Let `model(**batch)` return the `distillation_loss` of its logits, the teacher's and the labels; in place.

    The teacher becomes its module `teacher`: frozen, without dropout, in no saved state. In evaluation the model is as before.
    """
    plain = model.get_base_model() if hasattr(model, "get_base_model") else model
    plain.teacher = teacher.requires_grad_(False)
    kind = type(plain)  # of a class of its own, so that hooks and adapters find a forward like any other
    plain.__class__ = type(kind.__name__, (kind,), {"forward": partialmethod(_forward, kind)})


def own_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """The model's `state_dict` without the teacher's."""
    return {name: tensor for name, tensor in model.state_dict().items() if "teacher" not in name.split(".")}


def _forward(self, kind: type, *others, labels: torch.Tensor | None = None, **inputs):
    if not self.training:
        return kind.forward(self, *others, labels=labels, **inputs)
    if others or labels is None:
        raise CourseError(f"A teacher needs labels by Transformers' names; leave teacher out for {kind.__name__}.")
    outputs = kind.forward(self, **inputs)
    with torch.no_grad():
        wanted = self.teacher.eval()(**inputs).logits
    student = outputs.logits
    if student.shape[-1] != wanted.shape[-1]:
        raise CourseError(
            f"The student says {student.shape[-1]:,} numbers for each label and the teacher {wanted.shape[-1]:,}; "
            "choose a teacher with the same vocabulary, or the same classes."
        )
    if is_causal(kind):  # each token is to be told from those before it, as Transformers' own loss has it
        labels = F.pad(labels, (0, 1), value=IGNORED)[..., 1:]
    outputs["loss"] = distillation_loss(student, wanted, labels)
    return outputs
