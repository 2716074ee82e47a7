"""Models of many equal blocks: the log of any number of them, from those of two and of three."""

import numpy as np
import pytest

from course_utils.memory.depth import Depth
from course_utils.memory.log import Log


def log_of(*rows):
    return Log(np.array([size for size, _ in rows]), tuple(label for _, label in rows))


def net(blocks):
    """As a stack of equal blocks makes it: forward in order, backward in reverse, an update that loops."""
    rows = [(35_000, ("forward", "activations", f"layers.{i}", "mm")) for i in range(blocks)]
    for i in reversed(range(blocks)):
        rows.append((9000, ("backward", "gradients", f"layers.{i}", "mm")))
        rows.append((-35_000, ("backward", "activations", f"layers.{i}", "mm")))
    rows.append((4 * blocks, ("update", "optimizer temporaries", "", "aten.stack.default")))
    root = ("update", "optimizer temporaries", "", "sqrt")
    return log_of(*rows, *[(8000, root), (-8000, root)] * blocks)


def two_lists(blocks):
    """Both end at the same place."""
    first, second = ("update", "gradients", "", "a"), ("update", "activations", "", "b")
    return log_of(*[(5000, first), (-5000, first)] * blocks, *[(-7000, second)] * blocks)


@pytest.mark.parametrize("blocks", [4, 9, 40])
@pytest.mark.parametrize("make", [net, two_lists])
def test_two_and_three_blocks_tell_of_any_number(make, blocks):
    depth = Depth.between(make(2), make(3))
    assert depth.sure
    assert np.array_equal(depth.deepen(make(3), blocks).changes, make(blocks).changes)


def test_models_that_differ_in_more_than_blocks_have_no_depth():
    other = Log(net(2).changes[::-1], net(2).labels[::-1])
    assert Depth.between(other, net(3)) is None
