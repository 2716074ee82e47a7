"""Of the room: the family from SGD to AdamW against torch's, in float64."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optimizer_runs import parameters_of, run_beside, scratch_of

from course_utils import optim
from course_utils.optim import APOLLO, SGD, Adafactor, AdaGrad, Adam, AdamW, GaLore, Momentum, Nesterov, RMSProp

EXACT = {"rtol": 1e-12, "atol": 1e-12}
PAIRS = {
    SGD: (torch.optim.SGD, {}),
    Momentum: (torch.optim.SGD, {}),
    Nesterov: (torch.optim.SGD, {"nesterov": True}),
    AdaGrad: (torch.optim.Adagrad, {}),
    RMSProp: (torch.optim.RMSprop, {}),
    Adam: (torch.optim.Adam, {}),
    AdamW: (torch.optim.AdamW, {}),
}
all_pairs = pytest.mark.parametrize("by_hand", PAIRS)
shapes = st.lists(st.integers(1, 4), min_size=0, max_size=3).map(tuple)
VALUES = {
    "lr": st.floats(0, 0.5),
    "momentum": st.floats(0.1, 0.99),
    "alpha": st.floats(0, 0.9999),
    "betas": st.tuples(st.floats(0, 0.99), st.floats(0, 0.9999)),
    "eps": st.floats(1e-12, 1e-2),
    "weight_decay": st.sampled_from([0.0, 1e-4, 0.01, 0.5]),
}


def draw_groups(data, by_hand, generator):
    """One to three groups of parameters, each with options of its own; some parameters are not contiguous."""

    def parameter(shape):
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        return (values.mT.contiguous().mT if turned and values.ndim > 1 else values).requires_grad_()

    turned = data.draw(st.booleans())
    options = {name: VALUES[name] for name in by_hand.defaults}
    group_specs = st.tuples(st.fixed_dictionaries(options), st.lists(shapes, min_size=1, max_size=3))
    specs = data.draw(st.lists(group_specs, min_size=1, max_size=3))
    return [{**values_by_name, "params": [parameter(shape) for shape in sizes]} for values_by_name, sizes in specs]


@all_pairs
@given(data=st.data(), seed=st.integers(0, 2**31), reload_at=st.integers(0, 49))
@settings(max_examples=10, deadline=None)
def test_fifty_steps_equal_torch(by_hand, data, seed, reload_at):
    generator = torch.Generator().manual_seed(seed)
    oracle, fixed = PAIRS[by_hand]
    groups = draw_groups(data, by_hand, generator)
    theirs = copy.deepcopy(groups)
    ours, reference = by_hand(groups), oracle([{**group, **fixed} for group in theirs], foreach=False)
    ours = run_beside(ours, reference, generator, steps=50, reload_at=reload_at, decades=4)
    for p, q in zip(parameters_of(groups), parameters_of(theirs), strict=True):
        scale = max(1.0, q.detach().abs().max().item())
        torch.testing.assert_close(p / scale, q / scale, **EXACT)
        assert set(ours.state.get(p, {})) == {name for name, v in reference.state.get(q, {}).items() if v is not None}


@all_pairs
def test_the_defaults_are_torchs(by_hand):
    oracle, _ = PAIRS[by_hand]
    theirs = oracle([torch.zeros(2, requires_grad=True)]).defaults
    ours = dict(by_hand.defaults)
    assert ours.pop("momentum", 0.9) == 0.9
    assert ours == {name: theirs[name] for name in ours}


@all_pairs
@pytest.mark.parametrize("shape", [(), (7,), (3, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_bytes_are_what_the_state_occupies(by_hand, shape, dtype):
    p = torch.zeros(shape, requires_grad=True, dtype=dtype)
    optimizer = by_hand([p])
    p.grad = torch.ones_like(p)
    optimizer.step()
    state = optimizer.state[p]
    assert sum(value.nbytes for value in state.values()) == by_hand.state_bytes(shape, p.itemsize)
    assert {value.dtype for name, value in state.items() if name != "step"} <= {dtype}


@all_pairs
def test_temporary_bytes_are_what_the_allocator_sees(by_hand):
    p = torch.zeros(256, 256, requires_grad=True)
    optimizer = by_hand([p])
    p.grad = torch.ones_like(p)
    optimizer.step()
    with torch.profiler.profile(profile_memory=True) as profiler:
        optimizer.step()
    allocated = [event.self_cpu_memory_usage for event in profiler.events() if event.self_cpu_memory_usage >= p.nbytes]
    assert sum(allocated) == by_hand.temporary_bytes(p.shape)


@pytest.mark.parametrize(
    "shape", [(300, 704), (30, 40), *(pytest.param(s, marks=pytest.mark.slow) for s in ((512, 512), (1024, 512)))]
)
@pytest.mark.parametrize(
    ("kind", "options"),
    [(optim.AdamW16bit, {}), (optim.AdamW4bit, {}), (optim.GaLore, {"rank": 16}), (optim.APOLLO, {"rank": 16})],
)
def test_temporary_bytes_of_fewer_bits_and_directions_are_what_the_allocator_sees(kind, options, shape):
    model = torch.nn.Linear(*shape, bias=False)
    scratch = scratch_of(kind(model.parameters(), lr=0.1, **options), model)
    assert 0 <= scratch - kind.temporary_bytes(shape, **options) <= 12  # three numbers that correct the averages


@all_pairs
def test_parameters_that_are_slices_of_others_are_updated_in_place(by_hand):
    oracle, fixed = PAIRS[by_hand]
    fixed = {**fixed, **({"momentum": 0.9} if "momentum" in by_hand.defaults else {})}
    table = torch.arange(24.0, dtype=torch.float64).reshape(4, 6)
    before, contiguous = table.clone(), table[:, ::2].clone()
    ours, theirs = by_hand([table[:, ::2]], lr=0.1), oracle([contiguous], lr=0.1, **fixed)
    for p, optimizer in ((ours.param_groups[0]["params"][0], ours), (contiguous, theirs)):
        p.grad = torch.ones(4, 3, dtype=torch.float64)
        optimizer.step()
    torch.testing.assert_close(table[:, ::2], contiguous, **EXACT)
    assert torch.equal(table[:, 1::2], before[:, 1::2])


@pytest.mark.parametrize("by_hand", [AdamW, Adafactor])
def test_sparse_gradients_are_refused_before_anything_moves(by_hand):
    table, weight = torch.nn.Embedding(5, 2, sparse=True), torch.ones(3, requires_grad=True)
    optimizer = by_hand([weight, *table.parameters()], lr=1.0)
    (table(torch.tensor([1])).sum() + weight.sum()).backward()
    with pytest.raises(TypeError, match="dense gradients"):
        optimizer.step()
    assert torch.equal(weight.detach(), torch.ones(3))
    assert not optimizer.state


def test_groups_of_different_types_are_each_kept_in_theirs():
    low, high = (torch.ones(2, dtype=dtype, requires_grad=True) for dtype in (torch.bfloat16, torch.float64))
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
    ("by_hand", "options", "message"),
    [
        (SGD, {"lr": -1.0}, "lr=-1.0"),
        (SGD, {"lr": float("nan")}, "lr=nan"),
        (Momentum, {"momentum": -0.1}, "momentum=-0.1"),
        (AdaGrad, {"eps": -1.0}, "eps"),
        (RMSProp, {"alpha": 1.0}, "alpha=1.0"),
        (AdamW, {"betas": (1.0, 0.9)}, r"betas=\(1.0"),
        (AdamW, {"betas": (0.9, -0.1)}, "betas="),
        (AdamW, {"weight_decay": -0.1}, "weight_decay=-0.1"),
        (Adafactor, {"beta2_decay": 0.8}, "beta2_decay=0.8"),
        (Adafactor, {"eps": (None, -1.0)}, "eps="),
        (Adafactor, {"d": -1.0}, "d=-1.0"),
        (GaLore, {"scale": -0.25}, "scale=-0.25"),
        (APOLLO, {"growth": 0.9}, "growth=0.9"),
    ],
)
def test_bad_options_are_named_in_every_group(by_hand, options, message):
    p, q = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    with pytest.raises(ValueError, match=message):
        by_hand([p], **options)
    with pytest.raises(ValueError, match=message):
        by_hand([{"params": [p]}, {"params": [q], **options}])


def test_unknown_options_are_refused():
    with pytest.raises(TypeError, match="amsgrad"):
        AdamW([torch.ones(1, requires_grad=True)], amsgrad=True)


@pytest.mark.parametrize("by_hand", [AdamW, Adafactor])
def test_torch_schedulers_drive_it(by_hand):
    p = torch.ones(1, requires_grad=True)
    optimizer = by_hand([p], lr=1e-3, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    steps = []
    for _ in range(3):
        before = p.item()
        p.grad = torch.ones(1)
        optimizer.step()
        schedule.step()
        steps.append(before - p.item())
    assert steps == pytest.approx([1e-3, 5e-4, 2.5e-4], rel=5e-3)
