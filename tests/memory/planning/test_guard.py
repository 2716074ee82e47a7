"""The batch that is sure to show whether memory suffices, and each term of a plan beside what is measured."""

import pandas as pd
import pytest
import torch
from datasets import Dataset
from llamas import llama

from course_utils import memory
from course_utils.errors import CourseError
from course_utils.memory import Recipe, estimate
from course_utils.memory.planning.reading.lengths import lengths_of
from course_utils.units import MiB


def test_lengths_come_from_what_people_have(tmp_path):
    (tmp_path / "lengths.txt").write_text("3\n17\n5\n")
    (tmp_path / "data.jsonl").write_text('{"input_ids": [1, 2, 3]}\n{"length": 17}\n\n{"length": 5}\n')
    Dataset.from_dict({"input_ids": [[1] * n for n in (3, 17, 5)]}).save_to_disk(tmp_path / "saved")
    for name in ("lengths.txt", "data.jsonl", "saved"):
        assert sorted(lengths_of(tmp_path / name)) == [3, 5, 17], name


def test_the_guard_runs_the_largest_batch_first():
    batches, seen = [{"x": torch.ones(2, n)} for n in (3, 9, 5)], []
    assert memory.guard(lambda batch: seen.append(batch["x"].shape[1]), batches) is batches[1]
    assert seen == [9]

    def run_out(batch):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.")

    with pytest.raises(CourseError, match="largest batch, of 18 elements, does not fit .*Tried to allocate 1 GiB"):
        memory.guard(run_out, batches)


def test_a_check_sets_each_term_beside_its_measured_bytes():
    predicted = estimate(llama(256, 2), Recipe("sgd", batch=2, sequence=64))
    table = memory.check(predicted)
    assert isinstance(table, pd.DataFrame)
    assert (table["differs"] == "").all()
    assert table.loc["peak", "measured"] == pytest.approx(predicted.peak, rel=0.005)

    def forgetful(model, optimizer, batches, leaked=[]):  # noqa: B006 what it forgets to let go of is the fault that is looked for
        leaked.append(model(**batches[0]).loss)
        leaked[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
        leaked.append(torch.ones(10 * MiB))

    table = memory.check(predicted, step=forgetful)
    assert "MiB" in table.loc["peak", "differs"]
