"""When callbacks are called, and what the first two do."""

import pytest
import torch

from course_utils import training

MOMENTS = (
    "on_train_begin",
    "forward",
    "scale_loss",
    "should_update",
    "before_update",
    "update",
    "after_batch",
    "on_train_end",
)


def test_callbacks_are_called_at_their_moments_in_order(train):
    calls = []

    def spy_on(moment):
        def call(self, *arguments):
            calls.append(moment)
            return getattr(training.Callback, moment)(self, *arguments)

        return call

    Spy = type("Spy", (training.Callback,), {moment: spy_on(moment) for moment in MOMENTS})  # noqa: N806
    train(Spy(), steps=1)
    assert tuple(calls) == MOMENTS


def test_clipping_bounds_the_joint_norm(train):
    norms = []

    class Norm(training.Callback):
        def before_update(self, run):
            norms.append(torch.nn.utils.get_total_norm([p.grad for p in run.model.parameters()]).item())

    train(Norm(), training.ClipGradients(0.01), Norm())
    assert min(norms[::2]) > 0.01
    assert norms[1::2] == pytest.approx([0.01] * 5, rel=1e-3)
    with pytest.raises(ValueError, match="max_norm=0"):
        training.ClipGradients(0)


def test_autocast_is_really_on(model_and_optimizer, batches):
    model, optimizer = model_and_optimizer()
    seen = []
    model.classifier.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    training.train(model, optimizer, batches, steps=1, callbacks=[training.Autocast(torch.bfloat16)], progress=False)
    assert seen == [torch.bfloat16]
    assert all(p.dtype == torch.float32 for p in model.parameters())
