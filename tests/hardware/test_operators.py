"""Work counted from shapes, compared with closed forms and PyTorch's counter."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course_utils import hardware
from course_utils.capstone import Operations


def operators_of(step, *inputs):
    with hardware.OperatorWatch() as watch:
        step(*inputs)
    return watch.operators


def works(name, step, *inputs):
    return [operator.work for operator in operators_of(step, *inputs) if operator.name == f"aten.{name}"]


def test_flops_of_a_convolution():
    model = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
    operators = operators_of(lambda x: model(x).sum().backward(), torch.ones(2, 3, 12, 12))
    forward, backward = (operator.work for operator in operators if operator.work.flops)
    assert forward.flops == 2 * (2 * 8 * 6 * 6) * (3 * 3 * 3)
    assert backward.flops == forward.flops  # pictures want no gradient: one product, not two
    assert forward.size == (8 * 3 * 3 * 3) ** 0.5


@pytest.mark.parametrize(
    ("name", "step", "expected"),
    [
        ("add", lambda a, b, c: a + b, (3 * 140, 140, 35)),
        ("add", lambda a, b, c: a + c, (140 + 28 + 140, 140, 35)),
        ("mul", lambda a, b, c: a * a, (2 * 140, 140, 35)),
        ("mul_", lambda a, b, c: a.mul_(b), (3 * 140, 0, 35)),  # reads both, writes one
        ("add_", lambda a, b, c: a.add_(c.expand(5, 7)), (2 * 140 + 28, 0, 35)),
        ("zero_", lambda a, b, c: a.zero_(), (140, 0, 35)),
        ("copy_", lambda a, b, c: a.copy_(b), (2 * 140, 0, 35)),
        ("view", lambda a, b, c: a.view(7, 5), (0, 0, 0)),
        ("empty_like", lambda a, b, c: torch.empty_like(a), (0, 0, 0)),
        ("_foreach_add_", lambda a, b, c: torch._foreach_add_([a, c], 1), (2 * (140 + 28), 0, 42)),
    ],
)
def test_bytes_are_those_read_and_written_each_tensor_once(name, step, expected):
    (work,) = works(name, step, torch.ones(5, 7), torch.ones(5, 7), torch.ones(7))
    assert (work.bytes, work.new_bytes, work.elements) == expected


def test_a_lookup_reads_the_rows_it_is_asked_for():
    (work,) = works("embedding", F.embedding, torch.zeros(3, dtype=torch.int64), torch.ones(1000, 8))
    assert work.bytes == 3 * 8 + 2 * (3 * 8 * 4) + 3 * 8  # ids, as many bytes of rows as are written


def test_what_is_put_into_a_tensor_is_read_and_written():
    table = torch.ones(1000, 8)
    ids = torch.tensor([1, 5, 7])
    (work,) = works("index_put_", lambda: table.index_put_((ids,), torch.ones(3, 8)))
    assert work.bytes == 3 * 8 + 2 * (3 * 8 * 4)
    (work,) = works("index_put_", lambda: table.index_put_((table > 0,), torch.zeros(())))
    assert work.bytes == 2 * (1000 * 8 * 4) + 1000 * 8 + 4, "through a mask every element is looked at"


def test_all_counters_find_the_same_products():
    """This includes attention on the CPU, for which torch has no formula: two products forward, five backward."""
    q, k, v = (torch.randn(2, 3, 8, 4, requires_grad=True) for _ in range(3))
    layer = nn.Linear(4, 5)

    def step():
        layer(F.scaled_dot_product_attention(q, k, v)).sum().backward()

    with hardware.OperatorWatch() as watch:
        step()
    with hardware.count_flops() as counter:
        step()
    with Operations() as operations:
        step()
    counts = operations.by_operator.items()
    products = sum(count for name, count in counts if "attention" in name or name.endswith("mm"))
    right = 7 * 2 * (2 * 3 * 8 * 8 * 4) + 3 * 2 * (2 * 3 * 8 * 4 * 5)
    assert sum(operator.work.flops for operator in watch.operators) == counter.get_total_flops() == products == right


def test_kinds_of_products_are_told_apart():
    def step(a, b):
        for left, right in ((a, b), (a, b.t()), (a.t(), b)):
            torch.mm(left, right)
        torch.bmm(a[None], b[None])

    operators = operators_of(step, torch.ones(4, 4), torch.ones(4, 4))
    kernels = [operator.work.kernel for operator in operators if operator.work.flops]
    assert kernels == ["mm NN", "mm NT", "mm TN", "bmm"]


def test_what_sets_the_pace_beside_the_shape_is_told_apart():
    def norms(dim):
        step = partial(torch.linalg.vector_norm, ord=2, dim=dim)
        (work,) = works("linalg_vector_norm", step, torch.ones(4, 5, 3))
        return work.kernel, work.size

    assert norms(-1) == ("linalg_vector_norm", 3), "side by side in memory"
    assert norms(-2) == ("linalg_vector_norm, strided", 5)
    assert norms(None)[0] == "linalg_vector_norm"

    def pictures(layout):
        x = torch.ones(2, 3, 4, 4)
        step = partial(torch.ops.aten.threshold_backward, threshold=0)
        (work,) = works("threshold_backward", step, x, x.contiguous(memory_format=layout))
        return work.kernel

    assert pictures(torch.contiguous_format) == "threshold_backward"
    assert pictures(torch.channels_last) == "threshold_backward, mixed layouts"


def test_it_is_remembered_how_much_was_moved_since_an_input_was_touched():
    def step(x, y):
        for _ in range(2):
            x.add_(1)  # 400 bytes are read and 400 written
            y.add_(1)

    operators = operators_of(step, torch.ones(100), torch.ones(100))
    first, _, second, other = (operator.work for operator in operators if operator.work.bytes)
    assert first.reach > 10**8, "it was touched in another step"
    assert second.reach == other.reach == 800


def test_of_products_the_rows_are_counted_and_of_lists_the_pieces():
    (product,) = works("mm", torch.mm, torch.ones(7, 5), torch.ones(5, 3))
    assert (product.rows, product.size) == (7, 15**0.5)
    (roots,) = works("_foreach_sqrt", torch._foreach_sqrt, [torch.ones(6), torch.ones(2)])
    assert (roots.new_tensors, roots.new_bytes) == (2, 32)


def test_flops_of_a_recurrent_layer():
    batch, length, inner, outer = 6, 4, 10, 24
    model = nn.LSTM(inner, outer, batch_first=True)
    operators = operators_of(lambda x: model(x)[0].sum().backward(), torch.randn(batch, length, inner))
    forward = 2 * batch * length * (4 * outer * inner + 4 * outer * outer)
    assert sum(operator.work.flops for operator in operators) == 3 * forward, (
        "backward has two products for each of forward's"
    )


@pytest.mark.parametrize("rows", [(2, 3, 3), (0, 8, 0)])
def test_flops_of_experts_do_not_depend_on_who_has_which_rows(rows):
    step = partial(torch._grouped_mm, offs=torch.tensor(rows).cumsum(0).to(torch.int32))
    x = torch.randn(sum(rows), 16).bfloat16()
    experts = torch.randn(len(rows), 16, 32).bfloat16()
    (work,) = works("_grouped_mm", step, x, experts)
    assert work.flops == 2 * sum(rows) * 16 * 32


def test_a_product_with_weights_of_four_bits_has_the_operations_of_any_other():
    """bitsandbytes' own operator, of which torch's counter knows nothing."""
    layers = pytest.importorskip("bitsandbytes").nn
    torch.manual_seed(0)
    rows, wide = torch.randn(24, 128), nn.Linear(128, 64, bias=False)
    narrow = layers.Linear4bit(128, 64, bias=False, quant_type="nf4", compute_dtype=torch.float32)
    narrow.weight = layers.Params4bit(wide.weight.detach(), requires_grad=False, quant_type="nf4").to("cpu")
    counted = []
    for layer in (wide, narrow):
        with hardware.OperatorWatch() as watch:
            layer(rows)
        counted.append(sum(work.flops for _, work in watch.operators))
    assert counted == [2 * 24 * 128 * 64] * 2
