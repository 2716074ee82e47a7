"""16-bit parameters under any optimizer: what each way of rounding keeps, against the optimizer in float32."""

import copy

import pytest
import torch
from torch import nn

from course_utils import memory, optim
from course_utils.precision import FORMATS, KahanSum, MasterWeights, RoundToNearest, StochasticRounding

KINDS = [RoundToNearest, StochasticRounding, KahanSum, MasterWeights]
SPACING = FORMATS["bf16"].spacing(1.0)


def adamw(groups):
    return optim.AdamW(groups, lr=1e-3)


def push(kind, steps, update, count=1):
    """Ones, moved by `steps` updates of size `update` with plain gradient descent; how far each came."""
    theta = torch.ones(count, dtype=torch.bfloat16, requires_grad=True)
    optimizer = kind([theta], lambda groups: torch.optim.SGD(groups, lr=1.0))
    for _ in range(steps):
        theta.grad = torch.full_like(theta, -update)
        optimizer.step()
    return theta.detach().float() - 1, optimizer


def test_an_update_below_half_a_spacing_is_lost_by_rounding_to_nearest():
    assert push(RoundToNearest, 100, SPACING / 4)[0].item() == 0
    assert push(RoundToNearest, 100, SPACING)[0].item() == 100 * SPACING


def test_stochastic_rounding_makes_it_on_average():
    distances = push(StochasticRounding, 64, SPACING / 4, count=4000)[0]
    assert distances.mean().item() == pytest.approx(16 * SPACING, rel=0.02)


@pytest.mark.parametrize("kind", [KahanSum, MasterWeights])
def test_what_is_kept_adds_up(kind):
    assert push(kind, 64, SPACING / 4)[0].item() == 16 * SPACING


def test_the_residual_is_kahan_s_sum():
    """Against compensated summation as it is usually written, on the same float32 sums."""
    residual, plain = 0.0, 1.0
    bf16 = FORMATS["bf16"]
    distance, optimizer = push(KahanSum, 37, 0.001953125)  # a power of two: exact in bfloat16
    for _ in range(37):
        y = 0.001953125 + residual
        total = bf16.nearest(torch.tensor(plain + y, dtype=torch.float64)).item()
        residual, plain = y - (total - plain), total
    (state,) = optimizer.state.values()
    assert (distance.item() + 1, state["residual"].item()) == (plain, residual)


def test_masters_are_the_float32_run_fed_with_the_same_gradients():
    start = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    theta, reference = start.clone().requires_grad_(), start.float().requires_grad_()
    optimizer, its = MasterWeights([theta], adamw), torch.optim.AdamW([reference], lr=1e-3)
    for t in range(20):
        gradient = torch.randn(6, 4, generator=torch.Generator().manual_seed(t)).bfloat16()
        theta.grad, reference.grad = gradient.clone(), gradient.float()
        optimizer.step()
        its.step()
    (state,) = optimizer.state.values()
    assert torch.allclose(state["master"], reference, rtol=1e-5, atol=1e-7)
    assert torch.equal(theta, state["master"].bfloat16())


@pytest.mark.parametrize("kind", KINDS)
def test_float32_parameters_are_moved_as_they_are(kind):
    theta, reference = (torch.ones(5, requires_grad=True) for _ in range(2))
    optimizer, its = kind([theta], adamw), optim.AdamW([reference], lr=1e-3)
    for _ in range(3):
        theta.grad = reference.grad = torch.linspace(-1, 1, 5)
        optimizer.step()
        its.step()
    assert torch.equal(theta, reference)
    assert not {"master", "residual"} & set(optimizer.state[theta])


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_are_what_it_says(kind):
    model = nn.Linear(64, 32, dtype=torch.bfloat16)
    optimizer = kind(optim.decay_groups(model, 0.01), adamw)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    elements = sum(p.numel() for p in model.parameters())
    steps = 4 * len(list(model.parameters()))
    assert memory.optimizer_state_size(optimizer).bytes == (8 + kind.extra_bytes_per_param) * elements + steps


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_saved_goes_on_the_same(kind):
    def some(theta, seed):
        return torch.randn(theta.shape, generator=torch.Generator().manual_seed(seed)).bfloat16()

    first = torch.ones(50, dtype=torch.bfloat16, requires_grad=True)
    optimizer = kind([first], adamw)
    for t in range(4):
        first.grad = some(first, t)
        optimizer.step()
    second = first.detach().clone().requires_grad_()
    other = kind([second], adamw)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for t in range(4, 8):
        for theta, its in ((first, optimizer), (second, other)):
            theta.grad = some(theta, t)
            its.step()
    assert torch.equal(first, second)
    assert all(v.dtype == torch.float32 for n, v in next(iter(other.state.values())).items() if n != "residual")


def test_a_schedule_reaches_the_optimizer_inside():
    theta = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
    optimizer = MasterWeights([theta], adamw)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    theta.grad = torch.ones_like(theta)
    optimizer.step()
    schedule.step()
    optimizer.step()
    assert optimizer.inner.param_groups[0]["lr"] == 0.5e-3
