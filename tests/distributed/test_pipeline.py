"""A pipeline on real ranks: one process with the whole model is the oracle."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss

from course_utils.distributed import launch
from course_utils.distributed.pipeline import Pipeline
from course_utils.distributed.pipeline_schedules import Schedule, gpipe, one_f_one_b
from course_utils.errors import CourseError

WIDTH, ROWS = 6, 5


def model():
    torch.manual_seed(0)
    return nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(6)).double()


def data(micro_batches):
    draw = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(2, micro_batches, ROWS, WIDTH, generator=draw, dtype=torch.float64)
    return list(inputs), list(targets)


def in_one_process(micro_batches):
    blocks, losses = model(), []
    for x, target in zip(*data(micro_batches), strict=True):
        loss = mse_loss(nn.Sequential(*blocks)(x), target)
        (loss / micro_batches).backward()
        losses.append(loss.item())
    return [p.grad for p in blocks.parameters()], losses


def one_at_a_time(stages, micro_batches):
    return [[(kind, i) for i in range(micro_batches) for kind in "FB"] for _ in range(stages)]


def last_first(stages, micro_batches):
    """All forward passes in one direction, all backward passes in the other."""
    forward = [("F", i) for i in range(micro_batches)]
    return [forward + [("B", i) for i, _ in enumerate(forward)][::-1] for _ in range(stages)]


def another_for_each(stages, micro_batches):
    """GPipe on the first stage, 1F1B on the others."""
    return [gpipe(stages, micro_batches)[0], *one_f_one_b(stages, micro_batches)[1:]]


def forward_in_other_orders(stages, micro_batches):
    """The last stage takes forward passes from the last micro-batch on."""
    orders = gpipe(stages, micro_batches)
    return [*orders[:-1], orders[-1][:micro_batches][::-1] + orders[-1][micro_batches:]]


ORDERS = gpipe, one_f_one_b, one_at_a_time, last_first, another_for_each, forward_in_other_orders


def on_rank(orders, micro_batches, updates=1):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    blocks = model()
    stage = nn.Sequential(*blocks[rank * 6 // ranks : (rank + 1) * 6 // ranks])
    pipeline = Pipeline(stage, (ROWS, WIDTH), torch.float64, mse_loss)
    for _ in range(updates):
        stage.zero_grad()
        losses = pipeline.run(orders(ranks, micro_batches)[rank], *data(micro_batches))
    return [p.grad for p in stage.parameters()], [loss.item() for loss in losses]


def in_each_order(micro_batches):
    return [on_rank(orders, micro_batches) for orders in ORDERS]


@pytest.mark.parametrize(("ranks", "micro_batches"), [(1, 3), (2, 6), (3, 2)])
def test_gradients_and_losses_are_those_of_one_process(ranks, micro_batches):
    """Also where a message is known by its micro-batch alone, and not by its place."""
    truth, losses = in_one_process(micro_batches)
    for orders, seen in zip(ORDERS, zip(*launch(in_each_order, ranks, micro_batches), strict=True), strict=True):
        for gradient, right in zip(sum((grads for grads, _ in seen), []), truth, strict=True):
            torch.testing.assert_close(gradient, right, rtol=0, atol=1e-12, msg=orders.__name__)
        in_order = losses[::-1] if orders is forward_in_other_orders else losses
        assert seen[-1][1] == pytest.approx(in_order, abs=1e-12)
        assert all(not losses for _, losses in seen[:-1])


def one_at_a_time_and_both_first(stages, micro_batches):
    return [one_at_a_time(stages, micro_batches)[0], gpipe(stages, micro_batches)[1]]


def test_an_order_that_a_schedule_refuses_hangs_on_real_ranks():
    with pytest.raises(CourseError, match="This schedule never ends"):
        Schedule(one_at_a_time_and_both_first(2, 2))
    with pytest.raises(CourseError, match="not done after 3 s"):
        launch(on_rank, 2, one_at_a_time_and_both_first, 2, seconds=3)


def test_a_second_update_begins_afresh():
    once, twice = (launch(on_rank, 2, one_f_one_b, 3, updates) for updates in (1, 2))
    for (gradients, _), (second_gradients, _) in zip(once, twice, strict=True):
        assert all(map(torch.equal, gradients, second_gradients))
