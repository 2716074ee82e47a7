"""Distillation (Hinton, Vinyals and Dean 2015): a small model learns what a larger one says of every class, not the label alone.

`student` and `teacher` are logits (…, V) of the same tokens; `labels` (…) are whole numbers, `IGNORED` where there is none.
"""

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from course_utils.techniques.chunked_loss import IGNORED


def soft_loss(
    student: Float[Tensor, "*tokens V"],
    teacher: Float[Tensor, "*tokens V"],
    labels: Int[Tensor, "*tokens"],
    temperature: float,
) -> Float[Tensor, ""]:
    """T² · KL(softmax(teacher / T) ‖ softmax(student / T)), the mean over the tokens that have a label.

    A gradient by the student's logits falls as 1/T² as T grows; the factor makes up for that.
    """
    is_labeled = labels != IGNORED
    target, predicted = ((logits[is_labeled] / temperature).log_softmax(-1) for logits in (teacher.detach(), student))
    return temperature**2 * F.kl_div(predicted, target, reduction="batchmean", log_target=True)


def distillation_loss(
    student: Float[Tensor, "*tokens V"],
    teacher: Float[Tensor, "*tokens V"],
    labels: Int[Tensor, "*tokens"],
    temperature: float = 2.0,
    weight: float = 0.5,
) -> Float[Tensor, ""]:
    """`weight` of the soft loss, and the rest of the cross-entropy with the labels."""
    hard_loss = F.cross_entropy(student.flatten(0, -2), labels.flatten())
    return weight * soft_loss(student, teacher, labels, temperature) + (1 - weight) * hard_loss
