"""Counted operations against pencil and torch's own counter."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from course_utils.capstone import Operations
from course_utils.errors import CourseError


def count(work):
    with Operations() as operations:
        work()
    return operations


def test_a_linear_layer_costs_what_pencil_says():
    """Forward, the gradient of the weights and that of x are a product each; the bias and its gradient are in the rest."""
    rows, wide, narrow = 5, 7, 3
    x, layer = torch.randn(rows, wide, requires_grad=True), nn.Linear(wide, narrow)
    forward = count(lambda: layer(x))
    assert forward.total == 2 * rows * wide * narrow
    y = layer(x)
    gradient = torch.ones_like(y)
    backward = count(lambda: y.backward(gradient))
    assert backward.by_operator["mm"] == 2 * (2 * rows * wide * narrow)
    assert backward.by_operator["sum"] == rows * narrow


def test_products_of_a_whole_step_are_those_that_torch_counts():
    net = nn.Sequential(nn.Conv1d(4, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 8, 5), nn.LayerNorm(5))

    def step():
        net(torch.ones(2, 4, 10)).square().sum().backward()

    with FlopCounterMode(display=False) as torchs:
        step()
    ours = count(step)
    products = {"addmm", "mm", "convolution", "convolution_backward"}
    assert sum(ours.by_operator[name] for name in products) == torchs.get_total_flops()
    assert ours.total > torchs.get_total_flops()


@pytest.mark.parametrize("without_autograd", [torch.no_grad, torch.inference_mode])
def test_a_product_counts_the_same_without_autograd(without_autograd):
    a, layer = torch.ones(2, 3), nn.Linear(3, 4)
    with without_autograd():
        assert count(lambda: layer(a)).total == 2 * 2 * 3 * 4


def test_a_product_written_by_elements_costs_as_much():
    a, b = torch.ones(4, 5), torch.ones(5, 6)
    assert count(lambda: a @ b).total == count(lambda: (a[:, :, None] * b).sum(1)).total == 2 * 4 * 5 * 6


def test_views_are_free_and_a_list_counts_as_one_tensor():
    a, pair = torch.ones(6, 4), [torch.ones(3), torch.ones(5)]
    assert count(lambda: a.T[1:].unflatten(1, (2, 3))[0].expand(9, 2, 3)).total == 0
    assert count(lambda: a.T.flatten()).total == 24  # a copy
    assert count(lambda: torch._foreach_add_(pair, 1.0)).total == 8


def test_an_embedding_counts_its_table():
    table = nn.Embedding(10, 4)
    assert count(lambda: table(torch.tensor([1, 2]))).by_operator["embedding"] == 40


@pytest.mark.parametrize(
    "work",
    [
        lambda a: torch.linalg.inv(a),
        lambda a: a @ a[0],
        lambda a: torch.dot(a[0], a[0]),
        lambda a: torch.cdist(a, a),
        lambda a: torch.fft.rfft(a),
        lambda a: torch.matrix_exp(a),
        lambda a: torch.sparse.mm(a.to_sparse(), a),
    ],
    ids=["inv", "mv", "dot", "cdist", "fft", "matrix_exp", "sparse"],
)
def test_what_cannot_be_counted_is_refused_by_name(work):
    with pytest.raises(CourseError, match=r"cannot be counted; use matrix products"):
        count(lambda: work(torch.eye(4) + 1))


def test_an_operator_of_ones_own_is_refused():
    @torch.library.custom_op("course_test::add", mutates_args=())
    def product(a: torch.Tensor) -> torch.Tensor:
        return a @ a

    with pytest.raises(CourseError, match="course_test.add"):
        count(lambda: product(torch.ones(2, 2)))


def test_a_step_of_bitsandbytes_counts_its_elements():
    import bitsandbytes

    parameter = nn.Parameter(torch.ones(4096))
    optimizer = bitsandbytes.optim.AdamW8bit([parameter])
    parameter.grad = torch.ones(4096)
    counts = count(optimizer.step).by_operator
    assert counts["optimizer_update_8bit_blockwise"] == 4096


def test_it_ends_where_the_most_is_passed():
    a = torch.ones(2, 2)
    with pytest.raises(CourseError, match="Stopped after 16 operations: 10 are the most"), Operations(limit=10):
        a @ a
