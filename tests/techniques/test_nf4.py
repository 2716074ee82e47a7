"""Weights in 4 bits beside bitsandbytes' on the same weights."""

import bitsandbytes.functional as library
import pytest
import torch
from bitsandbytes.nn import Linear4bit, Params4bit
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from course_utils.optim.codebook import dynamic_codebook
from course_utils.techniques.lora import LoRA
from course_utils.techniques.nf4 import NF4, SECOND_BLOCK, LinearNF4, normal_codebook


def weight(seed, shape, dtype=torch.float32):
    return (torch.randn(shape, generator=torch.Generator().manual_seed(seed)) / 50).to(dtype)


def test_the_codebook_is_the_librarys_to_the_bit():
    assert torch.equal(normal_codebook(), library.get_4bit_type("nf4", device="cpu"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("seed", "shape"), [(0, (64, 64)), (1, (768, 96)), (2, (512, 2048))])
def test_quantized_weights_are_the_librarys_where_it_rounds_to_the_nearest(seed, shape, dtype):
    w = weight(seed, shape, dtype)
    codes, state = library.quantize_4bit(w, blocksize=64, compress_statistics=True, quant_type="nf4")
    ours = NF4.from_weight(w)
    assert torch.equal(ours.codes, codes.view(-1))
    assert torch.equal(ours.second, state.state2.absmax)
    assert torch.equal(ours.mean, state.offset)
    other = (ours.scales != state.absmax).nonzero().flatten()
    assert len(other) < 0.01 * len(ours.scales)
    scales = (w.float().view(-1, 64).abs().amax(1) - ours.mean)[other]
    relative = scales / ours.second[other // SECOND_BLOCK]
    distance, its = ((dynamic_codebook()[code[other].long()] - relative).abs() for code in (ours.scales, state.absmax))
    assert (distance <= its).all(), "the library's look-up on a CPU takes a neighbor now and then"


def test_what_the_codes_stand_for_is_the_librarys_within_rounding():
    w = weight(3, (256, 64))
    codes, state = library.quantize_4bit(w, blocksize=64, compress_statistics=True, quant_type="nf4")
    ours = NF4.from_weight(w)
    state.absmax = ours.scales
    torch.testing.assert_close(ours.dequantize(), library.dequantize_4bit(codes, state), rtol=1e-6, atol=1e-9)


def test_a_layer_gives_the_librarys_results_and_gradients():
    plain = nn.Linear(128, 64)
    plain.weight.data = weight(4, (64, 128))
    theirs = Linear4bit(128, 64, quant_type="nf4", compute_dtype=torch.float32)
    theirs.weight = Params4bit(plain.weight.data.clone(), requires_grad=False, quant_type="nf4")
    theirs.bias = plain.bias
    theirs.to("cpu")
    xs = [torch.randn(5, 128, generator=torch.Generator().manual_seed(5)).requires_grad_() for _ in range(2)]
    outs = [layer(x) for layer, x in zip((LinearNF4(plain), theirs), xs, strict=True)]
    for out in outs:
        out.square().sum().backward()
    torch.testing.assert_close(*outs, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(*(x.grad for x in xs), rtol=1e-3, atol=1e-3)


def test_an_adapter_around_it_learns_and_nothing_else_does():
    torch.manual_seed(7)
    layer = LoRA(LinearNF4(nn.Linear(128, 64)), 4, 8.0)
    x, y = torch.randn(32, 128), torch.randn(32, 64)
    before = layer.linear.weight.codes.clone()
    optimizer = torch.optim.AdamW([p for p in layer.parameters() if p.requires_grad], lr=0.01)
    losses = []
    for _ in range(30):
        losses.append(nn.functional.mse_loss(layer(x), y))
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < 0.8 * losses[0]
    assert torch.equal(layer.linear.weight.codes, before)


def test_neither_the_wide_weight_nor_the_input_is_saved():
    layer, saved = LinearNF4(nn.Linear(128, 64, bias=False)), []
    with saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        layer(torch.ones(2, 128, requires_grad=True)).sum().backward()
    assert not saved


def test_a_weight_takes_half_a_byte_and_its_scales_an_eighth_of_a_bit_each():
    packed = NF4.from_weight(weight(6, (1024, 1024)))
    total_bytes = sum(tensor.nbytes for tensor in (packed.codes, packed.scales, packed.mean, packed.second))
    assert total_bytes == 2**20 // 2 + 2**14 + 4 + 4 * 2**6
