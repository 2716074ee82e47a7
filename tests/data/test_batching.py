"""Batches hold every row once, in an order that seed and epoch decide."""

import pytest
import torch
from datasets import Dataset, DatasetDict
from hypothesis import given
from hypothesis import strategies as st

from course_utils import data
from course_utils.errors import CourseError

small = st.integers(0, 60)


@pytest.fixture(scope="session")
def tokenized(functions, tokenizer):
    few = DatasetDict({name: split.select(range(75)) for name, split in functions.items()})
    return data.tokenize(few, tokenizer, 24)


def order(length, seed, epoch):
    sampler = data.EpochSampler(length, seed)
    sampler.set_epoch(epoch)
    return list(sampler)


@given(length=small, seed=st.integers(0, 2**40), epoch=small)
def test_each_epoch_is_a_permutation_that_seed_and_epoch_decide(length, seed, epoch):
    assert sorted(order(length, seed, epoch)) == list(range(length))
    assert order(length, seed, epoch) == order(length, seed, epoch)


def test_every_seed_and_epoch_has_an_order_of_its_own():
    orders = {tuple(order(40, seed, epoch)) for seed in range(12) for epoch in range(12)}
    assert len(orders) == 144


def test_the_global_random_state_is_untouched(tokenized):
    before = torch.get_rng_state()
    for seed in (None, 3):
        for _ in data.batches(tokenized["train"], 8, seed=seed):
            pass
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("seed", [None, 5])
def test_batches_hold_every_row_once_with_its_mask(tokenized, tokenizer, seed):
    loader = data.batches(tokenized["train"], 32, seed=seed)
    loader.sampler.set_epoch(2)
    all_batches = list(loader)
    assert [len(batch["labels"]) for batch in all_batches] == [32, 32, 11]
    assert len(loader) == 3
    expected = order(75, seed, 2)
    rows = tokenized["train"].with_format("torch")[:]
    for name in ("input_ids", "attention_mask", "labels"):
        assert all(batch[name].dtype == torch.int64 for batch in all_batches)
        assert torch.equal(torch.cat([batch[name] for batch in all_batches]), rows[name][expected])
    masks, ids = (torch.cat([batch[name] for batch in all_batches]) for name in ("attention_mask", "input_ids"))
    assert torch.equal(masks.bool(), ids != tokenizer.pad_token_id)
    assert 0 < masks.float().mean() < 1


def test_tokenize_cuts_and_pads_to_the_sequence(functions, tokenizer, tokenized):
    for original, row in zip(functions["train"].select(range(75)), tokenized["train"], strict=True):
        text_ids = tokenizer(original["text"], add_special_tokens=False)["input_ids"][:22]
        assert row["input_ids"] == [2, *text_ids, 3] + [0] * (22 - len(text_ids))
        assert row["labels"] == original["label"]


def test_the_tensors_of_a_batch_go_to_a_device():
    batch = data.on_device({"labels": torch.ones(2), "use_cache": False}, torch.device("meta"))
    assert batch["labels"].is_meta
    assert batch["use_cache"] is False


def test_what_cannot_be_tokenized_or_batched_is_said_in_one_sentence(functions, tokenizer, tokenized):
    with pytest.raises(CourseError, match="use 3 or more"):
        data.tokenize(functions, tokenizer, 2)
    with pytest.raises(CourseError, match="no text among label"):
        data.tokenize(DatasetDict({"train": Dataset.from_dict({"label": [1]})}), tokenizer, 8)
    with pytest.raises(CourseError, match="no input_ids or attention_mask or labels; pass it through"):
        data.batches(functions["train"], 8)
    with pytest.raises(CourseError, match="use a batch size of 1 or more"):
        data.batches(tokenized["train"], 0)
