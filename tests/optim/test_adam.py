"""Adam and AdamW by hand against torch's, in float64."""

import copy

import pytest
import torch
from handing_over import assert_a_run_can_change_hands
from hypothesis import given, settings
from hypothesis import strategies as st

from course_utils.optim import Adam, AdamW

PAIRS = [(Adam, torch.optim.Adam), (AdamW, torch.optim.AdamW)]
EXACT = {"rtol": 1e-12, "atol": 1e-12}
shapes = st.lists(st.integers(1, 5), min_size=0, max_size=3).map(tuple)


@st.composite
def groups(draw):
    return {
        "shapes": draw(st.lists(shapes, min_size=1, max_size=3)),
        "lr": draw(st.floats(0, 0.5)),
        "betas": (draw(st.floats(0, 0.99)), draw(st.floats(0, 0.9999))),
        "eps": draw(st.floats(1e-12, 1e-2)),
        "weight_decay": draw(st.sampled_from([0.0, 1e-4, 0.01, 0.5])),
        "maximize": draw(st.booleans()),
    }


def build_groups(specs, generator):
    return [
        {
            **{name: value for name, value in spec.items() if name != "shapes"},
            "params": [
                torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in spec["shapes"]
            ],
        }
        for spec in specs
    ]


def parameters_of(param_groups):
    return [p for group in param_groups for p in group["params"]]


def give_gradients(ours, theirs, generator):
    """The same gradients to both, over twelve decades; about one in five is missing, and some are zero."""
    for mine, other in zip(ours, theirs, strict=True):
        scale = 10.0 ** torch.randint(-6, 7, (), generator=generator)
        kind = torch.rand((), generator=generator)
        gradient = torch.randn(mine.shape, generator=generator, dtype=torch.float64) * scale * (kind < 0.9)
        mine.grad, other.grad = (None, None) if kind < 0.2 else (gradient, gradient.clone())


@pytest.mark.parametrize(("by_hand", "oracle"), PAIRS)
@given(specs=st.lists(groups(), min_size=1, max_size=3), seed=st.integers(0, 2**31), reload_at=st.integers(0, 49))
@settings(max_examples=25, deadline=None)
def test_fifty_steps_equal_torch(by_hand, oracle, specs, seed, reload_at):
    generator = torch.Generator().manual_seed(seed)
    mine = build_groups(specs, generator)
    theirs = copy.deepcopy(mine)
    ours, reference = by_hand(mine), oracle(theirs, foreach=False)
    for step in range(50):
        give_gradients(parameters_of(mine), parameters_of(theirs), generator)
        before = [None if p.grad is None else p.grad.clone() for p in parameters_of(mine)]
        ours.step()
        reference.step()
        if step == reload_at:
            saved = copy.deepcopy(ours.state_dict())
            ours = by_hand(mine)
            ours.load_state_dict(saved)
        for p, gradient in zip(parameters_of(mine), before, strict=True):
            assert (p.grad is None) if gradient is None else torch.equal(p.grad, gradient)
    for p, q in zip(parameters_of(mine), parameters_of(theirs), strict=True):
        torch.testing.assert_close(p, q, **EXACT)
        assert set(ours.state.get(p, {})) == set(reference.state.get(q, {}))


@pytest.mark.parametrize(("by_hand", "oracle"), PAIRS)
def test_a_run_can_change_hands_in_the_middle(by_hand, oracle):
    """State saved by torch continues here, and state saved here continues in torch."""
    start = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    gradients = torch.randn(30, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert_a_run_can_change_hands(by_hand, oracle, start, gradients, EXACT, weight_decay=0.1)


def test_amsgrad_state_is_refused():
    p = torch.ones(2, requires_grad=True)
    theirs = torch.optim.AdamW([p], amsgrad=True)
    with pytest.raises(ValueError, match="amsgrad"):
        AdamW([p]).load_state_dict(theirs.state_dict())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_has_the_type_and_layout_of_its_parameter(dtype):
    p = torch.zeros(4, 6, dtype=dtype).t().requires_grad_()
    q = p.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    ours, theirs = AdamW([p]), torch.optim.AdamW([q], foreach=False)
    p.grad, q.grad = torch.ones_like(p), torch.ones_like(q)
    ours.step()
    theirs.step()
    for name, value in theirs.state[q].items():
        mine = ours.state[p][name]
        assert (mine.dtype, mine.shape, mine.stride()) == (value.dtype, value.shape, value.stride()), name


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (2, 3, 4)])
def test_state_bytes_are_what_the_state_occupies(shape):
    p = torch.zeros(shape, requires_grad=True)
    optimizer = AdamW([p])
    p.grad = torch.ones_like(p)
    optimizer.step()
    assert sum(value.nbytes for value in optimizer.state[p].values()) == AdamW.state_bytes(shape)


@pytest.mark.parametrize("by_hand", [Adam, AdamW])
@pytest.mark.parametrize(
    "options", [{}, {"weight_decay": 0.1}, {"maximize": True}, {"weight_decay": 0.1, "maximize": True}]
)
def test_temporary_bytes_are_what_the_allocator_sees(by_hand, options):
    p = torch.zeros(256, 256, requires_grad=True)
    optimizer = by_hand([p], **({"weight_decay": 0.0} | options))
    p.grad = torch.ones_like(p)
    optimizer.step()
    with torch.profiler.profile(profile_memory=True) as profiler:
        optimizer.step()
    allocations = [
        event.self_cpu_memory_usage for event in profiler.events() if event.self_cpu_memory_usage >= p.nbytes
    ]
    assert sum(allocations) == by_hand.temporary_bytes(p.shape, **options)


def test_sparse_gradients_are_refused_before_anything_moves():
    table, weight = torch.nn.Embedding(5, 2, sparse=True), torch.ones(3, requires_grad=True)
    optimizer = AdamW([weight, *table.parameters()], lr=1.0)
    (table(torch.tensor([1])).sum() + weight.sum()).backward()
    with pytest.raises(TypeError, match="dense gradients"):
        optimizer.step()
    assert torch.equal(weight.detach(), torch.ones(3))
    assert not optimizer.state


def test_complex_parameters_are_refused_with_the_way_out():
    p = torch.ones(2, dtype=torch.complex64, requires_grad=True)
    p.grad = torch.ones_like(p)
    with pytest.raises(TypeError, match="view_as_real"):
        AdamW([p]).step()


@pytest.mark.skipif(
    not hasattr(torch.Tensor, "grad_dtype"), reason="this torch never lets gradient and parameter differ in type"
)
def test_a_gradient_of_another_type_is_refused():
    p = torch.ones(2, dtype=torch.bfloat16, requires_grad=True)
    p.grad_dtype = torch.float32
    p.grad = torch.ones(2)
    with pytest.raises(TypeError, match=r"float32 gradient on a torch\.bfloat16 parameter"):
        AdamW([p]).step()


def test_groups_of_different_types_are_each_kept_in_theirs():
    low, high = (
        torch.ones(2, dtype=torch.bfloat16, requires_grad=True),
        torch.ones(2, dtype=torch.float64, requires_grad=True),
    )
    optimizer = AdamW([{"params": [low]}, {"params": [high]}], lr=0.5)
    low.grad, high.grad = torch.ones_like(low), torch.ones_like(high)
    optimizer.step()
    assert (low.dtype, high.dtype) == (torch.bfloat16, torch.float64)
    assert optimizer.state[low]["exp_avg"].dtype == torch.bfloat16


def test_a_closure_is_evaluated_once_with_gradients_and_its_loss_returned():
    p = torch.ones(2, requires_grad=True)
    optimizer, calls = AdamW([p]), []

    def closure():
        calls.append(None)
        loss = (p * 3).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 6
    assert len(calls) == 1
    assert (p < 1).all()
    assert optimizer.step() is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr=-1.0"),
        ({"betas": (1.0, 0.9)}, r"betas\[0\]=1.0"),
        ({"betas": (0.9, -0.1)}, r"betas\[1\]=-0.1"),
        ({"betas": (0.9,)}, r"betas=\(0.9,\)"),
        ({"betas": (0.9, 0.99, 0.999)}, "betas="),
        ({"eps": -1e-8}, "eps="),
        ({"weight_decay": -0.1}, "weight_decay=-0.1"),
        ({"lr": float("nan")}, "lr=nan"),
    ],
)
def test_bad_hyper_parameters_are_named_in_every_group(options, message):
    p, q = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    with pytest.raises(ValueError, match=message):
        AdamW([p], **options)
    with pytest.raises(ValueError, match=message):
        AdamW([{"params": [p]}, {"params": [q], **options}])


def test_unknown_arguments_are_refused():
    with pytest.raises(TypeError, match="amsgrad"):
        AdamW([torch.ones(1, requires_grad=True)], amsgrad=True)


def test_torch_schedulers_drive_it():
    p = torch.ones(1, requires_grad=True)
    optimizer = AdamW([p], lr=1.0, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    moved = []
    for _ in range(3):
        before = p.item()
        p.grad = torch.ones(1)
        optimizer.step()
        schedule.step()
        moved.append(before - p.item())
    assert moved == pytest.approx([1.0, 0.5, 0.25])


@given(scale=st.floats(1e-3, 1e6), lr=st.floats(1e-4, 1.0))
@settings(deadline=None)
def test_the_first_update_is_the_learning_rate_whatever_the_gradient(scale, lr):
    p = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    p.grad = torch.full_like(p, scale)
    AdamW([p], lr=lr, weight_decay=0.0).step()
    assert p.item() == pytest.approx(-lr, rel=1e-4)


@given(weight_decay=st.floats(0, 1), lr=st.floats(0, 1), steps=st.integers(1, 20))
@settings(deadline=None)
def test_decoupled_decay_alone_is_a_geometric_series(weight_decay, lr, steps):
    p = torch.ones(1, dtype=torch.float64, requires_grad=True)
    optimizer = AdamW([p], lr=lr, weight_decay=weight_decay)
    for _ in range(steps):
        p.grad = torch.zeros_like(p)
        optimizer.step()
    assert p.item() == pytest.approx((1 - lr * weight_decay) ** steps)
