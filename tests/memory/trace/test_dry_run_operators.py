"""The operators of a dry run and their seconds, compared with closed forms, PyTorch's counter and a real step's operators."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import flop_counter

from course_utils import hardware, models
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


@pytest.mark.parametrize("backward", [False, True])
def test_attention_with_heads_that_share_a_key_takes_the_products_of_all_its_heads(backward):
    """FLOPs by PyTorch's counter, with as many keys as queries, which it requires before PyTorch 2.13."""

    def build(heads):
        shapes = ((2, count, 12, 16) for count in (6, heads, heads))
        return nn.Identity(), *(torch.ones(shape, dtype=torch.bfloat16, requires_grad=True) for shape in shapes)

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


def test_the_steady_step_is_counted():
    """The first step creates the optimizer's state; the second writes no zeros for it."""

    def build():
        model, _, x, y = mlp()
        return model, torch.optim.AdamW(model.parameters(), foreach=False), x, y

    names = [operator.name for operator in count_operators(build, train)]
    assert "aten.zeros_like" not in names
    assert names.count("aten.addcdiv_") == 4


def test_operators_are_those_of_a_real_step():
    """The operators by a mode of this test, independent of `hardware.Watch`."""
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
    arguments = workload.build()
    workload.step(*arguments)
    with Names() as names:
        workload.step(*arguments)
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

    def step(_, a, b):
        torch.mm(a, b)  # (2, 3) by (3, 5): 60 FLOPs = 1.2 s; 24 + 60 + 40 bytes = 1.24 s
        a.t()  # a call
        a.mul_(2)  # 2 x 24 bytes

    prediction = predict_seconds(lambda: (nn.Identity(), torch.ones(2, 3), torch.ones(3, 5)), step, machine)
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
