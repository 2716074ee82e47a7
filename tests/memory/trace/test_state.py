"""The size of an optimizer's state, compared with the shapes and dtypes of what its library keeps."""

import bitsandbytes
import torch
from transformers import Adafactor

from course_utils.memory import optimizer_state_size


def stepped(kind, parameters, **options):
    optimizer = kind(parameters, **options)
    for p in parameters:
        p.grad = torch.ones_like(p)
    optimizer.step()
    return optimizer


def small():
    return [torch.ones(64, 128, requires_grad=True), torch.ones(128, requires_grad=True)]


def test_by_kind_and_by_tensor_add_up():
    size = optimizer_state_size(stepped(torch.optim.AdamW, small()))
    kinds = size.by_kind()
    assert list(kinds.index) == ["step", "exp_avg", "exp_avg_sq"]
    assert kinds["bytes"].sum() == size.by_tensor()["bytes"].sum() == size.bytes
    assert kinds.loc["exp_avg", "elements"] == 64 * 128 + 128
    assert list(size.by_tensor()["parameter"]) == [0, 0, 0, 1, 1, 1]


def test_numbers_that_are_no_tensors_count_as_one_element():
    size = optimizer_state_size(stepped(Adafactor, small()))
    kinds = size.by_kind()
    assert kinds.loc["step", "elements"] == 2
    assert size.by_tensor().set_index("kind").loc["step", "where"].tolist() == ["python", "python"]
    assert kinds.loc["exp_avg_sq_row", "elements"] == 64


def test_eight_bit_states_are_counted_in_their_own_type():
    kinds = optimizer_state_size(stepped(bitsandbytes.optim.Adam8bit, small())).by_kind()
    assert kinds.loc["state1", "dtypes"] == "float32, uint8"  # the small vector stays in 32 bits
    assert kinds.loc["state1", "bytes"] == 64 * 128 * 1 + 128 * 4


def test_nested_and_other_values_keep_their_rows():
    optimizer = torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=1)
    optimizer.state[optimizer.param_groups[0]["params"][0]] = {
        "nested": {"a": torch.ones(3), "b": [torch.ones(2), 5]},
        "name": "text",
        "nothing": None,
    }
    rows = optimizer_state_size(optimizer).by_tensor()
    assert list(rows["kind"]) == ["nested.a", "nested.b", "nested.b", "name", "nothing"]
    assert list(rows["elements"]) == [3, 2, 1, 0, 0]
