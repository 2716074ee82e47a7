"""Adafactor by hand against torch's and against Transformers', in float64."""

import copy
from itertools import pairwise

import pytest
import torch
from handing_over import assert_a_run_can_change_hands
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.optimization import Adafactor as TransformersAdafactor

from course_utils import models
from course_utils.memory.allocator import allocator_of
from course_utils.memory.optimizers import state_size
from course_utils.optim import Adafactor, factored

EXACT = {"rtol": 1e-10, "atol": 1e-10}
shapes = st.one_of(
    st.lists(st.integers(1, 5), min_size=0, max_size=3).map(tuple), st.sampled_from([(2, 3, 3, 3), (1, 4, 1, 2)])
)


@st.composite
def torch_groups(draw):
    return {
        "shapes": draw(st.lists(shapes, min_size=1, max_size=3)),
        "lr": draw(st.floats(0, 0.5)),
        "beta2_decay": draw(st.floats(-2.0, 0.0)),
        "eps": (draw(st.sampled_from([None, 1e-12, 1e-3])), draw(st.floats(0, 0.1))),
        "d": draw(st.floats(1, 3)),
        "weight_decay": draw(st.sampled_from([0.0, 1e-4, 0.01, 0.5])),
        "maximize": draw(st.booleans()),
    }


@st.composite
def transformers_groups(draw):
    relative = draw(st.booleans())
    return {
        "shapes": draw(st.lists(shapes, min_size=1, max_size=3)),
        "lr": None if relative else draw(st.floats(0, 0.5)),
        "eps": (draw(st.sampled_from([1e-30, 1e-8, 1e-2])), draw(st.floats(1e-4, 0.1))),
        "clip_threshold": draw(st.floats(0.1, 3)),
        "decay_rate": draw(st.floats(-2.0, 0.0)),
        "beta1": draw(st.sampled_from([None, 0.0, 0.9])),
        "weight_decay": draw(st.sampled_from([0.0, 0.01, 0.5])),
        "scale_parameter": draw(st.booleans()),
        "relative_step": relative,
        "warmup_init": relative and draw(st.booleans()),
    }


def parameters_of(specs, generator):
    """A list of tensors per group; every other matrix is not contiguous."""
    made = [[torch.randn(s, generator=generator, dtype=torch.float64) for s in spec["shapes"]] for spec in specs]
    turned = [[p.mT.clone().mT if i % 2 and p.ndim > 1 else p for i, p in enumerate(group)] for group in made]
    return [[p.requires_grad_() for p in group] for group in turned]


def grouped(specs, parameters):
    def options(spec):
        return {name: value for name, value in spec.items() if name != "shapes"}

    return [{"params": group, **options(spec)} for spec, group in zip(specs, parameters, strict=True)]


def same(parameters):
    return [[p.detach().clone(memory_format=torch.preserve_format).requires_grad_() for p in g] for g in parameters]


def flat(parameters):
    return [p for group in parameters for p in group]


def give_gradients(mine, theirs, generator):
    """The same gradients to both, over twelve decades; about one in five is missing, and some are zero."""
    for p, q in zip(flat(mine), flat(theirs), strict=True):
        scale = 10.0 ** torch.randint(-6, 7, (), generator=generator)
        kind = torch.rand((), generator=generator)
        gradient = torch.randn(p.shape, generator=generator, dtype=torch.float64) * scale * (kind < 0.9)
        p.grad, q.grad = (None, None) if kind < 0.2 else (gradient, gradient.clone())


def in_transformers_terms(spec):
    """The options of a group as `Adafactor` has them."""
    renamed = {"clip_threshold": "d", "decay_rate": "beta2_decay"}
    options = {renamed.get(name, name): value for name, value in spec.items()}
    lr = 1e-2 if options["lr"] is None else options["lr"]
    return {**options, "lr": lr, "eps_in_square": True, "scale_decay": True, "float32_state": True}


def run_beside(mine, theirs, ours, reference, generator, reload_at, steps=20):
    for step in range(steps):
        give_gradients(mine, theirs, generator)
        before = [None if p.grad is None else p.grad.clone() for p in flat(mine)]
        ours.step()
        reference.step()
        if step == reload_at:
            saved = copy.deepcopy(ours.state_dict())
            ours = Adafactor([{"params": group["params"]} for group in ours.param_groups])
            ours.load_state_dict(saved)
        for p, gradient in zip(flat(mine), before, strict=True):
            assert (p.grad is None) if gradient is None else torch.equal(p.grad, gradient)
    for p, q in zip(flat(mine), flat(theirs), strict=True):
        torch.testing.assert_close(p, q, **EXACT)
    return ours


@given(specs=st.lists(torch_groups(), min_size=1, max_size=3), seed=st.integers(0, 2**31), reload_at=st.integers(0, 19))
@settings(max_examples=20, deadline=None)
def test_many_steps_equal_torch(specs, seed, reload_at):
    generator = torch.Generator().manual_seed(seed)
    mine = parameters_of(specs, generator)
    theirs = same(mine)
    reference = torch.optim.Adafactor(grouped(specs, theirs), foreach=False)
    ours = run_beside(mine, theirs, Adafactor(grouped(specs, mine)), reference, generator, reload_at)
    for p, q in zip(flat(mine), flat(theirs), strict=True):
        state, wanted = ours.state.get(p, {}), reference.state.get(q, {})
        assert {name: value.shape for name, value in state.items()} == {name: v.shape for name, v in wanted.items()}
        for name, value in wanted.items():
            torch.testing.assert_close(state[name], value, **EXACT)


@given(specs=st.lists(transformers_groups(), min_size=1, max_size=3), seed=st.integers(0, 2**31), at=st.integers(0, 19))
@settings(max_examples=20, deadline=None)
def test_many_steps_equal_transformers(specs, seed, at):
    generator = torch.Generator().manual_seed(seed)
    mine = parameters_of(specs, generator)
    theirs = same(mine)
    ours = Adafactor(grouped([in_transformers_terms(spec) for spec in specs], mine))
    reference = TransformersAdafactor(grouped(specs, theirs))
    run_beside(mine, theirs, ours, reference, generator, at)


def random_gradients(shape, steps, dtype=torch.float64, size=1.0):
    return size * torch.randn(steps, *shape, dtype=dtype, generator=torch.Generator().manual_seed(1))


def after(optimizer, start, gradients):
    """The parameter after one step per gradient."""
    p = start.clone().requires_grad_()
    stepping = optimizer([p])
    for gradient in gradients:
        p.grad = gradient.clone()
        stepping.step()
    return p.detach()


@pytest.mark.parametrize("shape", [(), (7,), (5, 6), (2, 3, 4)])
def test_by_default_each_constructor_is_its_oracle(shape):
    start, gradients = random_gradients(shape, 1)[0], random_gradients(shape, 12)
    torch.testing.assert_close(
        after(Adafactor, start, gradients), after(torch.optim.Adafactor, start, gradients), **EXACT
    )
    ours = after(Adafactor.as_in_transformers, start, gradients)
    torch.testing.assert_close(ours, after(TransformersAdafactor, start, gradients), **EXACT)
    as_trainer = {"lr": 1e-3, "scale_parameter": False, "relative_step": False}
    ours = after(lambda p: Adafactor.as_in_transformers(p, **as_trainer), start, gradients)
    torch.testing.assert_close(ours, after(lambda p: TransformersAdafactor(p, **as_trainer), start, gradients), **EXACT)


@pytest.mark.parametrize("shape", [(9,), (6, 8)])
def test_half_precision_follows_each_oracle(shape):
    start, gradients = (random_gradients(shape, n).to(torch.bfloat16) for n in (1, 12))
    pairs = [(Adafactor, torch.optim.Adafactor), (Adafactor.as_in_transformers, TransformersAdafactor)]
    for by_hand, oracle in pairs:
        ours, theirs = after(by_hand, start[0], gradients), after(oracle, start[0], gradients)
        torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.02)
    p = start[0].clone().requires_grad_()
    p.grad = gradients[0]
    kept = Adafactor.as_in_transformers([p])
    kept.step()
    kept.load_state_dict(copy.deepcopy(kept.state_dict()))  # torch rounds the state to the parameter's type
    kept.step()
    assert {value.dtype for value in kept.state[p].values()} == {torch.float32}


def test_a_run_can_change_hands_in_the_middle():
    """State saved by torch continues here, and state saved here continues in torch."""
    start, gradients = random_gradients((4, 3), 1)[0], random_gradients((4, 3), 30)
    assert_a_run_can_change_hands(Adafactor, torch.optim.Adafactor, start, gradients, EXACT, weight_decay=0.1)


@pytest.mark.parametrize("other", [torch.optim.AdamW, TransformersAdafactor])
def test_a_state_of_another_optimizer_is_refused(other):
    p = torch.ones(2, 2, requires_grad=True)
    with pytest.raises(ValueError, match="another optimizer"):
        Adafactor([p]).load_state_dict(other([p]).state_dict())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (2, 3, 4), (4, 3, 2, 2)])
@pytest.mark.parametrize("beta1", [None, 0.9])
def test_state_bytes_are_what_the_state_occupies(shape, dtype, beta1):
    p = torch.zeros(shape, dtype=dtype, requires_grad=True)
    optimizer = Adafactor([p], beta1=beta1)
    p.grad = torch.ones_like(p)
    optimizer.step()
    kept = sum(value.nbytes for value in optimizer.state[p].values())
    assert kept == Adafactor.state_bytes(shape, p.itemsize, beta1)
    if beta1 is None:
        assert kept == state_size("adafactor", [shape], dtype).bytes


@pytest.mark.parametrize("shape", [(256, 512), (2000, 8), (100_000,), (8, 16, 5, 5), (1, 9000)])
@pytest.mark.parametrize("options", [{}, {"maximize": True}, {"weight_decay": 0.1}, {"beta1": 0.9}])
def test_temporary_bytes_are_what_the_allocator_sees(shape, options):
    p = torch.ones(shape, requires_grad=True)
    optimizer, allocator = Adafactor([p], **options), allocator_of(p.device)
    p.grad = torch.ones_like(p)
    optimizer.step()
    with allocator.recording(), allocator.measured():
        optimizer.step()
    predicted = Adafactor.temporary_bytes(shape, maximize=options.get("maximize", False))
    assert predicted <= allocator.account().above_start <= predicted + 64  # single numbers on their way


def test_the_published_numbers_of_elements():
    """DistilBERT: 178,608 as torch keeps them; Transformers' RMS of each of 104 tensors makes it 178,712."""
    with torch.device("meta"):
        model = models.from_configuration(models.configuration("distilbert-base-cased", labels=2))
    shapes = [p.shape for p in model.parameters()]
    elements = sum((Adafactor.state_bytes(shape) - 4) // 4 + 1 for shape in shapes)
    assert elements == state_size("adafactor", shapes).elements == 178_608
    assert elements + 104 == state_size("adafactor-transformers", shapes).elements == 178_712


def test_zero_gradients_leave_matrices_where_they_are():
    """An embedding has rows that no batch uses; where everything is 0, 0 / 0 must not appear."""
    for options in ({}, {"eps": (0.0, 1e-3)}, {"eps": (1e-30, 1e-3), "eps_in_square": True}):
        for shape in ((), (3,), (4, 3), (2, 4, 3)):
            start = torch.ones(shape)
            assert torch.equal(after(lambda p, o=options: Adafactor(p, **o), start, torch.zeros(3, *shape)), start)
        used = torch.zeros(3, 5, 4)
        used[:, 1, :2] = 1.0
        moved = after(lambda p, o=options: Adafactor(p, **o), torch.ones(5, 4), used) != 1
        assert torch.equal(moved, used[0] > 0)


def test_empty_tensors_do_no_harm():
    for shape in ((0,), (0, 3), (3, 0)):
        assert after(Adafactor, torch.ones(shape), torch.ones(2, *shape)).shape == shape


def test_sparse_gradients_are_refused_before_anything_moves():
    table, weight = torch.nn.Embedding(5, 2, sparse=True), torch.ones(3, requires_grad=True)
    optimizer = Adafactor([weight, *table.parameters()], lr=1.0)
    (table(torch.tensor([1])).sum() + weight.sum()).backward()
    with pytest.raises(TypeError, match="dense gradients"):
        optimizer.step()
    assert torch.equal(weight.detach(), torch.ones(3))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr=-1.0"),
        ({"beta2_decay": 0.8}, "beta2_decay=0.8"),
        ({"eps": (-1e-8, 1e-3)}, r"eps\[0\]=-1e-08"),
        ({"eps": (None, -1.0)}, r"eps\[1\]=-1.0"),
        ({"eps": (1e-3,)}, r"eps=\(0.001,\)"),
        ({"d": 0.0}, "d=0.0"),
        ({"beta1": 1.0}, "beta1=1.0"),
        ({"weight_decay": -0.1}, "weight_decay=-0.1"),
        ({"relative_step": False, "warmup_init": True}, "warmup_init=True"),
    ],
)
def test_bad_hyper_parameters_are_named_in_every_group(options, message):
    p, q = torch.ones(1, requires_grad=True), torch.ones(1, requires_grad=True)
    with pytest.raises(ValueError, match=message):
        Adafactor([p], **options)
    with pytest.raises(ValueError, match=message):
        Adafactor([{"params": [p]}, {"params": [q], **options}])


def test_no_learning_rate_is_the_papers_bound_or_refused():
    p = torch.ones(1, requires_grad=True)
    assert Adafactor([p], lr=None).param_groups[0]["lr"] == 0.01
    with pytest.raises(ValueError, match="give lr"):
        Adafactor([p], lr=None, relative_step=False)
    with pytest.raises(ValueError, match="lr=None"):
        Adafactor([{"params": [p], "lr": None}])


def test_torch_schedulers_drive_it():
    p = torch.ones(1, requires_grad=True)
    optimizer = Adafactor([p], lr=1e-3, scale_parameter=False)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    places = [p.item()]
    for _ in range(3):
        p.grad = torch.ones(1)
        optimizer.step()
        schedule.step()
        places.append(p.item())
    assert [a - b for a, b in pairwise(places)] == pytest.approx([1e-3, 5e-4, 2.5e-4], rel=1e-3)


# ---------------------------------------------------------------------- laws


@given(scale=st.floats(-8, 12), seed=st.integers(0, 2**31))
@settings(deadline=None, max_examples=15)
def test_the_scale_of_the_gradients_does_not_matter_where_eps_is_in_the_square(scale, seed):
    gradients = torch.randn(5, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    start = torch.ones(4, 6, dtype=torch.float64)
    once = after(Adafactor.as_in_transformers, start, gradients)
    torch.testing.assert_close(
        after(Adafactor.as_in_transformers, start, gradients * 10**scale), once, rtol=1e-9, atol=0
    )


@given(lr=st.floats(1e-4, 0.5), d=st.floats(0.1, 2.0), seed=st.integers(0, 2**31))
@settings(deadline=None, max_examples=30)
def test_no_update_is_longer_than_clipping_allows(lr, d, seed):
    """RMS of a step is at most α d, and α is RMS(θ) min(lr, 1 / √t)."""
    generator = torch.Generator().manual_seed(seed)
    p = torch.randn(5, 7, dtype=torch.float64, generator=generator).requires_grad_()
    optimizer = Adafactor([p], lr=lr, d=d)
    for t in range(1, 9):
        before = p.detach().clone()
        p.grad = torch.randn(5, 7, dtype=torch.float64, generator=generator) * 10 ** (t / 2)
        optimizer.step()
        alpha = max(1e-3, factored.rms(before)) * min(lr, t**-0.5)
        assert factored.rms(p.detach() - before) <= alpha * d * (1 + 1e-9)


matrices = st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**31))


@given(matrices)
@settings(deadline=None, max_examples=40)
def test_the_estimate_is_exact_for_rank_one_and_keeps_both_means(drawn):
    rows, columns, seed = drawn
    exact = factored.random_squares(1, rows, columns, noise=0.0, seed=seed)
    torch.testing.assert_close(factored.estimate(exact), exact, rtol=1e-12, atol=0)
    rough = factored.random_squares(3, rows, columns, noise=1.0, seed=seed)
    found = factored.estimate(rough)
    torch.testing.assert_close(factored.row_means(found), factored.row_means(rough), rtol=1e-12, atol=0)
    torch.testing.assert_close(factored.column_means(found), factored.column_means(rough), rtol=1e-12, atol=0)
    sums = rough.sum(1, keepdim=True) @ rough.sum(0, keepdim=True) / rough.sum()  # as the paper writes it
    torch.testing.assert_close(found, sums, rtol=1e-12, atol=0)


@given(matrices, st.floats(0.01, 1.0))
@settings(deadline=None, max_examples=40)
def test_no_matrix_of_rank_one_diverges_less(drawn, size):
    """Shazeer & Stern 2018, section 3; the singular vectors are better in squares, as they must be."""
    rows, columns, seed = drawn
    squares = factored.random_squares(2, rows, columns, noise=0.5, seed=seed)
    found, generator = factored.estimate(squares), torch.Generator().manual_seed(seed)
    left, right = ((size * torch.randn(s, generator=generator)).exp() for s in ((rows, 1), (1, columns)))
    assert factored.divergence(squares, found) <= factored.divergence(squares, found * left * right) + 1e-9
    best = factored.best_of_rank_one(squares)
    assert factored.relative_error(squares, best) <= factored.relative_error(squares, found) + 1e-12
