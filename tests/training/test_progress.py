"""The bar of a run in a real kernel: it is there while it trains, and nothing of it is left to be saved."""

import pytest

TRAINS = """
from types import SimpleNamespace

import torch
from course_utils import training

batches = [{"input_ids": torch.ones(4, 2), "attention_mask": torch.ones(4, 2)}] * 3


class Squares(torch.nn.Linear):
    def forward(self, input_ids, attention_mask):
        return SimpleNamespace(loss=super().forward(input_ids).square().mean())


class Looks(training.Callback):
    def after_batch(self, run):
        if fails:
            raise ValueError("in the midst of it")


module = Squares(2, 1)
optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
training.train(module, optimizer, batches, callbacks=[Looks()])
"""
WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.mark.slow
def test_a_saved_notebook_holds_no_bar_that_is_gone():
    from nbclient import NotebookClient
    from nbformat.v4 import new_code_cell, new_notebook

    cells = [new_code_cell(f"fails = {fails}\n{TRAINS}") for fails in (False, True)]
    NotebookClient(new_notebook(cells=cells), timeout=120, kernel_name="python3", allow_errors=True).execute()
    for cell, errors in zip(cells, ([], ["ValueError"]), strict=True):
        seen = [output.data for output in cell.outputs if output.output_type == "display_data"]
        assert seen, "the bar was shown"
        assert not [data for data in seen if WIDGET in data]
        assert [output.ename for output in cell.outputs if output.output_type == "error"] == errors
