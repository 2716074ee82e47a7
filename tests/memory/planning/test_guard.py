"""The run of the largest batch, which shows whether memory is enough."""

import pytest
import torch

from course_utils import memory
from course_utils.errors import CourseError


def test_the_guard_runs_the_largest_batch_first():
    batches, seen = [{"x": torch.ones(2, n)} for n in (3, 9, 5)], []
    assert memory.guard(lambda batch: seen.append(batch["x"].shape[1]), batches) is batches[1]
    assert seen == [9]

    def run_out(batch):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.")

    with pytest.raises(CourseError, match="largest batch, of 18 elements, does not fit .*Tried to allocate 1 GiB"):
        memory.guard(run_out, batches)
