"""The rule by which blocks are repeated, from logs made by hand."""

import numpy as np
import pytest

from course_utils.memory.formulas.depth import DepthRule
from course_utils.memory.trace.log import Label, Log

BEFORE, AFTER = (100, "embeddings", "aten.embedding.default"), (50, "head", "aten.mm.default")


def blocks(count):
    """Two events of each block."""
    operators = ((20, "aten.mm.default"), (10, "aten.gelu.default"))
    return [(size, f"layers.{number}", operator) for number in range(count) for size, operator in operators]


def log(*events, phase="forward"):
    labels = tuple(Label(phase, "activations", module, operator) for _, module, operator in events)
    return Log(np.array([size for size, _, _ in events]), labels)


def with_blocks(count, *others):
    return log(BEFORE, *blocks(count), *others, AFTER)


def test_a_block_is_repeated_between_what_stands_once():
    rule = DepthRule.between(with_blocks(2), with_blocks(3))
    assert rule.is_sure
    assert rule.deepen(with_blocks(3), 5).changes.tolist() == with_blocks(5).changes.tolist()


def test_a_list_of_all_blocks_tensors_grows():
    two, three, five = (with_blocks(count, (8 * count, "", "aten.cat.default")) for count in (2, 3, 5))
    assert DepthRule.between(two, three).deepen(three, 5).changes.tolist() == five.changes.tolist()


def test_an_insertion_unlike_its_neighbors_is_not_sure():
    rule = DepthRule.between(log(BEFORE, AFTER), log(BEFORE, *blocks(1), AFTER))
    assert (rule.stretches, rule.is_sure) == (((1, 3),), False)


@pytest.mark.parametrize(
    "three", [log(BEFORE, *blocks(1)), log(BEFORE, *blocks(3), AFTER, phase="backward")], ids=["shorter", "phase"]
)
def test_there_is_no_rule_for_a_log_that_is_not_the_smaller_one_with_insertions(three):
    assert DepthRule.between(with_blocks(2), three) is None
