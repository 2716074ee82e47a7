"""Chapter 11: costs are the allocator's, the ring's rows are those of one process, and figures draw the data and say it."""

import pytest
import torch
from figures import title
from hypothesis import given, settings
from hypothesis import strategies as st

from course_utils import hardware, models
from course_utils.distributed import launch
from course_utils.lessons import c11_long_sequences as lesson
from course_utils.techniques.attention import TILE

CPU = torch.device("cpu")


def test_a_cost_is_what_the_operators_hold():
    """exp saves its result, and the sum's gradient is expanded: one tensor saved, two at the peak."""
    x = torch.zeros(1000, requires_grad=True)
    cost = lesson.measure_cost(torch.exp, x)
    assert cost.saved == x.nbytes
    assert x.nbytes * 2 <= cost.peak <= x.nbytes * 2 + 64
    assert cost.seconds > 0


def test_tensors_saved_by_counts_parameters_and_repetitions():
    x, w = torch.ones(4, 3), torch.ones(3, 2, requires_grad=True)
    assert [tensor.shape for tensor in lesson.tensors_saved_by(lambda x, w: (x @ w) + (x @ w), x, w)] == [
        (4, 3),
        (4, 3),
    ]


def test_a_ring_is_one_process_and_two_ends_balance_it():
    ranks = 4
    seen = launch(lesson.ring_on_rank, ranks, 32)
    part = 4 * 2 * 16 * 32 // ranks
    for name in lesson.SEQUENCE_CUTS:
        summary = lesson.ring_summary([rank[name] for rank in seen])
        assert float(summary["apart"]) < 1e-4
        assert summary["forward, sent"] == 2 * (ranks - 1) * part
        assert summary["both, sent"] == (6 * ranks - 4) * part
    pairs = [[rank[name]["pairs"] for rank in seen] for name in lesson.SEQUENCE_CUTS]
    assert sum(pairs[0]) == sum(pairs[1]) == 32 * 33 // 2
    assert len(set(pairs[1])) == 1
    assert summary["busiest / mean"] == 1


def test_tiles_above_the_diagonal_are_not_counted():
    side = 5
    assert lesson.count_tiles(side * TILE, False) == side**2
    assert lesson.count_tiles(side * TILE, True) == side * (side + 1) // 2


@given(st.integers(64, 20_000), st.floats(10, 100), st.booleans())
def test_at_the_length_that_meets_both_take_as_long(width, per_number, overlapped):
    card = hardware.machine("A100-80GB")
    length = lesson.length_that_meets(width, card, per_number, overlapped=overlapped)
    if length > 0:
        transfer, recomputing = lesson.host_or_again(width, length, card, per_number)
        waits = lesson.exposed_transfer(transfer, recomputing) if overlapped else transfer
        assert waits == pytest.approx(recomputing)


def test_a_step_waits_for_what_forward_and_backward_do_not_hide():
    assert lesson.exposed_transfer(4.0, 2.5) == 0
    assert lesson.exposed_transfer(4.0, 1.5) == 0.5
    assert lesson.exposed_transfer(8.0, 1.0) == 3 + 2


def test_padded_rows_have_labels_where_they_have_tokens():
    batch = lesson.pad([[5, 6, 7], [8]], 4, CPU)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 0], [8, 0, 0, 0]]
    assert batch["labels"].tolist() == [[5, 6, 7, -100], [8, -100, -100, -100]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 0, 0, 0]]


def test_batches_of_packed_rows_are_all_rows():
    packed = {"input_ids": torch.arange(6).view(3, 2), "labels": torch.ones(3, 2)}
    first, last = lesson.split_into_batches(packed, 2, CPU)
    assert torch.cat([first["input_ids"], last["input_ids"]]).equal(packed["input_ids"])
    assert len(first["labels"]) == 2


def test_the_mean_over_documents_weighs_each_label_alike():
    net = models.build("gpt2").eval()
    documents = [torch.tensor([[1, 2, 3, 4]]), torch.tensor([[5, 6]])]
    first, second = (net(ids, labels=ids).loss for ids in documents)
    assert lesson.mean_loss(net, documents) == (3 * first + second) / 4


def test_owners_number_documents_and_mark_padding():
    assert lesson.owners([2, 1], 5).tolist() == [0, 0, 1, -1, -1]


def test_figures_say_what_they_draw():
    figure, alt = lesson.idea_figure()
    assert [title(axes).split(":")[0] for axes in figure.axes] == ["Whole", "In tiles"]
    assert "only one tile of 2 by 3" in alt
    _, alt = lesson.host_figure([hardware.machine("A100-80GB"), hardware.machine("RTX 4090")], 4096, 56.0)
    assert "A100-80GB: equal at about 110,000 tokens." in alt
    assert "RTX 4090: equal at about 48,000 tokens." in alt
    figure, alt = lesson.packing_figure([torch.arange(n) for n in (3, 2, 1)], 4)
    assert "3 rows, padded: 33% empty. 2 rows, packed: 25% empty." in alt
    assert figure.axes[1].images[0].get_array().tolist() == [[0, 1, 2, 0], [0, 1, None, None]]


@settings(max_examples=10, deadline=None)
@given(st.booleans(), st.booleans(), st.sampled_from([2, 4, 8]))
def test_the_play_divides_by_ranks_what_grows_with_tokens(whole_logits, whole_scores, ranks):
    switches = {"whole_logits": whole_logits, "whole_scores": whole_scores}
    _, single = lesson.play_long(**switches)
    _, shared = lesson.play_long(ranks=ranks, **switches)
    assert "8,192 tokens on 1 rank," in single
    assert f"8,192 tokens on {ranks} ranks" in shared
    if ranks == 4:
        assert "boundaries of blocks: 192 MiB" in shared
        assert ("logits: 3.48 GiB" if whole_logits else "logits: 1.16 GiB") in shared
