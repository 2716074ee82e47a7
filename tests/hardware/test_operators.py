"""Work counted from shapes, beside closed forms, PyTorch's counters and the operators of a real step."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import flop_counter

from course_utils import hardware, models
from course_utils.capstone import Operations
from course_utils.errors import CourseError
from course_utils.hardware import Machine
from course_utils.memory.step.recipe import Recipe
from course_utils.memory.step.workload import Workload
from course_utils.memory.trace.dry_run import count_operators, predict_seconds

B, D, H, C = 6, 10, 24, 4


def mlp():
    model = nn.Sequential(nn.Linear(D, H), nn.ReLU(), nn.Linear(H, C))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, foreach=False), torch.randn(B, D), torch.randint(C, (B,))


def train(model, optimizer, x, y):
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    optimizer.zero_grad()


def of_tensors(build, step):
    """A step without a model as one with a model that does nothing, since a dry run wants one."""
    return lambda: (nn.Identity(), *build()), lambda model, *tensors: step(*tensors)


def works(build, step, name):
    return [o.work for o in count_operators(*of_tensors(build, step)) if o.name == f"aten.{name}"]


def flops(operators):
    return sum(operator.work.flops for operator in operators)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_flops_of_a_transformer(attention):
    width, inner, layers, heads, vocabulary, batch, length = 32, 48, 2, 4, 64, 3, 16
    heads_of = {"num_attention_heads": heads, "num_key_value_heads": heads}
    sizes = {"hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers, "vocab_size": vocabulary}
    config = models.configuration("llama", **heads_of, **sizes)
    workload = Workload(config, Recipe(batch=batch, sequence=length, attention=attention))
    tokens = batch * length
    weights = layers * (4 * width**2 + 3 * width * inner) + width * vocabulary
    attended = layers * 2 * (2 * tokens * length * width)  # scores, and values by scores
    # Fused attention computes the scores again in its backward pass: five products for two, where there were four.
    times = 2.5 if attention == "sdpa" else 2
    assert flops(count_operators(workload.build, workload.step)) == 3 * 2 * tokens * weights + (1 + times) * attended


def test_flops_of_a_convolution():
    def build():
        return nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), torch.ones(2, 3, 12, 12)

    forward, backward = (o.work for o in count_operators(build, lambda m, x: m(x).sum().backward()) if o.work.flops)
    assert forward.flops == 2 * (2 * 8 * 6 * 6) * (3 * 3 * 3)
    assert backward.flops == forward.flops  # pictures want no gradient: one product, not two
    assert forward.side == (8 * 3 * 3 * 3) ** 0.5


def test_bytes_are_those_read_and_written_each_tensor_once():
    def of(step, name):
        (work,) = works(lambda: (torch.ones(5, 7), torch.ones(5, 7), torch.ones(7)), step, name)
        return work.bytes, work.new, work.elements

    assert of(lambda a, b, c: a + b, "add") == (3 * 140, 140, 35)
    assert of(lambda a, b, c: a + c, "add") == (140 + 28 + 140, 140, 35)
    assert of(lambda a, b, c: a * a, "mul") == (2 * 140, 140, 35)
    assert of(lambda a, b, c: a.mul_(b), "mul_") == (3 * 140, 0, 35)  # reads both, writes one
    assert of(lambda a, b, c: a.add_(c.expand(5, 7)), "add_") == (2 * 140 + 28, 0, 35)
    assert of(lambda a, b, c: a.zero_(), "zero_") == (140, 0, 35)
    assert of(lambda a, b, c: a.copy_(b), "copy_") == (2 * 140, 0, 35)
    assert of(lambda a, b, c: a.view(7, 5), "view") == (0, 0, 0)
    assert of(lambda a, b, c: torch.empty_like(a), "empty_like") == (0, 0, 0)
    assert of(lambda a, b, c: torch._foreach_add_([a, c], 1), "_foreach_add_") == (2 * (140 + 28), 0, 42)


def test_a_lookup_reads_the_rows_it_is_asked_for():
    def build():
        return torch.ones(1000, 8), torch.zeros(3, dtype=torch.int64)

    (work,) = works(build, lambda table, ids: F.embedding(ids, table), "embedding")
    assert work.bytes == 3 * 8 + 2 * (3 * 8 * 4) + 3 * 8  # ids, as many bytes of rows as are written


def test_what_is_put_into_a_tensor_is_read_and_written_and_the_rest_stays():
    def build():
        return torch.ones(1000, 8), torch.tensor([1, 5, 7]), torch.ones(3, 8)

    (work,) = works(build, lambda table, ids, rows: table.index_put_((ids,), rows), "index_put_")
    assert work.bytes == 3 * 8 + 2 * (3 * 8 * 4)

    def masked(table, ids, rows):
        table.index_put_((table > 0,), rows.new_zeros(()))

    (work,) = works(build, masked, "index_put_")
    assert work.bytes == 2 * (1000 * 8 * 4) + 1000 * 8 + 4, "through a mask every element is looked at"


@pytest.mark.parametrize("backward", [False, True])
def test_attention_with_heads_that_share_a_key_takes_the_products_of_all_its_heads(backward):
    """PyTorch's own counter, of as many keys as queries: before 2.13 it knows no other."""

    def build(heads):
        made = (torch.ones(2, n, 12, 16, dtype=torch.bfloat16, requires_grad=True) for n in (6, heads, heads))
        return nn.Identity(), *made

    def step(_, query, key, value):
        out = F.scaled_dot_product_attention(query, key, value, enable_gqa=True)
        if backward:
            out.sum().backward()

    shape = (2, 6, 12, 16)
    right = flop_counter.sdpa_flop_count(shape, shape, shape)
    if backward:
        right += flop_counter.sdpa_backward_flop_count(shape, shape, shape, shape)
    for heads in (6, 2):
        assert flops(count_operators(partial(build, heads), step, "cuda")) == right


def test_all_counters_find_the_same_products():
    """Attention on the CPU among them, for which torch has no formula: two products forward, five backward."""
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

    operators = count_operators(*of_tensors(lambda: (torch.ones(4, 4), torch.ones(4, 4)), step))
    kernels = [operator.work.kernel for operator in operators if operator.work.flops]
    assert kernels == ["mm NN", "mm NT", "mm TN", "bmm"]


def test_what_sets_the_pace_beside_the_shape_is_told_apart():
    def norms(dim):
        step = partial(torch.linalg.vector_norm, ord=2, dim=dim)
        (work,) = works(lambda: (torch.ones(4, 5, 3),), step, "linalg_vector_norm")
        return work.kernel, work.side

    assert norms(-1) == ("linalg_vector_norm", 3), "side by side in memory"
    assert norms(-2) == ("linalg_vector_norm, strided", 5)
    assert norms(None)[0] == "linalg_vector_norm"

    def pictures(layout):
        build = lambda: (torch.ones(2, 3, 4, 4), torch.ones(2, 3, 4, 4).contiguous(memory_format=layout))  # noqa: E731
        (work,) = works(build, lambda a, b: torch.ops.aten.threshold_backward(a, b, 0), "threshold_backward")
        return work.kernel

    assert pictures(torch.contiguous_format) == "threshold_backward"
    assert pictures(torch.channels_last) == "threshold_backward, mixed layouts"


def test_it_is_remembered_how_much_was_moved_since_an_input_was_touched():
    def step(model, x, y):
        for _ in range(2):
            x.add_(1)  # 400 bytes are read and 400 written
            y.add_(1)

    operators = count_operators(lambda: (nn.Identity(), torch.ones(100), torch.ones(100)), step)
    first, _, second, other = (operator.work for operator in operators if operator.work.bytes)
    assert first.reach > 10**8, "it was touched in another step"
    assert second.reach == other.reach == 800


def test_of_products_the_rows_are_counted_and_of_lists_the_pieces():
    (product,) = works(lambda: (torch.ones(7, 5), torch.ones(5, 3)), torch.mm, "mm")
    assert (product.rows, product.side) == (7, 15**0.5)
    (roots,) = works(lambda: (torch.ones(6), torch.ones(2)), lambda a, b: torch._foreach_sqrt([a, b]), "_foreach_sqrt")
    assert (roots.pieces, roots.new) == (2, 32)


def test_the_steady_step_is_counted():
    """The first step makes the optimizer's state; in the second one no zeros are written for it."""

    def build():
        model, _, x, y = mlp()
        return model, torch.optim.AdamW(model.parameters(), foreach=False), x, y

    names = [operator.name for operator in count_operators(build, train)]
    assert "aten.zeros_like" not in names
    assert names.count("aten.addcdiv_") == 4


def test_operators_are_those_of_a_real_step():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Names(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.seen = []

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.seen.append(str(function._overloadpacket))
            return function(*args, **kwargs or {})

    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = models.configuration("llama", **sizes, vocab_size=50)
    workload = Workload(config, Recipe("adamw", batch=2, sequence=8, clipping=True))
    built = workload.build()
    workload.step(*built)
    with Names() as names:
        workload.step(*built)
    real = [name for name in names.seen if not name.startswith("profiler.")]
    assert [operator.name for operator in count_operators(workload.build, workload.step)] == real


def test_a_cards_own_operators_are_counted_unless_others_are_asked_for():
    def build():
        model, _, *batch = mlp()
        return model, torch.optim.SGD(model.parameters(), lr=0.1), *batch

    card, computer = hardware.machine("H100"), replace(hardware.machine("H100"), name="a computer")

    def names_of(operators):
        return [operator.name for operator in operators]

    names = {device: names_of(count_operators(build, train, device)) for device in ("cpu", "cuda")}
    assert names["cpu"] != names["cuda"], "foreach"
    for machine, device, expected in ((card, "", "cuda"), (card, "cpu", "cpu"), (computer, "", "cpu")):
        assert names_of(predict_seconds(build, train, machine, device=device).operators) == names[expected]
    measured = predict_seconds(build, train, replace(computer, asynchronous=True))
    assert names_of(measured.operators) == names["cuda"], "calibrated on a GPU"


def test_what_is_no_machine_is_refused():
    with pytest.raises(CourseError, match=r"'H100' is no machine; give hardware\.machine\('H100'\)"):
        predict_seconds(mlp, train, "H100")


def test_predicted_seconds_equal_the_closed_form():
    machine = Machine("slow", "a test", 10**9, 100.0, {"float32": 50.0}, 1.0, "string", 1.0, seconds_per_operator=0.25)

    def step(a, b):
        torch.mm(a, b)  # (2, 3) by (3, 5): 60 FLOPs = 1.2 s; 24 + 60 + 40 bytes = 1.24 s
        a.t()  # a call
        a.mul_(2)  # 2 x 24 bytes

    prediction = predict_seconds(*of_tensors(lambda: (torch.ones(2, 3), torch.ones(3, 5)), step), machine)
    assert prediction.seconds == pytest.approx(3 * 0.25 + 1.24 + 0.48)
    frame = prediction.frame()
    assert frame["seconds"].sum() == pytest.approx(prediction.seconds)
    assert frame.loc["aten.mm"].to_dict() == {"calls": 1, "flops": 60, "bytes": 124, "seconds": pytest.approx(1.49)}
    assert list(frame["seconds"]) == sorted(frame["seconds"], reverse=True)


def test_nothing_is_computed_for_a_model_that_would_not_fit():
    def build():
        with torch.device("cpu"):
            return nn.Linear(10**6, 10**6, bias=False), torch.ones(10**6, 10**6)

    operators = count_operators(build, lambda model, x: model(x).sum().backward())
    assert flops(operators) == 2 * (2 * 10**18)


def test_operators_of_other_libraries_are_named():
    workload = Workload(models.configuration("distilbert", labels=2), Recipe("adamw8bit", batch=2, sequence=8))
    prediction = predict_seconds(workload.build, workload.step, hardware.machine("H100"))
    assert prediction.opaque
    assert all(name.startswith("bitsandbytes.") for name in prediction.opaque)
    plain = predict_seconds(mlp, train, hardware.machine("H100"))
    assert plain.opaque == ()


def test_flops_of_a_recurrent_layer():
    def build():
        return nn.LSTM(D, H, batch_first=True), torch.randn(B, C, D)

    forward = 2 * B * C * (4 * H * D + 4 * H * H)
    operators = count_operators(build, lambda model, x: model(x)[0].sum().backward())
    assert flops(operators) == 3 * forward, "backward has two products for each of forward's"


@pytest.mark.parametrize("rows", [(2, 3, 3), (0, 8, 0)])
def test_flops_of_experts_do_not_depend_on_who_has_which_rows(rows):
    tokens, ends = sum(rows), torch.tensor(rows).cumsum(0).to(torch.int32)

    def build():
        x, experts = torch.randn(tokens, 16), torch.randn(len(rows), 16, 32)
        return x.bfloat16(), experts.bfloat16(), ends.clone()

    (work,) = works(build, lambda x, experts, ends: torch._grouped_mm(x, experts, offs=ends), "_grouped_mm")
    assert work.flops == 2 * tokens * 16 * 32


def test_what_goes_to_the_host_goes_at_the_pace_of_its_link():
    card = hardware.machine("T4")

    def step(model, x):
        with torch.autograd.graph.save_on_cpu(pin_memory=True) if model.away else nullcontext():
            model(x).sum().backward()

    def seconds(away):
        def build():
            model = nn.Sequential(nn.Linear(1024, 1024, bias=False), nn.Tanh())
            model.away = away
            return model, torch.randn(1024, 1024)

        return predict_seconds(build, step, card, device="cuda").seconds

    saved = 2 * 1024 * 1024 * 4  # the layer's input, and the output of Tanh; there and back
    assert seconds(True) - seconds(False) == pytest.approx(2 * saved / card.host_link, rel=0.2)


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
