"""What each optimizer says it keeps and needs, against the optimizer itself."""

from itertools import accumulate

import pytest
import torch

from course_utils import models
from course_utils.memory import optimizer_state_size
from course_utils.memory.allocator import allocator_of
from course_utils.memory.estimate import parameter_shapes
from course_utils.memory.estimate.log import Log
from course_utils.memory.optimizers import COSTS

SHAPES = [(300, 64), (5000,), (64,), (32, 16, 3, 3), (128, 96)]
DTYPES = {4: torch.float32, 2: torch.bfloat16}


def parameters(itemsize, shapes=SHAPES):
    made = [torch.nn.Parameter(torch.ones(shape, dtype=DTYPES[itemsize])) for shape in shapes]
    for parameter in made:
        parameter.grad = torch.full_like(parameter, 0.1)
    return made


@pytest.mark.parametrize("itemsize", [4, 2])
@pytest.mark.parametrize("name", COSTS)
def test_the_state_is_what_the_optimizer_keeps(name, itemsize):
    optimizer = COSTS[name].make(parameters(itemsize))
    optimizer.step()
    size = optimizer_state_size(optimizer)
    in_tensors = [entry for entry in size.entries if entry.where != "python" and not entry.kind.startswith("qmap")]
    assert sum(COSTS[name].state_bytes(shape, itemsize) for shape in SHAPES) == sum(entry.bytes for entry in in_tensors)
    assert sum(COSTS[name].state_elements(shape) for shape in SHAPES) == size.elements
    maps = {value.data_ptr(): value.nbytes for state in optimizer.state.values() for value in _maps(state)}
    assert COSTS[name].shared_bytes(SHAPES, itemsize) == sum(maps.values())


def _maps(state):
    return [value for name, value in state.items() if name.startswith("qmap")]


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
    shapes = list(parameter_shapes(models.configuration("distilbert-base-cased", labels=2)).values())
    cost = COSTS[name]
    assert sum(cost.state_elements(shape) for shape in shapes) == elements
    if mebibytes:
        kept = [kept for shape in shapes for kept in cost.state(shape, 4)]
        assert sum(one.elements * one.itemsize for one in kept) / 2**20 == pytest.approx(mebibytes, abs=0.005)


def test_the_closed_form_of_adamw():
    shapes = list(parameter_shapes(models.configuration("distilbert-base-cased", labels=2)).values())
    assert sum(COSTS["adamw"].state_bytes(shape) for shape in shapes) == 8 * 65_783_042 + 4 * 104


def measured_update(name, itemsize, shapes):
    """Bytes above what was there before, in the second step of the real optimizer."""
    optimizer = COSTS[name].make(parameters(itemsize, shapes))
    allocator = allocator_of(torch.device("cpu"))
    with allocator.recording():
        optimizer.step()
        with allocator.measured():
            optimizer.step()
    return allocator.account().above_start


def predicted_update(name, itemsize, shapes):
    log = Log()
    COSTS[name].update(shapes, itemsize, lambda size: log.new(size, "temporaries", ""))
    return max(accumulate((change * log.entries[index].bytes for index, change, _ in log.events), initial=0))


@pytest.mark.parametrize("itemsize", [4, 2])
@pytest.mark.parametrize("name", COSTS)
@pytest.mark.parametrize("shapes", [SHAPES, *([shape] for shape in SHAPES)], ids=str)  # alone, or the largest hides it
def test_the_update_needs_what_it_says(name, shapes, itemsize, monkeypatch):
    if itemsize == 2:  # oneDNN's scratch space in half precision differs between processors and threads
        monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    predicted, measured = (needs(name, itemsize, shapes) for needs in (predicted_update, measured_update))
    assert predicted == pytest.approx(measured, rel=0.01, abs=64)


def test_what_the_8_bit_update_hides_is_declared():
    assert "only the allocator sees" in COSTS["adamw8bit"].opaque
