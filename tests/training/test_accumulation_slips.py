"""Every slip is the one that its name says: equal to the plain loop with that one line wrong, and unequal to the right one."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from course_utils import training
from course_utils.training import accumulation_slips as slips
from course_utils.training.gradients import gradient_of_update, relative_error

K, CLIP, RATE, COUNTS = 3, 0.05, 0.5, (1, 6, 2, 6, 6, 3, 1, 5)


class Regression(nn.Module):
    """Batches of different numbers of rows; each label counts."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layer = nn.Linear(4, 1, dtype=torch.float64)

    def forward(self, input_ids, labels):
        return SimpleNamespace(loss=nn.functional.mse_loss(self.layer(input_ids)[:, 0], labels))


class Loader(list):
    sampler = None


@pytest.fixture(scope="module")
def batches():
    draw = torch.Generator().manual_seed(1)
    made = [torch.randn(count, 5, generator=draw, dtype=torch.float64) for count in COUNTS]
    return Loader({"input_ids": rows[:, :4], "labels": rows[:, 4] * 3} for rows in made)


def parts(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


def plain_loop(batches, wrong):
    """The loop as anyone would write it, with one line `wrong`."""
    model = Regression()
    optimizer, schedule = parts(model)
    for i, batch in enumerate(batches):
        group = batches[i - i % K : i - i % K + K]
        if wrong == "at 0":
            group = [batches[0]] if i == 0 else batches[(i - 1) // K * K + 1 :][:K]
        share = len(batch["labels"]) / sum(len(b["labels"]) for b in group)
        if wrong == "zero each time":
            optimizer.zero_grad()
        if wrong in ("zero each time", "clip each time"):
            # Here the update divides what it finds by the terms of the group.
            share = len(batch["labels"])
        loss = model(**batch).loss * (1 / K if wrong == "by k" else share)
        loss.backward()
        if wrong == "clip each time":
            _clip_in_units(model, batches[i - i % K])
        last = i + 1 == len(batches) and wrong not in ("drop last", "at 0")
        if (i % K == 0 if wrong == "at 0" else (i + 1) % K == 0) or last:
            total = sum(len(b["labels"]) for b in group)
            if wrong in ("zero each time", "clip each time"):
                for p in model.parameters():
                    p.grad /= total
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        elif wrong == "schedule each time":
            schedule.step()
    return model


def _clip_in_units(model, first):
    """Clip as `Accumulate` sees the sum: in units of the first micro-batch's terms."""
    unit = len(first["labels"])
    for p in model.parameters():
        p.grad /= unit
    nn.utils.clip_grad_norm_(model.parameters(), K * CLIP)
    for p in model.parameters():
        p.grad *= unit


def trained(batches, callback):
    model = Regression()
    optimizer, schedule = parts(model)
    training.train(model, optimizer, batches, schedule=schedule, callbacks=[callback], progress=False)
    return nn.utils.parameters_to_vector(model.parameters()).detach()


SLIPS = {
    "none": training.Accumulate(K),
    "at 0": slips.StepsAtBatchZero(K),
    "by k": slips.DividesByK(K),
    "drop last": slips.DropsLastGroup(K),
    "zero each time": slips.ZeroesEachTime(K),
    "clip each time": slips.ClipsEachTime(K, CLIP),
    "schedule each time": slips.SchedulesEachTime(K),
}


@pytest.mark.parametrize("wrong", SLIPS)
def test_a_slip_is_the_plain_loop_with_that_line_wrong(batches, wrong):
    expected = nn.utils.parameters_to_vector(plain_loop(batches, wrong).parameters()).detach()
    assert torch.allclose(trained(batches, SLIPS[wrong]), expected, rtol=0, atol=1e-12)
    right = trained(batches, training.Accumulate(K))
    assert (wrong == "none") == torch.allclose(expected, right, rtol=0, atol=1e-4)


def test_without_zeroing_every_update_holds_the_gradients_before_it(batches):
    model, seen = Regression(), []

    class Look(training.Callback):
        def before_update(self, run):
            seen.append(run.model.layer.weight.grad.clone())

    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    training.train(model, optimizer, Loader(batches[:6]), callbacks=[slips.ForgetsToZero(K), Look()], progress=False)
    one, two = (joint_gradient(batches[i : i + 3]) for i in (0, 3))
    assert torch.allclose(seen[0], one)
    assert torch.allclose(seen[1], two + one)


def test_clipping_each_time_with_equal_micro_batches_is_the_loop_that_divides_by_k_and_clips_each_time(batches):
    equal = Loader({name: value[:2] for name, value in batch.items()} for batch in batches if len(batch["labels"]) > 1)[
        :K
    ]
    model = Regression()
    for batch in equal:
        (model(**batch).loss / K).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    torch.optim.SGD(model.parameters(), lr=RATE).step()
    expected = nn.utils.parameters_to_vector(model.parameters()).detach()
    assert torch.allclose(trained(Loader(equal), slips.ClipsEachTime(K, CLIP)), expected, rtol=0, atol=1e-6)


def joint_gradient(batches):
    model = Regression()
    model(**{name: torch.cat([b[name] for b in batches]) for name in batches[0]}).loss.backward()
    return model.layer.weight.grad


def test_the_gradient_of_an_update_is_read_from_the_step(batches):
    model = Regression()
    before = [p.clone() for p in model.parameters()]
    run = {"callbacks": [training.Accumulate(3)], "progress": False}
    found = gradient_of_update(model, lambda o: training.train(model, o, Loader(batches[:3]), **run))
    right = joint_gradient(batches[:3]).flatten()
    assert relative_error(found[:4], right) < 1e-12
    assert all(map(torch.equal, before, model.parameters()))
