"""Both checkpoints by hand against no checkpoint, bit for bit, and against torch's in what they run again."""

from collections import Counter
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from torch.utils.checkpoint import checkpoint as torchs

from course_utils import memory
from course_utils.errors import CourseError
from course_utils.techniques import MATRIX_PRODUCTS, checkpoint, checkpoint_by_hooks

BOTH = pytest.mark.parametrize("ours", [checkpoint, checkpoint_by_hooks])
TORCHS = {checkpoint: partial(torchs, use_reentrant=True), checkpoint_by_hooks: partial(torchs, use_reentrant=False)}
WIDTH = 3


class Checkpointed(nn.Module):
    """A module behind a checkpoint; without one as long as `using` is None."""

    using = None

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) if Checkpointed.using is None else Checkpointed.using(self.inner, x)


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


def joined(makers):
    return lambda: nn.Sequential(*(make() for make in makers))


NESTED = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        inner.map(lambda make: lambda: Checkpointed(make())),
        inner.map(lambda make: lambda: nn.Sequential(Residual(make()))),
        st.lists(inner, min_size=1, max_size=4).map(joined),
    ),
    max_leaves=8,
)


def gradients(model, x, using, seed):
    model.zero_grad()
    x = x.clone().requires_grad_()
    torch.manual_seed(seed)
    Checkpointed.using = using
    try:
        loss = Checkpointed(nn.Sequential(model, nn.Linear(WIDTH, 1, bias=False).double().requires_grad_(False)))(
            x
        ).sum()
        loss.backward()
    finally:
        Checkpointed.using = None
    after = torch.rand(2)  # the stream of random numbers goes on as if nothing had run again
    return [loss.detach(), after, x.grad, *(p.grad for p in model.parameters())]


def equal(one, other):
    return all((a is None) == (b is None) and (a is None or torch.equal(a, b)) for a, b in zip(one, other, strict=True))


@BOTH
@settings(deadline=None)
@given(make=NESTED, seed=st.integers(0, 100))
def test_gradients_are_those_without_checkpoint_bit_for_bit(ours, make, seed):
    torch.manual_seed(seed)
    model = make().double()
    x = torch.randn(4, WIDTH, dtype=torch.float64)
    assert equal(gradients(model, x, ours, seed), gradients(model, x, None, seed))


class Operators(TorchDispatchMode):
    """Every operator that is called, except detach, which computes nothing."""

    def __init__(self):
        super().__init__()
        self.calls = Counter()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator is not torch.ops.aten.detach.default:
            self.calls[str(operator)] += 1
        return operator(*args, **(kwargs or {}))


def forwards(model, run):
    """How often each module of the model ran."""
    calls = Counter()
    hooks = [
        module.register_forward_pre_hook(lambda *_, name=name: calls.update([name]))
        for name, module in model.named_modules()
    ]
    run()
    for hook in hooks:
        hook.remove()
    return calls


def nested():
    inner = Checkpointed(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.3), nn.Linear(WIDTH, WIDTH)))
    return nn.Sequential(
        nn.Linear(WIDTH, WIDTH), Checkpointed(nn.Sequential(inner, nn.GELU(), nn.Linear(WIDTH, WIDTH)))
    ).double()


@BOTH
def test_as_many_modules_run_again_as_with_torchs(ours):
    model, x = nested(), torch.randn(4, WIDTH, dtype=torch.float64)
    counts = [
        forwards(model, lambda using=using: gradients(model, x, using, 0)) for using in (None, ours, TORCHS[ours])
    ]
    assert counts[1] == counts[2]
    assert counts[1].total() > counts[0].total()


@BOTH
def test_as_many_operators_run_in_backward_as_with_torchs(ours):
    model, x = nested(), torch.randn(4, WIDTH, dtype=torch.float64)
    found = []
    for using in (ours, TORCHS[ours]):
        with Operators() as operators:
            gradients(model, x, using, 0)
        found.append({name: count for name, count in operators.calls.items() if name.startswith("aten.")})
    computing = [{n: c for n, c in calls.items() if "empty" not in n and "set_" not in n} for calls in found]
    assert computing[0] == computing[1]


def test_the_hooks_stop_as_soon_as_the_last_place_is_filled():
    """The last linear layer's product is not computed again: its input is the last thing that backward needs."""
    layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    x = torch.randn(4, WIDTH, requires_grad=True)

    def products(using):
        with Operators() as operators:
            using(layers, x).sum().backward()
        return operators.calls["aten.addmm.default"]

    assert (products(checkpoint), products(checkpoint_by_hooks)) == (4, 3)


def everything(x, pair, flag, *, scale, mask, text):
    """Arguments and results of many kinds."""
    first, second = pair["a"], pair["b"][0]
    y = F.dropout(x * first * scale, 0.3) if flag else x
    return {"y": y + second.sum(), "more": [y * mask, (mask, text, None)], "count": 3}


@BOTH
def test_arguments_and_results_may_be_of_any_kind_and_nested(ours):
    def run(using):
        torch.manual_seed(1)
        x, a, b, scale = (torch.randn(5, dtype=torch.float64, requires_grad=True) for _ in range(4))
        frozen, mask = b.detach(), torch.tensor([True, False, True, True, False])
        result = using(everything, x, {"a": a, "b": [frozen]}, True, scale=scale, mask=mask, text="as it is")
        assert (result["count"], result["more"][1][1:]) == (3, ("as it is", None))
        assert torch.equal(result["more"][1][0], mask)
        (result["y"].sum() + (2 * result["more"][0]).sum()).backward()
        assert frozen.grad is None
        return [x.grad, a.grad, scale.grad]

    assert equal(run(ours), run(lambda function, *args, **kwargs: function(*args, **kwargs)))


@BOTH
def test_a_result_that_nothing_uses_is_no_trouble(ours):
    x = torch.randn(3, requires_grad=True)
    ours(lambda x: (x.sin(), x.exp(), x.argmax()), x)[1].sum().backward()
    torch.testing.assert_close(x.grad, x.detach().exp())


@BOTH
def test_the_argument_itself_as_result(ours):
    x = torch.randn(3, requires_grad=True)
    same, other = ours(lambda x: (x, x.sin()), x)
    (2 * same + other).sum().backward()
    torch.testing.assert_close(x.grad, 2 + x.detach().cos())


@BOTH
def test_without_gradients_it_is_a_plain_call(ours):
    x = torch.randn(3, requires_grad=True)
    with torch.no_grad():
        assert not ours(torch.sin, x).requires_grad


@BOTH
def test_autocast_is_as_it_was(ours):
    layer, x = nn.Linear(8, 8), torch.randn(4, 8, requires_grad=True)
    seen = []

    def function(x):
        seen.append(torch.is_autocast_enabled("cpu"))
        return layer(x).sin().float()

    with torch.autocast("cpu", torch.bfloat16):
        y = ours(function, x)
    y.sum().backward()
    assert seen == [True, True]
    seen.clear()
    y = ours(function, x)
    with torch.autocast("cpu", torch.bfloat16):  # backward inside does not change what forward did outside
        y.sum().backward()
    assert seen == [False, False]


@BOTH
def test_without_the_random_state_gradients_are_of_another_network(ours):
    x = torch.ones(1000, requires_grad=True)
    torch.manual_seed(0)
    y = ours(partial(F.dropout, p=0.5), x, preserve_rng_state=False)
    y.sum().backward()
    kept_twice = ((y != 0) & (x.grad != 0)).double().mean()
    assert abs(kept_twice - 0.25) < 0.05


@BOTH
def test_going_back_twice(ours):
    """The second time adds the same gradients; without retain_graph it is torch's error."""
    layer, x = nn.Linear(3, 3).double(), torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    y = ours(lambda x: layer(x).tanh().exp(), x).sum()
    y.backward(retain_graph=True)
    once = layer.weight.grad.clone(), x.grad.clone()
    y.backward()
    assert torch.equal(layer.weight.grad, 2 * once[0])
    assert torch.equal(x.grad, 2 * once[1])
    with pytest.raises(RuntimeError, match="second time"):
        y.backward()


def test_reentrant_refuses_what_it_cannot_do():
    layer, x = nn.Linear(3, 3), torch.randn(2, 3)
    with pytest.raises(CourseError, match="No input of this checkpoint requires a gradient"):
        checkpoint(layer, x)
    y = checkpoint(layer, x.requires_grad_()).sum()
    with pytest.raises(CourseError, match="call backward\\(\\) plainly"):
        torch.autograd.grad(y, x)
    y = checkpoint(layer, x).square().sum()
    (slope,) = torch.autograd.grad(checkpoint_by_hooks(layer, x).square().sum(), x, create_graph=True)
    assert slope.requires_grad
    y.backward(create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        x.grad.sum().backward()


def test_hooks_need_no_input_with_a_gradient_and_pass_autograds_checks():
    layer = nn.Linear(3, 3).double()
    checkpoint_by_hooks(layer, torch.randn(2, 3, dtype=torch.float64)).sum().backward()
    assert layer.weight.grad is not None
    x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    function = partial(checkpoint_by_hooks, lambda x: layer(x.sin()).tanh())
    assert torch.autograd.gradcheck(function, x)
    assert torch.autograd.gradgradcheck(function, x)


def test_what_saves_differently_is_said_as_torch_says_it():
    x = torch.randn(3, requires_grad=True)
    for change, message in (
        ([lambda x: x.sin().exp(), lambda x: x.sin()], "saved 2 tensors, and 1 when it ran again"),
        ([lambda x: x.sin(), lambda x: x[:2].sin()], r"tensor 0 was \[3\] of float32 on cpu, and \[2\]"),
        ([lambda x: x.sin(), lambda x: x.double().sin()], r"\[3\] of float64 on cpu when"),
    ):
        for using, error in (
            (checkpoint_by_hooks, CourseError),
            (TORCHS[checkpoint_by_hooks], torch.utils.checkpoint.CheckpointError),
        ):
            turns = iter(change)
            y = using(lambda x, turns=turns: next(turns)(x), x).sum()
            with pytest.raises(error, match=message if error is CourseError else "torch.utils.checkpoint"):
                y.backward()


@BOTH
def test_an_error_on_the_way_leaves_the_random_numbers_and_autocast_alone(ours):
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


def chain(depth=6, width=64):
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Tanh()) for _ in range(depth)))


def peak(model, forward):
    return memory.measure((model,), lambda: forward().sum().backward(), timed=0).peak


@BOTH
@pytest.mark.parametrize("depth", [1, 2])
def test_the_allocator_counts_what_it_counts_for_torchs(ours, depth):
    """Also nested: then the inner inputs are dropped too."""
    model, x = chain(), torch.randn(256, 64, requires_grad=True)

    def forward(using):
        def pair(x, first):
            for layer in model[first : first + 3]:
                x = using(layer, x) if depth == 2 else layer(x)
            return x

        return using(pair, using(pair, x, 0), 3)

    found = {
        name: peak(model, lambda using=using: forward(using))
        for name, using in (("ours", ours), ("torch", TORCHS[ours]), ("plain", lambda function, *args: function(*args)))
    }
    assert abs(found["ours"] - found["torch"]) < 0.01 * found["torch"]
    assert found["ours"] < 0.8 * found["plain"]


def test_kept_products_are_not_computed_again_and_cost_what_torchs_cost():
    model, x = chain(), torch.randn(256, 64, requires_grad=True)

    def products(x):  # not the model itself, which `measure` would take for the start of a forward pass
        for layer in model:
            x = layer(x)
        return x

    def save_products(_, operator, *args, **kwargs):
        return CheckpointPolicy.MUST_SAVE if operator in MATRIX_PRODUCTS else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = partial(create_selective_checkpoint_contexts, save_products)
    ways = {
        "ours": partial(checkpoint_by_hooks, keep=MATRIX_PRODUCTS),
        "torch": partial(torchs, use_reentrant=False, context_fn=contexts),
        "all again": checkpoint_by_hooks,
    }
    found = {}
    for name, way in ways.items():
        x.grad = None
        with Operators() as operators:
            way(products, x).sum().backward()
        slope, x.grad = x.grad, None
        found[name] = operators.calls["aten.addmm.default"], slope, peak(model, lambda way=way: way(products, x))
    assert [found[name][0] for name in ways] == [6, 6, 12]
    assert equal([found["ours"][1]], [found["all again"][1]])
    assert abs(found["ours"][2] - found["torch"][2]) < 0.02 * found["torch"][2]


def test_keeping_refuses_packets_changes_in_place_and_a_second_time():
    x = torch.randn(2, 2, requires_grad=True)
    with pytest.raises(CourseError, match="name its overload"):
        checkpoint_by_hooks(torch.sin, x, keep=[torch.ops.aten.mm])
    with pytest.raises(CourseError, match="changes in place"):
        checkpoint_by_hooks(lambda x: (x @ x).relu_(), x, keep=MATRIX_PRODUCTS)
    y = checkpoint_by_hooks(lambda x: (x @ x).sin(), x, keep=MATRIX_PRODUCTS).sum()
    y.backward(retain_graph=True)
    with pytest.raises(CourseError, match="once"):
        y.backward()


def test_nothing_stays_alive_when_the_result_is_dropped():
    import gc
    import weakref

    gc.disable()
    try:
        for ours in (checkpoint, checkpoint_by_hooks, partial(checkpoint_by_hooks, keep=MATRIX_PRODUCTS)):
            x = torch.randn(4, 4, requires_grad=True)
            mid = (x @ x).tanh()
            watched = weakref.ref(mid)
            y = ours(lambda z: (z @ z).sin().exp(), mid)
            y.sum().backward()
            del y, mid
            assert watched() is None
    finally:
        gc.enable()


@BOTH
def test_in_place_change_of_what_was_saved_is_refused_as_without_checkpoint(ours):
    """Torch's own checkpoint by hooks gives a wrong gradient here, and says nothing."""
    x, w = (torch.randn(4, requires_grad=True) for _ in range(2))

    def function(x):
        return x.exp().mul_(2) * w

    with pytest.raises((CourseError, RuntimeError), match="in place|inplace"):
        ours(function, x).sum().backward()


def test_re_entrant_peak_is_higher_by_the_result_and_its_gradient():
    torch.manual_seed(0)
    blocks = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.LayerNorm(64)) for _ in range(8)))
    x = torch.randn(4096, 64, requires_grad=True)

    def peak(using):
        def step():
            y = x
            for block in blocks:
                y = using(block, y)
            y.square().sum().backward()

        return memory.measure((blocks,), step, timed=0).peak

    assert (peak(checkpoint) - peak(checkpoint_by_hooks)) / x.nbytes == pytest.approx(2, abs=0.2)
