"""Accuracy and F1 of a classifier."""

from collections.abc import Iterable

import torch
from torch import nn

from course_utils import data


@torch.no_grad()
def evaluate(model: nn.Module, batches: Iterable[dict]) -> dict[str, float]:
    """`loss` (mean over examples), `accuracy` and `f1` (see `data.metrics`) of a classifier on `batches`.

    The model is left in the mode it was in.
    """
    device, was_training = next(model.parameters()).device, model.training
    losses, labels, predictions, classes = [], [], [], model.config.num_labels
    model.eval()
    for batch in batches:
        output = model(**{name: value.to(device) for name, value in batch.items()})
        losses.append(output.loss * len(batch["labels"]))
        predictions.append(output.logits.argmax(-1).cpu())
        labels.append(batch["labels"])
    model.train(was_training)
    labels = torch.cat(labels)
    loss = torch.stack(losses).sum().item() / len(labels)
    return {"loss": loss, **data.metrics(labels, torch.cat(predictions), classes)}
