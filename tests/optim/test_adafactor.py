"""Adafactor by hand against torch's and against Transformers', in float64."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optimizer_runs import parameters_of, run_beside, state_bytes_of
from transformers.optimization import Adafactor as TransformersAdafactor

from course_utils.memory.trace.allocator import allocator_of
from course_utils.optim import Adafactor, HFAdafactor

EXACT = {"rtol": 1e-10, "atol": 1e-10}
seeds = st.integers(0, 2**31)
shapes = st.one_of(
    st.lists(st.integers(1, 5), min_size=0, max_size=3).map(tuple), st.sampled_from([(2, 3, 3, 3), (1, 4, 1, 2)])
)


@st.composite
def torch_groups(draw):
    return {
        "shapes": draw(st.lists(shapes, min_size=1, max_size=3)),
        "lr": draw(st.floats(0, 0.5)),
        "beta2_decay": draw(st.floats(-2.0, -0.1)),
        "eps": (draw(st.sampled_from([None, 1e-12, 1e-3])), draw(st.floats(0, 0.1))),
        "d": draw(st.floats(1, 3)),
        "weight_decay": draw(st.sampled_from([0.0, 1e-4, 0.01, 0.5])),
    }


@st.composite
def transformers_groups(draw):
    relative = draw(st.booleans())
    return {
        "shapes": draw(st.lists(shapes, min_size=1, max_size=3)),
        "lr": None if relative else draw(st.floats(0, 0.5)),
        "eps": (draw(st.sampled_from([1e-30, 1e-8, 1e-2])), draw(st.floats(1e-4, 0.1))),
        "clip_threshold": draw(st.floats(0.1, 3)),
        "decay_rate": draw(st.floats(-2.0, -0.1)),
        "beta1": draw(st.sampled_from([None, 0.0, 0.9])),
        "scale_parameter": draw(st.booleans()),
        "relative_step": relative,
    }


def draw_parameters(specs, generator):
    """A list of tensors per group; every other matrix is not contiguous."""
    tensors = [[torch.randn(s, generator=generator, dtype=torch.float64) for s in spec["shapes"]] for spec in specs]
    turned = [[p.mT.clone().mT if i % 2 and p.ndim > 1 else p for i, p in enumerate(group)] for group in tensors]
    return [[p.requires_grad_() for p in group] for group in turned]


def grouped(specs, parameters):
    def options(spec):
        return {name: value for name, value in spec.items() if name != "shapes"}

    return [{"params": group, **options(spec)} for spec, group in zip(specs, parameters, strict=True)]


def clones(parameters):
    return [[p.detach().clone(memory_format=torch.preserve_format).requires_grad_() for p in g] for g in parameters]


def in_transformers_terms(spec):
    """The options of a group as `Adafactor` has them."""
    renamed = {"clip_threshold": "d", "decay_rate": "beta2_decay"}
    options = {renamed.get(name, name): value for name, value in spec.items()}
    lr = 1e-2 if options["lr"] is None else options["lr"]
    return {**options, "lr": lr}


def assert_same_parameters(ours, theirs):
    for p, q in zip(parameters_of(ours.param_groups), parameters_of(theirs.param_groups), strict=True):
        torch.testing.assert_close(p, q, **EXACT)


@given(specs=st.lists(torch_groups(), min_size=1, max_size=3), seed=seeds, reload_at=st.integers(0, 19))
@settings(max_examples=20, deadline=None)
def test_many_steps_equal_torch(specs, seed, reload_at):
    generator = torch.Generator().manual_seed(seed)
    parameters = draw_parameters(specs, generator)
    theirs = torch.optim.Adafactor(grouped(specs, clones(parameters)), foreach=False)
    ours = Adafactor(grouped(specs, parameters))
    ours = run_beside(ours, theirs, generator, steps=20, reload_at=reload_at, decades=6)
    assert_same_parameters(ours, theirs)
    for p, q in zip(parameters_of(ours.param_groups), parameters_of(theirs.param_groups), strict=True):
        state = ours.state.get(p, {})
        expected = theirs.state.get(q, {})
        assert {name: value.shape for name, value in state.items()} == {name: v.shape for name, v in expected.items()}
        for name, value in expected.items():
            torch.testing.assert_close(state[name], value, **EXACT)


@given(specs=st.lists(transformers_groups(), min_size=1, max_size=3), seed=seeds, reload_at=st.integers(0, 19))
@settings(max_examples=20, deadline=None)
def test_many_steps_equal_transformers(specs, seed, reload_at):
    generator = torch.Generator().manual_seed(seed)
    parameters = draw_parameters(specs, generator)
    theirs = TransformersAdafactor(grouped(specs, clones(parameters)))
    ours = HFAdafactor(grouped([in_transformers_terms(spec) for spec in specs], parameters))
    ours = run_beside(ours, theirs, generator, steps=20, reload_at=reload_at, decades=6)
    assert_same_parameters(ours, theirs)


def random_gradients(shape, steps):
    return torch.randn(steps, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def after(optimizer, start, gradients):
    """The parameter after one step per gradient."""
    p = start.clone().requires_grad_()
    stepper = optimizer([p])
    for gradient in gradients:
        p.grad = gradient.clone()
        stepper.step()
    return p.detach()


@pytest.mark.parametrize("shape", [(), (7,), (5, 6), (2, 3, 4)])
def test_by_default_each_constructor_is_its_oracle(shape):
    start, gradients = random_gradients(shape, 1)[0], random_gradients(shape, 12)
    ours = after(Adafactor, start, gradients)
    torch.testing.assert_close(ours, after(torch.optim.Adafactor, start, gradients), **EXACT)
    ours = after(HFAdafactor, start, gradients)
    torch.testing.assert_close(ours, after(TransformersAdafactor, start, gradients), **EXACT)
    as_trainer = {"lr": 1e-3, "scale_parameter": False, "relative_step": False}
    ours = after(lambda p: HFAdafactor(p, **as_trainer), start, gradients)
    torch.testing.assert_close(ours, after(lambda p: TransformersAdafactor(p, **as_trainer), start, gradients), **EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (2, 3, 4), (4, 3, 2, 2)])
@pytest.mark.parametrize("beta1", [None, 0.9])
def test_state_bytes_are_what_the_state_occupies(shape, dtype, beta1):
    p = torch.zeros(shape, dtype=dtype, requires_grad=True)
    state_bytes = state_bytes_of(partial(HFAdafactor, beta1=beta1), p)
    assert state_bytes == HFAdafactor.state_bytes(shape, p.itemsize, beta1=beta1)
    if beta1 is None:
        assert state_bytes == state_bytes_of(torch.optim.Adafactor, p)


@pytest.mark.parametrize("shape", [(256, 512), (2000, 8), (100_000,), (8, 16, 5, 5), (1, 9000)])
@pytest.mark.parametrize("options", [{}, {"weight_decay": 0.1}])
def test_temporary_bytes_are_what_the_allocator_sees(shape, options):
    p = torch.ones(shape, requires_grad=True)
    optimizer = Adafactor([p], **options)
    allocator = allocator_of(p.device)
    p.grad = torch.ones_like(p)
    optimizer.step()
    with allocator.recording(), allocator.measured():
        optimizer.step()
    predicted = Adafactor.temporary_bytes(shape)
    assert predicted <= allocator.account().above_start <= predicted + 64  # single numbers on their way


def test_zero_gradients_leave_matrices_where_they_are():
    """An embedding has rows that no batch uses; where everything is 0, 0 / 0 must not appear."""
    for kind in (Adafactor, partial(Adafactor, eps=(0.0, 1e-3)), HFAdafactor):
        for shape in ((), (3,), (4, 3), (2, 4, 3)):
            start = torch.ones(shape)
            assert torch.equal(after(kind, start, torch.zeros(3, *shape)), start)
        gradients = torch.zeros(3, 5, 4)
        gradients[:, 1, :2] = 1.0
        has_moved = after(kind, torch.ones(5, 4), gradients) != 1
        assert torch.equal(has_moved, gradients[0] > 0)


def test_empty_tensors_do_no_harm():
    for shape in ((0,), (0, 3), (3, 0)):
        assert after(Adafactor, torch.ones(shape), torch.ones(2, *shape)).shape == shape
