"""Loss and scores of a model on data that it was not trained on."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from course_utils import data
from course_utils.errors import CourseError


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[dict]) -> dict[str, float]:
    """`loss` (mean over examples) and, for a classifier, `accuracy` and `f1` (see `data.metrics`) on `batches`.

    Every module is left in the mode it was in. Raises `CourseError` when there are no batches.
    """
    device = next(model.parameters()).device
    losses, labels, predictions = [], [], []
    with _evaluation_mode(model):
        for batch in batches:
            output = model(**data.on_device(batch, device))
            losses.append(output.loss * len(batch["labels"]))
            labels.append(batch["labels"])
            predictions.append(output.logits.argmax(-1).cpu())
    if not labels:
        raise CourseError("There is nothing to evaluate on: the batches are empty.")
    labels = torch.cat(labels)
    result = {"loss": torch.stack(losses).sum().item() / len(labels)}
    if labels.ndim > 1:  # a language model's labels are its input
        return result
    return result | data.metrics(labels, torch.cat(predictions), model.config.num_labels)


@contextmanager
def _evaluation_mode(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
