"""SGD, AdaGrad and RMSProp by hand against torch's, in float64."""

import copy

import pytest
import torch
from handing_over import assert_a_run_can_change_hands
from hypothesis import given, settings
from hypothesis import strategies as st

from course_utils.optim import SGD, AdaGrad, RMSProp

EXACT = {"rtol": 1e-10, "atol": 1e-10, "equal_nan": True}
PAIRS = {
    "SGD": (SGD, torch.optim.SGD),
    "AdaGrad": (AdaGrad, torch.optim.Adagrad),
    "RMSProp": (RMSProp, torch.optim.RMSprop),
}
each_pair = pytest.mark.parametrize(("by_hand", "oracle"), PAIRS.values(), ids=PAIRS)
shapes = st.lists(st.integers(1, 4), min_size=0, max_size=3).map(tuple)
decays = st.sampled_from([0.0, 1e-4, 0.01, 0.5])
momenta = st.sampled_from([0.0, 0.5, 0.9, 0.99])


@st.composite
def sgd_options(draw):
    nesterov = draw(st.booleans())
    return {
        "lr": draw(st.floats(0, 0.5)),
        "momentum": draw(st.floats(0.1, 0.99)) if nesterov else draw(momenta),
        "dampening": 0.0 if nesterov else draw(st.floats(-0.5, 1)),
        "weight_decay": draw(decays),
        "nesterov": nesterov,
        "maximize": draw(st.booleans()),
    }


adagrad_options = st.fixed_dictionaries(
    {
        "lr": st.floats(0, 0.5),
        "lr_decay": st.floats(0, 1),
        "eps": st.floats(1e-12, 1e-2),
        "weight_decay": decays,
        "maximize": st.booleans(),
    }
)
rmsprop_options = st.fixed_dictionaries(
    {
        "lr": st.floats(0, 0.5),
        "alpha": st.floats(0, 0.9999),
        "eps": st.floats(1e-12, 1e-2),
        "momentum": momenta,
        "centered": st.booleans(),
        "weight_decay": decays,
        "maximize": st.booleans(),
    }
)
OPTIONS = {SGD: sgd_options(), AdaGrad: adagrad_options, RMSProp: rmsprop_options}


def drawn_parameters(sizes, transposed, generator):
    """Parameters of these shapes; where `transposed`, in a memory layout that is not contiguous."""
    made = []
    for size in sizes:
        p = torch.randn(size[::-1], generator=generator, dtype=torch.float64)
        made.append((p.permute(tuple(reversed(range(p.dim())))) if transposed else p.reshape(size)).requires_grad_())
    return made


def drawn_groups(data, by_hand, generator):
    specs = data.draw(
        st.lists(st.tuples(OPTIONS[by_hand], st.lists(shapes, min_size=1, max_size=3)), min_size=1, max_size=3)
    )
    transposed = data.draw(st.booleans())
    return [{**options, "params": drawn_parameters(sizes, transposed, generator)} for options, sizes in specs]


def parameters_of(groups):
    return [p for group in groups for p in group["params"]]


def clone_groups(groups):
    """The same groups with copies of the parameters in the same memory layout."""
    return [{**group, "params": [p.detach().clone().requires_grad_() for p in group["params"]]} for group in groups]


def give_gradients(ours, theirs, generator):
    """The same gradients to both, over eight decades; about one in five is missing, and some are zero."""
    for mine, other in zip(ours, theirs, strict=True):
        scale = 10.0 ** torch.randint(-4, 5, (), generator=generator)
        kind = torch.rand((), generator=generator)
        gradient = torch.randn(mine.shape, generator=generator, dtype=torch.float64) * scale * (kind < 0.9)
        mine.grad, other.grad = (None, None) if kind < 0.2 else (gradient, gradient.clone())


@each_pair
@given(data=st.data(), seed=st.integers(0, 2**31), reload_at=st.integers(0, 29))
@settings(max_examples=25, deadline=None)
def test_thirty_steps_equal_torch(by_hand, oracle, data, seed, reload_at):
    generator = torch.Generator().manual_seed(seed)
    mine = drawn_groups(data, by_hand, generator)
    theirs = clone_groups(mine)
    first = {"initial_accumulator_value": data.draw(st.sampled_from([0.0, 0.5]))} if by_hand is AdaGrad else {}
    ours, reference = by_hand(mine, **first), oracle(theirs, foreach=False, **first)
    for step in range(30):
        give_gradients(parameters_of(mine), parameters_of(theirs), generator)
        before = [None if p.grad is None else p.grad.clone() for p in parameters_of(mine)]
        ours.step()
        reference.step()
        if step == reload_at:
            saved = copy.deepcopy(ours.state_dict())
            ours = by_hand(mine, **first)
            ours.load_state_dict(saved)
        for p, gradient in zip(parameters_of(mine), before, strict=True):
            assert (p.grad is None) if gradient is None else torch.equal(p.grad, gradient)
    for p, q in zip(parameters_of(mine), parameters_of(theirs), strict=True):
        torch.testing.assert_close(p, q, **EXACT)
        for name, kept in ours.state.get(p, {}).items():
            torch.testing.assert_close(kept, reference.state[q][name], **EXACT)


@each_pair
def test_parameters_that_are_slices_of_others_are_updated_in_place(by_hand, oracle):
    table = torch.arange(24.0, dtype=torch.float64).reshape(4, 6)
    before, whole = table.clone(), table[:, ::2].clone()
    ours, theirs = by_hand([table[:, ::2]], lr=0.1), oracle([whole], lr=0.1)
    for p, optimizer in ((ours.param_groups[0]["params"][0], ours), (whole, theirs)):
        p.grad = torch.ones(4, 3, dtype=torch.float64)
        optimizer.step()
    torch.testing.assert_close(table[:, ::2], whole, **EXACT)
    assert torch.equal(table[:, 1::2], before[:, 1::2])


CHANGING_HANDS = [
    (SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (SGD, {"momentum": 0.9, "dampening": 0.5}),
    (SGD, {}),
    (AdaGrad, {"lr_decay": 0.1, "initial_accumulator_value": 0.3}),
    (RMSProp, {"momentum": 0.9, "centered": True, "weight_decay": 0.1}),
    (RMSProp, {}),
]


@pytest.mark.parametrize(("by_hand", "options"), CHANGING_HANDS)
def test_a_run_can_change_hands_in_the_middle(by_hand, options):
    """State saved by torch continues here, and state saved here continues in torch."""
    oracle = dict(PAIRS.values())[by_hand]
    start = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    gradients = torch.randn(15, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert_a_run_can_change_hands(by_hand, oracle, start, gradients, EXACT, **options)


@each_pair
def test_the_defaults_are_torchs(by_hand, oracle):
    p = torch.zeros(2, requires_grad=True)
    ours, theirs = by_hand([p]).defaults, oracle([p]).defaults
    assert ours == {name: theirs[name] for name in ours}
    assert not set(theirs) - set(ours) - {"foreach", "fused", "differentiable", "capturable"}


COSTS = [
    (SGD, {}, 0),
    (SGD, {"momentum": 0.9}, 1),
    (SGD, {"momentum": 0.9, "nesterov": True}, 1),
    (AdaGrad, {}, 1),
    (RMSProp, {}, 1),
    (RMSProp, {"momentum": 0.9}, 2),
    (RMSProp, {"momentum": 0.9, "centered": True}, 3),
]


@pytest.mark.parametrize(("by_hand", "options", "tensors"), COSTS)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_state_bytes_are_what_the_state_occupies(by_hand, options, tensors, shape, dtype):
    p = torch.zeros(shape, requires_grad=True, dtype=dtype)
    optimizer = by_hand([p], **options)
    p.grad = torch.ones_like(p)
    optimizer.step()
    kept = optimizer.state[p]
    passed = {name: value for name, value in options.items() if name != "nesterov"}
    assert sum(value.nbytes for value in kept.values()) == by_hand.state_bytes(shape, p.itemsize, **passed)
    averages = [value for name, value in kept.items() if name != "step"]
    assert [value.dtype for value in averages] == [dtype] * tensors
    assert all(value.shape == p.shape for value in averages)


@pytest.mark.parametrize(("by_hand", "options"), [cost[:2] for cost in COSTS])
@pytest.mark.parametrize("also", [{}, {"weight_decay": 0.1}, {"weight_decay": 0.1, "maximize": True}])
def test_temporary_bytes_are_what_the_allocator_sees(by_hand, options, also):
    p = torch.zeros(256, 256, requires_grad=True)
    optimizer = by_hand([p], **options, **also)
    p.grad = torch.ones_like(p)
    optimizer.step()
    with torch.profiler.profile(profile_memory=True) as profiler:
        optimizer.step()
    allocated = [event.self_cpu_memory_usage for event in profiler.events() if event.self_cpu_memory_usage >= p.nbytes]
    assert sum(allocated) == by_hand.temporary_bytes(p.shape, **also)


@pytest.mark.parametrize(
    ("by_hand", "options", "message"),
    [
        (SGD, {"momentum": -0.1}, "momentum=-0.1"),
        (SGD, {"nesterov": True}, "above 0 with nesterov=True"),
        (SGD, {"nesterov": True, "momentum": 0.9, "dampening": 0.1}, "dampening=0.1"),
        (AdaGrad, {"lr_decay": -1.0}, "lr_decay"),
        (AdaGrad, {"eps": -1.0}, "eps"),
        (AdaGrad, {"initial_accumulator_value": -1.0}, "initial_accumulator_value"),
        (RMSProp, {"alpha": 1.0}, "alpha=1.0"),
        (RMSProp, {"eps": -1.0}, "eps"),
        (RMSProp, {"momentum": -1.0}, "momentum"),
        (RMSProp, {"lr": -1.0}, "lr=-1.0"),
    ],
)
def test_bad_hyper_parameters_are_named_in_every_group(by_hand, options, message):
    p, q = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    with pytest.raises(ValueError, match=message):
        by_hand([p], **options)
    with pytest.raises(ValueError, match=message):
        by_hand([{"params": [p]}, {"params": [q], **options}])


@given(momentum=st.floats(0.0, 0.95), lr=st.floats(1e-3, 1.0))
@settings(deadline=None)
def test_under_a_constant_gradient_momentum_steps_by_the_rate_over_one_minus_momentum(momentum, lr):
    p = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = SGD([p], lr=lr, momentum=momentum)
    for _ in range(400):
        before = p.item()
        p.grad = torch.ones_like(p)
        optimizer.step()
    assert before - p.item() == pytest.approx(lr / (1 - momentum), rel=1e-6)


@given(scale=st.floats(1e-3, 1e6), alpha=st.floats(0, 0.999), t=st.integers(1, 30))
@settings(deadline=None)
def test_the_size_of_rmsprops_update_starts_too_large_by_what_v_lacks(scale, alpha, t):
    p = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = RMSProp([p], lr=0.1, alpha=alpha)
    for _ in range(t):
        before = p.item()
        p.grad = torch.full_like(p, scale)
        optimizer.step()
    assert before - p.item() == pytest.approx(0.1 / (1 - alpha**t) ** 0.5, rel=1e-3)


@given(scale=st.floats(1e-3, 1e6), t=st.integers(1, 30))
@settings(deadline=None)
def test_adagrads_update_falls_as_one_over_the_root_of_the_step(scale, t):
    p = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = AdaGrad([p], lr=0.1)
    for _ in range(t):
        before = p.item()
        p.grad = torch.full_like(p, scale)
        optimizer.step()
    assert before - p.item() == pytest.approx(0.1 / t**0.5, rel=1e-3)
