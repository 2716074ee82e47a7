"""What an answer keeps is counted wherever it lies; what torch's own allocator would have freed is not."""

import functools

import pytest
import torch
from torch import nn

from course_utils.grading import holding

PLACES = """
import functools, torch
class Box: pass
def keeps(tensor):
    yield lambda: tensor
    yield functools.partial(torch.add, tensor)
    yield (tensor for _ in range(3))
    box = Box(); box.inside = {"deep": [(tensor,)]}
    yield box
    Box.shared = tensor
    yield Box()
def empty():
    return lambda: torch.ones(3)
"""


@pytest.fixture
def notebook():
    names = {"__name__": "__main__"}
    exec(PLACES, names)
    return names


def test_a_tensor_is_reached_wherever_a_notebook_hides_it(notebook):
    tensor = torch.ones(3)
    for place in notebook["keeps"](tensor):
        assert any(value is tensor for value in holding.reachable(place)), place
    assert not [value for value in holding.reachable(notebook["empty"]()) if isinstance(value, torch.Tensor)]


def test_a_slice_and_its_neighbor_count_as_the_memory_behind_both():
    vector = torch.ones(10, dtype=torch.float64)
    box = {"slice": vector[:3], "others": [vector[5:], torch.ones(4, dtype=torch.int64), torch.ones(2, device="meta")]}
    assert len(holding.tensors_held(box)) == 3
    assert holding.elements_kept(holding.tensors_held(box)) == 10


def test_numbers_outside_of_tensors_count():
    class Holder:
        pass

    holder = Holder()
    holder.values = torch.rand(10, dtype=torch.float64).tolist()
    assert holding.numbers_held(holder) == 80
    holder.values = torch.rand(10, dtype=torch.float64).numpy().copy()
    assert holding.numbers_held(holder) == 80
    holder.values = holder.values.tobytes()
    assert holding.numbers_held(holder) == 80


def test_memory_that_lives_on_is_counted_as_large_as_it_is_now():
    inputs, references = torch.ones(100), []
    with holding.Born() as born:
        references.append(functools.partial(torch.add, torch.ones(5, dtype=torch.float64)))
        references.append(inputs.view(10, 10))  # the caller's own memory
        references.append(torch.zeros(50)[:1])
        references.append(torch.ones(70, device="meta"))
        torch.ones(1000).sum()
    assert sorted(born.alive()) == [40, 200]
    references[2].untyped_storage().resize_(0)
    assert born.alive() == [40]
    references.clear()
    assert born.alive() == []


def test_the_fullest_instant_the_largest_tensor_and_products_are_counted():
    inputs = torch.ones(100)
    with holding.Peak() as peak:
        tensor = torch.ones(50)
        tensor.view(5, 10).add_(inputs[:10])  # no new memory
        torch.ones(70).sum()
        torch.ones(30, dtype=torch.float64)
    assert (peak.most, peak.largest, peak.products) == (4 * 120 + 4, 70, 0)


@pytest.mark.parametrize(
    ("multiply", "count"),
    [
        (lambda a, b: a @ b, 2 * 3 * 4 * 5),
        (lambda a, b: torch.einsum("nij,njk->nik", a, b), 2 * 3 * 4 * 5),
        (lambda a, b: torch.baddbmm(torch.ones(2, 3, 5), a, b), 2 * 3 * 4 * 5),
        (lambda a, b: a[0] @ b[0], 3 * 4 * 5),
        (lambda a, b: torch.addmm(torch.ones(5), a[0], b[0], beta=0.5), 3 * 4 * 5),
        (lambda a, b: a[0] @ b[0, :, 0], 3 * 4),
        (lambda a, b: a[0, 0] @ b[0, :, 0], 4),
        (lambda a, b: a.sum() * b.sum(), 0),
    ],
)
def test_products_are_counted_however_they_are_written(multiply, count):
    a, b = torch.ones(2, 3, 4), torch.ones(2, 4, 5)
    with holding.Peak() as peak:
        multiply(a, b)
    assert peak.products == count


@pytest.mark.parametrize(("keep", "row_count"), [("nothing", 2), ("losses", 2), ("graphs", 6), ("all at once", 6)])
def test_rows_wait_as_long_as_their_graph_is_there(keep, row_count):
    model, losses = nn.Linear(3, 3), []
    with holding.Waiting(model) as rows:
        for _ in range(3):
            loss = model(torch.ones(2, 3)).square().sum()
            losses += [] if keep == "nothing" else [loss]
            if keep != "all at once":
                loss.backward(retain_graph=keep == "graphs")
        del loss
    assert rows.most == row_count


@pytest.mark.parametrize("hold", [False, True])
def test_rows_of_outputs_are_counted_while_somebody_holds_them(hold):
    model, outputs = nn.Linear(3, 3), []
    with holding.Waiting(model) as rows:
        for _ in range(3):
            output = model(torch.ones(2, 3))
            output.square().sum().backward()
            outputs += [output] if hold else []
    assert rows.outputs == (6 if hold else 4)
    assert rows.most == 2


class OutputKeeper(torch.autograd.Function):
    """Keeps its output, `by_torch` or by an attribute of the context."""

    @staticmethod
    def forward(ctx, x, by_torch):
        y = x.exp()
        if by_torch:
            ctx.save_for_backward(y)
        else:
            ctx.y = y
        return y

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.y, None


def test_an_output_that_hangs_on_its_own_context_is_not_freed():
    x, references = torch.ones(3, requires_grad=True), []
    assert holding.is_freed(lambda: OutputKeeper.apply(x, True))
    assert not holding.is_freed(lambda: OutputKeeper.apply(x, False))
    assert not holding.is_freed(lambda: references.append(x.exp()) or references[0])
