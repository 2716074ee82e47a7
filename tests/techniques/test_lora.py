"""Adapters by hand beside peft's on the same weights."""

import copy

import peft
import pytest
import torch
from torch import nn

from course_utils import models
from course_utils.techniques.lora import LoRA, adapt, adapter_state

NAMES = ("q_lin", "v_lin", "lin1")
TEXT = {"input_ids": torch.arange(2, 26).view(2, 12), "labels": torch.tensor([0, 1])}


def small(dtype=torch.float64):
    off = {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
    return models.build("distilbert", labels=2, **off).to(dtype)


def pair():
    """The same model with peft's adapters and with ours, which have the same numbers."""
    model = small()
    torch.set_default_dtype(torch.float64)
    try:
        ours = adapt(copy.deepcopy(model), 3, 6.0, NAMES)
    finally:
        torch.set_default_dtype(torch.float32)
    config = peft.LoraConfig(r=3, lora_alpha=6, target_modules=list(NAMES))
    theirs = peft.get_peft_model(model, config, autocast_adapter_dtype=False).double()
    adapters = [m for m in theirs.modules() if isinstance(m, peft.tuners.lora.Linear)]
    for layer, its in zip(layers(ours), adapters, strict=True):
        nn.init.normal_(layer.b)
        its.lora_A["default"].weight.data.copy_(layer.a.detach())
        its.lora_B["default"].weight.data.copy_(layer.b.detach())
    return ours, theirs, adapters


def layers(model):
    return [module for module in model.modules() if isinstance(module, LoRA)]


def test_loss_and_gradients_are_those_of_peft():
    ours, theirs, adapters = pair()
    loss, its_loss = ours(**TEXT).loss, theirs(**TEXT).loss
    torch.testing.assert_close(loss, its_loss, rtol=1e-12, atol=0)
    loss.backward()
    its_loss.backward()
    for layer, its in zip(layers(ours), adapters, strict=True):
        torch.testing.assert_close(layer.a.grad, its.lora_A["default"].weight.grad, rtol=1e-9, atol=1e-14)
        torch.testing.assert_close(layer.b.grad, its.lora_B["default"].weight.grad, rtol=1e-9, atol=1e-14)
    assert all(parameter.grad is None for parameter in ours.parameters() if not parameter.requires_grad)


def test_the_adapted_model_begins_as_the_model_was():
    model = small()
    right = model(**TEXT).logits
    assert torch.equal(adapt(model, 4, 8.0, NAMES)(**TEXT).logits, right)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_merged_the_plain_layer_does_all_and_unmerged_it_is_itself_again(dtype, tolerance):
    layer = LoRA(nn.Linear(40, 30), 5, 10.0).to(dtype)
    nn.init.normal_(layer.b)
    x, before = torch.randn(7, 40, dtype=dtype), layer.linear.weight.clone()
    right = layer(x)
    layer.merge()
    torch.testing.assert_close(layer.linear(x), right, rtol=tolerance, atol=tolerance)
    layer.merge(-1)
    torch.testing.assert_close(layer.linear.weight, before, rtol=tolerance, atol=tolerance)


def test_only_adapters_are_saved_and_they_are_all_that_is_needed():
    model, other_model = (adapt(small(torch.float32), 4, 8.0, NAMES) for _ in range(2))
    for layer in layers(model):
        nn.init.normal_(layer.b)
    saved = adapter_state(model)
    assert {name.rpartition(".")[2] for name in saved} == {"a", "b"}
    other_model.load_state_dict(saved, strict=False)
    assert torch.equal(other_model(**TEXT).logits, model(**TEXT).logits)
