"""The engine against torch.autograd and against differences: gradients, and what is saved to the byte."""

import gc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_utils import autodiff
from course_utils.autodiff import Function, Variable, backward_order, numerical_gradients, saved, saved_bytes
from course_utils.lessons.c01_autodiff import cost
from course_utils.memory import saved_bytes as saved_by_torch

UNARY = {
    "exp": (autodiff.exp, torch.exp),
    "relu": (autodiff.relu, torch.relu),
    "square": (lambda x: x**2, lambda x: x**2),
    "cube": (lambda x: x**3, lambda x: x**3),
    "double": (lambda x: 2.0 * x, lambda x: 2.0 * x),
    "from one": (lambda x: 1.0 - x, lambda x: 1.0 - x),
    "half": (lambda x: x / 2.0, lambda x: x / 2.0),
    "small": (lambda x: x / (x * x + 1.0), lambda x: x / (x * x + 1.0)),
    "from a number": (lambda x: 2.0 / (x * x + 1.0), lambda x: 2.0 / (x * x + 1.0)),
    "inverse square": (lambda x: (x * x + 1.0) ** -2, lambda x: (x * x + 1.0) ** -2),
    "no power": (lambda x: x**0, lambda x: x**0),
}
BINARY = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / (b * b + 1.0),
}
SHAPES = [(), (3,), (2, 3), (2, 1), (1, 3)]


@st.composite
def programs(draw):
    """Shapes of leaves, whether each needs a gradient, and a list of steps over all that was made before."""
    leaves = draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=4))
    requires_grad = [True, *(draw(st.booleans()) for _ in leaves[1:])]
    steps, count = [], len(leaves)
    for _ in range(draw(st.integers(1, 8))):
        operands = st.integers(0, count - 1)
        if draw(st.booleans()):
            steps.append((draw(st.sampled_from(sorted(UNARY))), draw(operands)))
        else:
            steps.append((draw(st.sampled_from(sorted(BINARY))), draw(operands), draw(operands)))
        count += 1
    return leaves, requires_grad, steps, draw(st.integers(0, 2**31))


def run(steps, values, which):
    """Every step's value, from the leaves on; `which` is 0 for the engine and 1 for torch."""
    values = list(values)
    for name, *operands in steps:
        function = UNARY[name][which] if name in UNARY else BINARY[name]
        values.append(function(*(values[i] for i in operands)))
    return values


@given(programs())
@settings(deadline=None, max_examples=60)
def test_random_expressions_have_torchs_values_gradients_and_saved_bytes(program):
    leaves, requires_grad, steps, seed = program
    draw = np.random.default_rng(seed)
    arrays = [draw.uniform(-1, 1, shape) for shape in leaves]
    ours = [Variable(a.copy(), requires_grad=n) for a, n in zip(arrays, requires_grad, strict=True)]
    theirs = [torch.tensor(a, requires_grad=n) for a, n in zip(arrays, requires_grad, strict=True)]

    def forward(leaves, which):
        return sum(value.sum() + value.mean() for value in run(steps, leaves, which))

    result, output = forward(ours, 0), forward(theirs, 1)
    assert saved_bytes(result) == saved_by_torch(lambda: forward(theirs, 1), torch.nn.Identity())
    result.backward()
    output.backward()
    assert result.value == pytest.approx(output.item(), rel=1e-10, abs=1e-10)
    for our_leaf, leaf in zip(ours, theirs, strict=True):
        if leaf.grad is None:
            assert our_leaf.grad is None
        else:
            assert our_leaf.grad.shape == our_leaf.value.shape
            np.testing.assert_allclose(our_leaf.grad, leaf.grad.numpy(), rtol=1e-8, atol=1e-9)
    assert saved_bytes(result) == 0


@given(st.sampled_from([((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4))]), st.booleans(), st.booleans())
@settings(deadline=None, max_examples=40)
def test_products_of_vectors_and_matrices(shapes, left, right):
    arrays = [np.random.default_rng(i).normal(size=shape) for i, shape in enumerate(shapes)]
    ours = [Variable(a, requires_grad=n) for a, n in zip(arrays, (left, right), strict=True)]
    theirs = [torch.tensor(a, requires_grad=n) for a, n in zip(arrays, (left, right), strict=True)]
    if not (left or right):
        assert not (ours[0] @ ours[1]).requires_grad
        return
    result = autodiff.exp(ours[0] @ ours[1]).sum()
    result.backward()
    torch.exp(theirs[0] @ theirs[1]).sum().backward()
    for our_leaf, leaf in zip(ours, theirs, strict=True):
        assert (our_leaf.grad is None) == (leaf.grad is None)
        if leaf.grad is not None:
            np.testing.assert_allclose(our_leaf.grad, leaf.grad.numpy(), rtol=1e-12, atol=1e-14)


def test_an_mlp_in_float32_saves_what_torch_saves_and_has_its_gradients():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 2))
    x = torch.randn(4, 5)
    weights = [Variable(p.detach().numpy().T if p.ndim > 1 else p.detach().numpy()) for p in model.parameters()]
    data = Variable(x.numpy(), requires_grad=False)
    w1, b1, w2, b2 = weights
    result = ((autodiff.relu(data @ w1 + b1) @ w2 + b2) ** 2).mean()
    assert result.value.dtype == np.float32
    assert saved_bytes(result, exclude=weights) == saved_by_torch(lambda: (model(x) ** 2).mean(), model)
    result.backward()
    (model(x) ** 2).mean().backward()
    for weight, p in zip(weights, model.parameters(), strict=True):
        assert weight.grad.dtype == np.float32
        np.testing.assert_allclose(weight.grad.T, p.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_the_cost_of_vectors():
    w, x = Variable([1.0, 2.0]), Variable([3.0, -1.0])
    output = cost(1.0, w, x, 0.5)
    assert float(output.value) == 1 - (3 - 2 + 0.5)
    assert [entry["what"] for entry in saved(output)] == ["w", "x", "the output of max(0, ·)"]
    output.backward()
    assert w.grad.tolist() == [-3, 1]
    assert x.grad.tolist() == [-1, -2]


def test_differences_agree_with_the_engine():
    def function(w, x):
        return (autodiff.exp(w @ x) / (x**2).sum()).sum()

    values = np.random.default_rng(0).normal(size=(2, 3)), np.array([1.0, -2.0, 0.5])
    variables = [Variable(value) for value in values]
    function(*variables).backward()
    for variable, numerical in zip(variables, numerical_gradients(function, *values), strict=True):
        np.testing.assert_allclose(variable.grad, numerical, rtol=1e-7, atol=1e-9)


def test_gradients_add_up_over_backwards():
    x = Variable(3.0)
    (x * x).backward()
    (x * x).backward()
    assert x.grad == 12


def test_a_kept_graph_goes_back_twice_and_shows_gradients_in_between():
    x = Variable(2.0)
    square = x**2
    output = 3.0 * square
    output.backward(retain_graph=True)
    assert square.grad == 3
    output.backward()
    assert x.grad == 24


def test_a_freed_graph_is_refused_in_words():
    x = Variable(2.0)
    output = x**2
    output.backward()
    with pytest.raises(RuntimeError, match="power saved was freed by an earlier backward"):
        output.backward()
    (x + x).backward()  # nothing was saved, but the walk is over
    assert x.grad == 6


@pytest.mark.parametrize("function", [autodiff.exp, autodiff.relu])
def test_a_saved_output_that_was_changed_is_refused(function):
    x = Variable([1.0, 2.0])
    y = function(x)
    output = (y * 1.0).sum()
    y.assign_(0)
    with pytest.raises(RuntimeError, match=r"saved the output of .* changed in place since"):
        output.backward()
    assert x.grad is None


def test_a_saved_input_that_was_changed_is_refused_by_its_name():
    x = Variable(2.0, "x")
    output = x**2
    x.assign_(3.0)
    with pytest.raises(RuntimeError, match="power saved x for backward"):
        output.backward()


def test_what_nobody_saved_may_be_changed():
    x = Variable(2.0)
    y = 3.0 * x
    y.assign_(0)
    y.backward()
    assert x.grad == 3


def test_what_needs_no_gradient_is_not_recorded():
    x = Variable(2.0, requires_grad=False)
    y = autodiff.exp(x * x)
    assert not y.requires_grad
    assert y.grad_fn is None
    assert saved(y) == []


def test_backward_begins_at_a_given_gradient():
    x = Variable([1.0, 2.0])
    y = x * x
    y.backward([1.0, 10.0])
    assert x.grad.tolist() == [2, 40]


def test_deep_graphs_need_no_recursion():
    x = Variable(1.0)
    y = x
    for _ in range(5000):
        y = y + 0.001
    y.backward()
    assert x.grad == 1


def test_a_graph_that_doubles_is_walked_once():
    x = Variable(1.0)
    y = x
    for _ in range(60):
        y = y + y
    assert len(backward_order(y)) == 61
    y.backward()
    assert x.grad == 2**60


def test_saved_memory_counts_once_and_what_is_kept_anyway_not_at_all():
    x, w = Variable(np.ones(10)), Variable(np.ones(10))
    output = ((w * x) * x).sum()
    assert [entry["counted"] for entry in saved(output)] == [True, True, True, False]
    assert saved_bytes(output) == 3 * 80
    assert saved_bytes(output, exclude=[w]) == 2 * 80


def test_a_backward_frees_memory_without_the_garbage_collector():
    x = Variable(np.ones(10))
    y = autodiff.exp(x)
    output, freed = y.sum(), []
    weakref.finalize(y.value, freed.append, True)
    gc.disable()
    try:
        output.backward()
        del y, output
        assert freed == [True]
    finally:
        gc.enable()


def test_a_function_of_ones_own():
    class Cube(Function):
        symbol = "cube"

        @staticmethod
        def forward(ctx, a):
            ctx.save_for_backward(a)
            return a**3

        @staticmethod
        def backward(ctx, gradient):
            (a,) = ctx.saved_values
            return (gradient * 3 * a**2,)

    x = Variable([1.0, 2.0], "x")
    output = Cube.apply(x).sum()
    output.backward()
    assert x.grad.tolist() == [3, 12]
    (numerical,) = numerical_gradients(lambda v: Cube.apply(v).sum(), [1.0, 2.0])
    np.testing.assert_allclose(numerical, x.grad, rtol=1e-8)


def test_numpy_on_the_left_leaves_the_operator_to_the_engine():
    x = Variable([1.0, 2.0])
    assert isinstance(np.ones(2) * x, Variable)
    assert isinstance(np.float64(2) - x, Variable)
    assert repr(Variable(2, "x")) == "x(2.0)"


def test_every_leaf_has_a_gradient_of_its_own_to_change():
    a, b = Variable([1.0, 2.0]), Variable([3.0, 4.0])
    (a + b).sum().backward()
    a.grad += 5
    assert a.grad.tolist() == [6, 6]
    assert b.grad.tolist() == [1, 1]
    assert isinstance((x := Variable(2.0)).backward() or x.grad, np.ndarray)
