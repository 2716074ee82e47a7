"""What a draw changes, and what stays."""

from collections import Counter
from random import Random

import pytest
import torch

from course_utils.capstone import accuracy, draw, fresh_model
from course_utils.capstone import task as tasks


@pytest.fixture(scope="module")
def drawn():
    return [draw(Random(seed)) for seed in range(3)]


def test_sizes_stay_and_so_do_bytes_and_operations(drawn):
    for task in drawn:
        assert task.ids.shape == (2048, 32)
        assert task.held_ids.shape == (600, 32)
        assert {*task.labels.tolist()} == set(range(5))
        assert max(Counter(task.held_labels.tolist()).values()) / 600 < 0.3


def test_no_file_is_in_both_parts():
    _, labels, files = tasks._corpus()
    chosen = tasks._choose_files(Random(3), labels, files)
    rows = [row for row, file in enumerate(files) if file in chosen]
    share = Counter(labels[rows].tolist())
    for label, count in Counter(labels.tolist()).items():
        assert 0.15 < share[label] / count <= 0.23
    assert {files[row] for row in range(len(files)) if row not in {*rows}}.isdisjoint(chosen)


def test_every_draw_numbers_tokens_and_labels_anew_but_not_the_padding(drawn):
    counts = [Counter(task.ids.flatten().tolist()) for task in drawn]
    commonest = [[token for token, _ in count.most_common(6)] for count in counts]
    assert all(tokens[0] == tasks.PADDING or tasks.PADDING in tokens for tokens in commonest)
    assert commonest[0] != commonest[1] != commonest[2]
    assert len({tuple(torch.bincount(task.labels).tolist()) for task in drawn}) > 1


def test_the_same_source_gives_the_same_task_and_the_model_its_weights(drawn):
    again = draw(Random(0))
    assert torch.equal(again.ids, drawn[0].ids)
    assert again.weights == drawn[0].weights != drawn[1].weights
    one, same = fresh_model(again.weights), fresh_model(again.weights)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert accuracy(one, again.held_ids, again.held_labels) < 0.45
