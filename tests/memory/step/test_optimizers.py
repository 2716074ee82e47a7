"""Every optimizer of a recipe: its state and temporaries by a dry run, compared with the optimizer on real numbers."""

from math import prod

import pytest
import torch
from torch import nn

from course_utils import models
from course_utils.errors import CourseError
from course_utils.memory import dry_run, optimizer_state_size
from course_utils.memory.step.optimizers import OPTIMIZERS, factory_of, state_size
from course_utils.memory.trace.allocator import allocator_of

SHAPES = [(300, 64), (5000,), (64,), (32, 16, 3, 3), (128, 96)]
DTYPES = [torch.float32, torch.bfloat16]
REAL = [name for name in OPTIMIZERS if name != "adamw4bit"]  # which has the memory of torchao's, and not its arithmetic


def build(name, shapes, dtype):
    """Parameters with gradients, and an optimizer for them."""
    parameters = nn.ParameterList(nn.Parameter(torch.ones(shape, dtype=dtype)) for shape in shapes)
    for parameter in parameters:
        parameter.grad = torch.full_like(parameter, 0.1)
    return parameters, factory_of(name)(list(parameters))


def update(parameters, optimizer):
    optimizer.step()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", REAL)
def test_the_state_is_what_the_optimizer_keeps(name, dtype):
    _, optimizer = build(name, SHAPES, dtype)
    optimizer.step()
    assert state_size(name, SHAPES, dtype).entries == optimizer_state_size(optimizer).entries


def test_the_state_of_4_bits_by_a_closed_form():
    """Codes of half a byte, a scale for each 128 and a table of 16, twice; small and odd tensors as AdamW has them."""
    size = state_size("adamw4bit", [(64, 128), (5000,), (64,)])
    assert size.bytes == 2 * (8192 // 2 + 8192 // 128 * 4 + 16 * 4) + 8 * 5000 + 8 * 64 + 3 * 4


@pytest.mark.parametrize(
    ("name", "elements", "mebibytes"),
    [
        ("adamw", 131_566_188, 501.89),
        ("adafactor-transformers", 178_712, None),
        ("adafactor", 178_608, 0.681),
        ("adamw8bit", 132_099_588, 127.87),
    ],
)
def test_the_published_table(name, elements, mebibytes):
    """`distilbert-base-cased` with two classes: 65,783,042 parameters in 104 tensors."""
    with torch.device("meta"):
        model = models.from_configuration(models.configuration("distilbert-base-cased", labels=2))
    size = state_size(name, [parameter.shape for parameter in model.parameters()])
    assert size.elements == elements
    if mebibytes:
        assert size.bytes / 2**20 == pytest.approx(mebibytes, abs=0.005)


def hidden_in_means(shapes):
    """Means in bfloat16 are summed in float32 inside the operator, which only the allocator sees."""
    return max(4 * (prod(shape[:-1]) + prod(shape[:-2])) for shape in shapes)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize(  # alone, or the largest hides it
    "shapes", [SHAPES, *(pytest.param([shape], marks=pytest.mark.slow) for shape in SHAPES)], ids=str
)
def test_a_dry_update_needs_what_the_allocator_counts(name, shapes, dtype, monkeypatch):
    if dtype == torch.bfloat16:  # oneDNN's scratch space in half precision differs between processors and threads
        monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    arguments, allocator = build(name, shapes, dtype), allocator_of(torch.device("cpu"))
    with allocator.recording():
        update(*arguments)
        with allocator.measured():
            update(*arguments)
    usage = dry_run(lambda: build(name, shapes, dtype), update)
    predicted = usage.peak - usage.resident if usage.events else 0
    unseen = 64 + hidden_in_means(shapes) * (name == "adafactor" and dtype == torch.bfloat16)
    assert predicted == pytest.approx(allocator.account().above_start, rel=0.01, abs=unseen)


def test_a_function_is_its_own_factory_and_an_unknown_name_is_a_sentence():
    assert factory_of(torch.optim.SGD) is torch.optim.SGD
    assert state_size(torch.optim.Adagrad, [(3, 5)]).elements == 3 * 5 + 1
    with pytest.raises(CourseError, match="No optimizer is called 'snail'; choose one of sgd, momentum"):
        factory_of("snail")
