"""What a draw changes, and what stays."""

from collections import Counter, defaultdict
from random import Random

import pytest
import torch

from course_utils import data
from course_utils.capstone import accuracy, draw, fresh_model
from course_utils.capstone import task as tasks


@pytest.fixture(scope="module")
def three_tasks():
    return [draw(Random(seed)) for seed in range(3)]


def test_sizes_stay_and_so_do_bytes_and_operations(three_tasks):
    for task in three_tasks:
        assert task.ids.shape == (2048, 32)
        assert task.held_ids.shape == (600, 32)
        assert {*task.labels.tolist()} == set(range(5))
        assert max(Counter(task.held_labels.tolist()).values()) / 600 < 0.3


def pattern(row):
    """What is left of a function when its tokens are numbered anew: which of them are the same, and which are padding."""
    numbers = {tasks.PADDING: 0}
    return tuple(numbers.setdefault(token, len(numbers)) for token in row)


def test_no_file_is_in_both_parts(three_tasks):
    """A function is known again by its pattern, where no function of another file has the same."""
    corpus = data.load_functions()
    tokenizer, names = data.tokenizer_for(corpus, tasks.VOCABULARY), corpus["train"].features["label"].names
    files, package_of = defaultdict(set), {}
    rows = [row for split in corpus.values() for row in split if names[row["label"]] in tasks.PACKAGES]
    for row in rows:
        ids = tokenizer(row["text"], max_length=tasks.SEQUENCE, truncation=True, padding="max_length")["input_ids"]
        files[pattern(ids)].add(row["file"])
        package_of[row["file"]] = row["label"]
    sizes, functions = Counter(row["file"] for row in rows), Counter(row["label"] for row in rows)
    for task in three_tasks:
        train_files, held_files = (
            {file for row in part.tolist() for file in files[pattern(row)] if len(files[pattern(row)]) == 1}
            for part in (task.ids, task.held_ids)
        )
        assert train_files.isdisjoint(held_files)
        for label, count in functions.items():
            share = sum(sizes[file] for file in held_files if package_of[file] == label) / count
            assert 0.15 < share <= tasks.HELD_SHARE


def test_every_draw_numbers_tokens_and_labels_anew_but_not_the_padding(three_tasks):
    counts = [Counter(task.ids.flatten().tolist()) for task in three_tasks]
    commonest = [[token for token, _ in count.most_common(6)] for count in counts]
    assert all(tokens[0] == tasks.PADDING or tasks.PADDING in tokens for tokens in commonest)
    assert commonest[0] != commonest[1] != commonest[2]
    assert len({tuple(torch.bincount(task.labels).tolist()) for task in three_tasks}) > 1


def test_the_same_source_gives_the_same_task_and_the_model_its_weights(three_tasks):
    task = draw(Random(0))
    assert torch.equal(task.ids, three_tasks[0].ids)
    assert task.weights == three_tasks[0].weights != three_tasks[1].weights
    model, other_model = fresh_model(task.weights), fresh_model(task.weights)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other_model.parameters(), strict=True))
    assert accuracy(model, task.held_ids, task.held_labels) < 0.45
