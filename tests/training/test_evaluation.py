"""Evaluation against counts by hand; it leaves the model as it was."""

import pytest
import torch

from course_utils import models, training
from course_utils.errors import CourseError


def test_evaluate_against_a_count_by_hand(model_and_optimizer, batches, split):
    model = model_and_optimizer()[0]
    model.classifier.eval()
    result = training.evaluate(model, batches)
    assert model.training
    assert not model.classifier.training
    model.eval()
    batch = {name: torch.tensor(split[name][:]) for name in ("input_ids", "attention_mask", "labels")}
    with torch.no_grad():
        output = model(**batch)
    right = (output.logits.argmax(-1) == batch["labels"]).float().mean().item()
    assert result["accuracy"] == pytest.approx(right)
    assert result["loss"] == pytest.approx(output.loss.item(), rel=1e-5)


def test_evaluate_on_nothing_is_refused_and_a_failure_leaves_the_mode(model_and_optimizer, batches):
    model = model_and_optimizer()[0]
    with pytest.raises(CourseError, match="nothing to evaluate"):
        training.evaluate(model, [])
    with pytest.raises(ValueError, match="input_ids"):
        training.evaluate(model, [{"labels": torch.ones(1)}])
    assert model.training


def test_a_language_model_is_evaluated_by_its_loss(batches):
    rows = [{"input_ids": batch["input_ids"], "labels": batch["input_ids"]} for batch in batches]
    assert set(training.evaluate(models.build("gpt2"), rows)) == {"loss"}
