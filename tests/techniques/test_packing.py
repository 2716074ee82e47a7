"""Packed documents: each alone is the oracle, for its logits, its loss and its gradients."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course_utils import models
from course_utils.techniques import first_fit, pack

LENGTHS = (9, 4, 12, 5, 2, 1)
ROOM = 16


def documents():
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(1, 50, (length,), generator=generator) for length in LENGTHS]


def model(family):
    config = models.configuration(family, vocab_size=50)
    for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop"):
        if hasattr(config, name):
            setattr(config, name, 0.0)
    torch.manual_seed(0)
    return models.from_configuration(config).double()


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_loss_and_gradients_are_those_of_each_document_alone(family):
    net, texts = model(family), documents()
    batch = pack(texts, first_fit(LENGTHS, ROOM), ROOM)
    labels = (batch["labels"] != -100).sum()
    assert labels == sum(LENGTHS) - len(LENGTHS)
    loss = net(**batch).loss
    packed = torch.autograd.grad(loss, list(net.parameters()))
    total = sum(net(input_ids=text[None], labels=text[None]).loss * (len(text) - 1) for text in texts if len(text) > 1)
    expected = torch.autograd.grad(total / labels, list(net.parameters()))
    torch.testing.assert_close(loss, total / labels, rtol=1e-6, atol=0)
    torch.testing.assert_close(packed, expected, rtol=1e-6, atol=1e-9)


@given(st.lists(st.integers(1, 10), min_size=1, max_size=30))
def test_every_document_has_a_place_and_no_row_is_too_full(lengths):
    rows = first_fit(lengths, 10)
    assert sorted(sum(rows, [])) == list(range(len(lengths)))
    row_lengths = [sum(lengths[number] for number in row) for row in rows]
    assert max(row_lengths) <= 10
    for index, row in enumerate(rows):
        shortest = min(lengths[number] for number in row)
        assert all(length + shortest > 10 for length in row_lengths[:index])
