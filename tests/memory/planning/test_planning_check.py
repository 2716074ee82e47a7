"""Each kind of an estimate's bytes compared with a measurement."""

import pandas as pd
import pytest
import torch
from llamas import llama

from course_utils import memory
from course_utils.memory import Recipe, estimate
from course_utils.units import MiB


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
