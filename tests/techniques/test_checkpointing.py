"""Both checkpoints by hand against no checkpoint, bit for bit, and against torch's in what they run again."""

import gc
import weakref
from collections import Counter
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from course_utils import memory
from course_utils.techniques import checkpoint, checkpoint_by_hooks

TORCH = {
    checkpoint: partial(torch_checkpoint, use_reentrant=True),
    checkpoint_by_hooks: partial(torch_checkpoint, use_reentrant=False),
}
each_checkpoint = pytest.mark.parametrize("ours", TORCH)
WIDTH = 3


def plain(function, *args):
    return function(*args)


class Checkpointed(nn.Module):
    """A module behind a checkpoint: the one in `using`."""

    using = staticmethod(plain)

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return Checkpointed.using(self.inner, x)


class Residual(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), inner)

    def forward(self, x):
        return x + self.inner(x)


LEAVES = st.sampled_from(
    [
        lambda: nn.Linear(WIDTH, WIDTH),
        lambda: nn.Dropout(0.4),
        nn.Tanh,
        lambda: nn.LayerNorm(WIDTH),
        lambda: nn.Sequential(nn.ReLU(), nn.Dropout(0.2)),
    ]
)
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        inner.map(lambda make: lambda: Checkpointed(make())),
        inner.map(lambda make: lambda: nn.Sequential(Residual(make()))),
        st.lists(inner, min_size=1, max_size=4).map(lambda makers: lambda: nn.Sequential(*(m() for m in makers))),
    ),
    max_leaves=8,
)


def gradients(model, x, using, seed=0):
    model.zero_grad()
    x = x.clone().requires_grad_()
    torch.manual_seed(seed)
    Checkpointed.using = staticmethod(using)
    head = torch.linspace(1, 2, WIDTH, dtype=x.dtype)
    loss = Checkpointed(nn.Sequential(model))(x).mul(head).sum()
    loss.backward()
    after = torch.rand(2)  # the stream of random numbers goes on as if nothing had run again
    return [loss.detach(), after, x.grad, *(p.grad for p in model.parameters())]


def all_equal(first, second):
    pairs = zip(first, second, strict=True)
    return all((a is None) == (b is None) and (a is None or torch.equal(a, b)) for a, b in pairs)


@each_checkpoint
@settings(max_examples=50, deadline=None)
@given(make=NESTED, seed=st.integers(0, 100))
def test_gradients_are_those_without_checkpoint_and_of_torchs_bit_for_bit(ours, make, seed):
    torch.manual_seed(seed)
    model = make().double()
    x = torch.randn(4, WIDTH, dtype=torch.float64)
    with_ours = gradients(model, x, ours, seed)
    assert all_equal(with_ours, gradients(model, x, plain, seed))
    assert all_equal(with_ours, gradients(model, x, TORCH[ours], seed))


class Operators(TorchDispatchMode):
    """Counts every operator that computes."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if not any(part in str(operator) for part in ("detach", "empty", "set_", "clone")):
            self.calls[str(operator)] += 1
        return operator(*args, **(kwargs or {}))


@each_checkpoint
def test_as_many_modules_and_operators_run_again_as_with_torchs(ours):
    inner = Checkpointed(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.3), nn.Linear(WIDTH, WIDTH)))
    outer = Checkpointed(nn.Sequential(inner, nn.GELU(), nn.Linear(WIDTH, WIDTH)))
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), outer).double()
    x = torch.randn(4, WIDTH, dtype=torch.float64)
    modules = Counter()
    for name, module in model.named_modules():
        module.register_forward_pre_hook(lambda *_, name=name: modules.update([name]))
    counts = []
    for using in (plain, ours, TORCH[ours]):
        modules.clear()
        with Operators() as operators:
            gradients(model, x, using)
        counts.append((dict(modules), operators.calls))
    assert counts[1] == counts[2]
    assert counts[1][0] != counts[0][0]


def test_the_hooks_stop_early():
    """The last linear layer's product is not computed again: its input is the last thing that backward needs."""
    layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    x = torch.randn(4, WIDTH, requires_grad=True)

    def products(using):
        with Operators() as operators:
            using(layers, x).sum().backward()
        return operators.calls["aten.addmm.default"]

    assert (products(checkpoint), products(checkpoint_by_hooks)) == (4, 3)


@each_checkpoint
def test_several_inputs_and_some_without_gradients(ours):
    x, scale = (torch.randn(5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    mask = torch.tensor([True, False, True, True, False])

    def gradients_by(using):
        x.grad = scale.grad = None
        torch.manual_seed(1)
        using(lambda x, scale, mask: F.dropout(x * scale, 0.3) * mask, x, scale, mask).sum().backward()
        return [x.grad, scale.grad]

    assert all_equal(gradients_by(ours), gradients_by(plain))


@each_checkpoint
def test_without_gradients_it_is_a_plain_call(ours):
    x = torch.randn(3, requires_grad=True)
    with torch.no_grad():
        assert not ours(torch.sin, x).requires_grad


@each_checkpoint
def test_autocast_is_as_it_was(ours):
    layer, x = nn.Linear(8, 8), torch.randn(4, 8, requires_grad=True)
    seen = []

    def function(x):
        seen.append(torch.is_autocast_enabled("cpu"))
        return layer(x).sin().float()

    with torch.autocast("cpu", torch.bfloat16):
        y = ours(function, x)
    y.sum().backward()
    y = ours(function, x)
    with torch.autocast("cpu", torch.bfloat16):
        y.sum().backward()
    assert seen == [True, True, False, False]


@each_checkpoint
def test_going_back_twice(ours):
    layer, x = nn.Linear(3, 3).double(), torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    y = ours(lambda x: layer(x).tanh().exp(), x).sum()
    y.backward(retain_graph=True)
    once = layer.weight.grad.clone(), x.grad.clone()
    y.backward()
    assert all_equal([layer.weight.grad, x.grad], [2 * gradient for gradient in once])


def test_hooks_need_no_input_with_a_gradient_and_pass_autograds_checks():
    layer = nn.Linear(3, 3).double()
    checkpoint_by_hooks(layer, torch.randn(2, 3, dtype=torch.float64)).sum().backward()
    assert layer.weight.grad is not None
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    function = partial(checkpoint_by_hooks, lambda x: layer(x.sin()).tanh())
    assert torch.autograd.gradcheck(function, x)
    assert torch.autograd.gradgradcheck(function, x)


@each_checkpoint
def test_an_error_in_the_second_run_leaves_the_random_numbers_and_autocast_alone(ours):
    calls = []

    def function(x):
        calls.append(1)
        if len(calls) == 2:
            raise ValueError("in between")
        return F.dropout(x, 0.5).sin()

    y = ours(function, torch.ones(3, requires_grad=True)).sum()
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match="in between"):
        y.backward()
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.is_autocast_enabled("cpu")


@each_checkpoint
def test_the_allocator_counts_what_it_counts_for_torchs(ours):
    """Nested: then the inner inputs are dropped too."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Tanh()) for _ in range(6)))
    x = torch.randn(256, 64, requires_grad=True)

    def peak(using):
        def half(x, first):
            for layer in model[first : first + 3]:
                x = using(layer, x)
            return x

        def step():
            using(partial(half, first=3), using(partial(half, first=0), x)).sum().backward()

        return memory.measure((model,), step, timed=0).peak

    assert peak(ours) == pytest.approx(peak(TORCH[ours]), rel=0.01)
    assert peak(ours) < 0.8 * peak(plain)


@each_checkpoint
def test_nothing_stays_alive_when_the_result_is_dropped(ours):
    gc.disable()
    try:
        x = torch.randn(4, 4, requires_grad=True)
        middle = (x @ x).tanh()
        watched = weakref.ref(middle)
        y = ours(lambda z: (z @ z).sin().exp(), middle)
        y.sum().backward()
        del y, middle
        assert watched() is None
    finally:
        gc.enable()
