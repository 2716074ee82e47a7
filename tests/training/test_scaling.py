"""Loss scaling in the loop, against torch's scaler in a bare loop and with the callbacks it must get on with."""

import math
from functools import partial

import pytest
import torch

from course_utils import training
from course_utils.errors import CourseError
from course_utils.precision import LossScaler

FP16 = training.Autocast(torch.float16)


class InTwos(training.Callback):
    """The least that accumulation is: an update after every second batch."""

    def should_update(self, run):
        return run.step % 2 == 1


class Overflow(training.Callback):
    """Makes the objective infinite in the steps `at`, counted from 0."""

    def __init__(self, *steps):
        self.steps = steps

    def scale_loss(self, run, loss):
        return loss * math.inf if run.step in self.steps else loss


def parameters(model):
    return [p.detach().clone() for p in model.parameters()]


def all_equal(first, second):
    return all(torch.equal(p, q) for p, q in zip(first, second, strict=True))


def bare_loop(model, optimizer, schedule, batches, scaler):
    losses = []
    torch.manual_seed(0)
    model.train()
    for batch in batches:
        with torch.autocast("cpu", torch.float16):
            loss = model(**batch).loss
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= before:
            schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("scale", [2.0**10, 2.0**30])
def test_fp16_with_clipping_is_torch_s_bare_loop(scheduled, batches, scale):
    model, optimizer, schedule = scheduled()
    callbacks = [FP16, training.ScaleLoss(LossScaler(scale, growth_interval=3)), training.ClipGradients(0.5)]
    history = training.train(model, optimizer, batches, schedule=schedule, callbacks=callbacks, progress=False)
    other, its_optimizer, its_schedule = scheduled()
    scaler = torch.amp.GradScaler("cpu", scale, growth_interval=3)
    batches.sampler.set_epoch(0)
    assert history.losses == bare_loop(other, its_optimizer, its_schedule, batches, scaler)
    assert callbacks[1].scaler.get_scale() == scaler.get_scale()
    assert (callbacks[1].scaler.skipped > 0) == (scale > 2**20)
    assert all_equal(model.parameters(), other.parameters())
    assert schedule.last_epoch == its_schedule.last_epoch


@pytest.mark.parametrize("broken", [0, 1])
def test_an_overflow_in_any_micro_batch_leaves_the_group_out_and_the_schedule_waits(scheduled, batches, broken):
    model, optimizer, schedule = scheduled()
    before = parameters(model)
    scaling = training.ScaleLoss(LossScaler(16.0))
    run = partial(training.train, model, optimizer, batches, schedule=schedule, progress=False)
    run(steps=2, callbacks=[Overflow(broken), scaling, InTwos()])
    assert all_equal(before, model.parameters())
    assert (scaling.scaler.get_scale(), scaling.scaler.skipped, schedule.last_epoch) == (8.0, 1, 0)
    run(steps=4, callbacks=[scaling, InTwos()])  # the first update of the warm-up has a learning rate of 0
    assert not all_equal(before, model.parameters())
    assert schedule.last_epoch == 2


def test_a_scale_changes_nothing_in_float32_and_a_group_is_unscaled_once(train):
    """Powers of two are exact, so the parameters are those without scaling, bit for bit."""
    for rest in ([], [InTwos()]):
        scaled, _ = train(training.ScaleLoss(LossScaler(2.0**8)), *rest, steps=4)
        assert all_equal(scaled.parameters(), train(*rest, steps=4)[0].parameters())


def test_a_resumed_run_has_the_same_scale_count_and_losses(train, tmp_path):
    def callbacks():
        scaling = training.ScaleLoss(LossScaler(2.0**30, growth_interval=2))
        return [Overflow(3), FP16, scaling, training.SaveCheckpoints(tmp_path / "run.pt", interval=2)]

    first_callbacks, later_callbacks = callbacks(), callbacks()
    _, straight = train(*first_callbacks[:3], epochs=2)
    train(*callbacks(), epochs=2, steps=4)
    _, resumed = train(*later_callbacks, epochs=2, resume_from=tmp_path / "run.pt")
    assert resumed.losses == straight.losses
    assert later_callbacks[2].state_dict() == first_callbacks[2].state_dict()


def test_what_scaling_cannot_help_is_refused(train, model_and_optimizer):
    def in_fp16():
        model, optimizer = model_and_optimizer()
        return model.half(), optimizer

    with pytest.raises(CourseError, match="ScaleLoss puts the gradients right only after ClipGradients"):
        train(training.ClipGradients(1.0), training.ScaleLoss())
    with pytest.raises(CourseError, match="float16 gradient would underflow again"):
        train(training.ScaleLoss(), build=in_fp16)
    with pytest.raises(CourseError, match="not finite at any scale"):
        train(Overflow(0), training.ScaleLoss(LossScaler(2.0**-149)))
