import pytest
import torch
from torch import nn

from course_utils import models
from course_utils.memory import saved_bytes, saved_list


def test_a_known_network_by_modules():
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    x = torch.ones(32, 8)
    found = saved_list(lambda: model(x), model)
    activations = found[found.kind == "activation"]
    assert dict(zip(activations.module, activations.bytes, strict=True)) == {"0": x.nbytes, "1": 32 * 16 * 4}
    assert set(found.kind) == {"activation", "parameter or buffer", "saved before"}
    assert found[found.kind != "activation"].bytes.sum() == 0


@pytest.mark.parametrize("family", ["distilbert", "gpt2"])
def test_the_sum_is_saved_bytes(family):
    model = models.build(family, labels=2)
    ids = torch.ones(2, 16, dtype=torch.long)

    def forward():
        torch.manual_seed(0)
        return model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids[:, 0]).loss

    assert saved_list(forward, model).bytes.sum() == saved_bytes(forward, model)


def test_hooks_are_gone_afterwards_even_if_forward_raises():
    model = nn.Linear(2, 2)
    with pytest.raises(RuntimeError):
        saved_list(lambda: model(torch.ones(3)), model)
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    with torch.no_grad():
        assert saved_list(lambda: model(torch.ones(2)), model).empty
