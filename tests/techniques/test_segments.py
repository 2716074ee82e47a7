"""Blocks in segments: the same gradients, the blocks run again, and the model as it was afterwards."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from course_utils import models
from course_utils.errors import CourseError
from course_utils.lessons.c07_gradient_checkpointing import count_forwards
from course_utils.settings import Scale
from course_utils.techniques import blocks_of, checkpoint, checkpoint_blocks, checkpoint_by_hooks, segment_ranges

SMALL = Scale("small", 5, 32, 2, 300, 16, 4, 1, 1, 1)
CHECKPOINTS = {
    "by hooks": checkpoint_by_hooks,
    "re-entrant": checkpoint,
    "torch's": partial(torch_checkpoint, use_reentrant=False),
}


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))))
def test_ranges_cover_every_block_once_in_order_and_differ_by_one_at_most(sizes):
    ranges = segment_ranges(*sizes)
    assert [index for run in ranges for index in run] == list(range(sizes[0]))
    lengths = [len(run) for run in ranges]
    assert len(ranges) == sizes[1]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] - lengths[-1] <= 1


@pytest.mark.parametrize("segments", [0, -1, 6])
def test_a_number_of_segments_out_of_range_is_refused(segments):
    with pytest.raises(CourseError, match="give a number from 1 to 5"):
        segment_ranges(5, segments)


def gradients(model, name):
    ids = torch.randint(1, 300, (3, 16), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "labels": ids.clone()}
    if name == "distilbert":
        mask = torch.ones_like(ids)
        mask[0, 9:] = 0
        batch |= {"attention_mask": mask, "labels": torch.tensor([0, 1, 2])}
    model.zero_grad()
    torch.manual_seed(3)
    with count_forwards(model) as calls:
        loss = model(**batch).loss
        loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())], calls


@pytest.mark.parametrize("checkpoint_name", CHECKPOINTS)
@pytest.mark.parametrize("name", models.FAMILIES)
def test_transformers_train_as_without(name, checkpoint_name):
    model = models.build(name, labels=3 if name == "distilbert" else None, scale=SMALL).double()
    model.config.use_cache = False  # a cache lays keys and values out otherwise, and then products round otherwise
    without, calls = gradients(model, name)
    assert calls == dict.fromkeys(range(5), 1)
    keys, forwards = list(model.state_dict()), [block.forward for block in blocks_of(model)]
    for segments in (1, 2, None):
        with checkpoint_blocks(model, segments, CHECKPOINTS[checkpoint_name]):
            assert list(model.state_dict()) == keys
            recomputed, calls = gradients(model, name)
            assert calls == dict.fromkeys(range(5), 2)
            assert all(torch.equal(a, b) for a, b in zip(without, recomputed, strict=True))
    assert [block.forward for block in blocks_of(model)] == forwards


def test_the_cache_is_off_meanwhile():
    model = models.build("gpt2", scale=SMALL)
    with checkpoint_blocks(model):
        assert not model.config.use_cache
    assert model.config.use_cache


def test_blocks_may_be_given_and_must_be_somewhere():
    chain = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    with pytest.raises(CourseError, match="pass its blocks"):
        checkpoint_blocks(chain)
    x = torch.randn(2, 4)
    expected = chain(x)
    with checkpoint_blocks(chain, 2, blocks=chain):
        assert torch.equal(chain(x), expected)
