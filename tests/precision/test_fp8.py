"""Products in 8 and in 4 bits, beside torch's float8 types, and block scales by hand."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_utils.precision import FORMATS, fp8

E4M3, E5M2, E2M1 = FORMATS["fp8 e4m3"], FORMATS["fp8 e5m2"], FORMATS["fp4 e2m1"]


def relative_error(approximate, exact):
    return ((approximate - exact).norm() / exact.norm()).item()


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@given(power=st.integers(-20, 20), seed=st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_with_a_fitting_scale_the_error_does_not_depend_on_the_size(power, seed):
    values = normal(16, 16, seed=seed)
    errors = []
    for tensor in (values, values * 2.0**power):
        scale = fp8.fitting_scale(tensor.abs().max().item(), E4M3)
        errors.append(relative_error(fp8.fake_quantize(tensor, E4M3, scale), tensor))
    assert errors[0] == pytest.approx(errors[1], rel=1e-3)
    assert errors[0] < 2.0**-4


def test_the_product_is_torch_s_types_multiplied_in_float32():
    a, b = normal(8, 16), normal(16, 4, seed=1)
    quantizers = (partial(fp8.fake_quantize, fmt=fmt, scale=scale) for fmt, scale in ((E4M3, 64.0), (E5M2, 8.0)))
    left = (a * 64).to(torch.float8_e4m3fn).float() / 64
    right = (b * 8).to(torch.float8_e5m2).float() / 8
    assert torch.equal(fp8.matmul(a, b, *quantizers), left @ right)


def test_by_default_the_largest_value_sets_the_scale():
    values = normal(8, 8)
    fitted = fp8.fake_quantize(values, E4M3, fp8.fitting_scale(values.abs().max().item(), E4M3))
    assert torch.equal(fp8.fake_quantize(values, E4M3), fitted)


def test_blocks_of_mxfp8_are_scaled_as_the_type_of_its_scales_allows():
    """Another way to each scale: torch's type of powers of two, one step up where what it rounds to is too small."""
    values = normal(4, 64) * 2.0 ** torch.arange(-40, 24)
    for row in range(4):
        for start in (0, 32):
            block = values[row, start : start + 32]
            least_scale = block.abs().max() / 448
            scale = least_scale.to(torch.float8_e8m0fnu).float()
            scale = scale if scale >= least_scale else 2 * scale
            scale = scale / 2 if scale / 2 >= least_scale else scale
            theirs = (block / scale).to(torch.float8_e4m3fn).float() * scale
            ours = fp8.fake_quantize_blocks(values[row : row + 1], E4M3, 32)[0, start : start + 32]
            assert torch.equal(ours, theirs)


def test_blocks_of_nvfp4_have_scales_in_e4m3_in_units_of_the_whole_tensors():
    """The scales of Transformer Engine's documentation, and each value by looking through the eight sizes of E2M1."""
    values = normal(3, 32) * torch.tensor([1.0, 1e-3, 5.0])[:, None]
    tensor_scale = values.abs().max() / (448 * 6)
    sizes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    ours = fp8.fake_quantize_blocks(values, E2M1, 16, E4M3)
    for block, rounded in zip(values.reshape(-1, 16), ours.reshape(-1, 16), strict=True):
        scale = (block.abs().max() / 6 / tensor_scale).to(torch.float8_e4m3fn).float() * tensor_scale
        nearest = sizes[(block.abs()[:, None] / scale - sizes).abs().argmin(1)] * block.sign() * scale
        assert torch.allclose(rounded, nearest, rtol=1e-5, atol=0)


@pytest.mark.parametrize("steps", [None, E4M3])
def test_an_empty_block_stays_zero_and_a_large_neighbor_spoils_its_own_block_only(steps):
    values = torch.zeros(1, 48)
    values[0, :32] = normal(32)
    before = fp8.fake_quantize_blocks(values, E2M1, 16, steps)
    spoiled = values.clone()
    spoiled[0, 0] = 100.0
    after = fp8.fake_quantize_blocks(spoiled, E2M1, 16, steps)
    assert (before[0, 32:] == 0).all()
    assert (after[0, 1:16] == 0).all()
    assert relative_error(after[0, 16:32], values[0, 16:32]) < 0.2


def test_a_block_whose_scale_is_rounded_to_zero_is_lost():
    """The smallest scale of E4M3 is 2^-9 of a unit, and the largest 448: what is under half of that has no scale."""
    values = normal(2, 16).clamp(-1, 1)
    values[:, 0] = 1.0
    for factor, is_lost in ((2.0**-18, False), (2.0**-20, True)):
        row = torch.cat([values[0], factor * values[1]])
        rounded = fp8.fake_quantize_blocks(row, E2M1, 16, E4M3)[16:]
        assert bool((rounded == 0).all()) == is_lost
    assert (fp8.fake_quantize_blocks(torch.zeros(1, 32), E2M1, 16, E4M3) == 0).all()


def test_without_a_scale_small_gradients_vanish():
    gradient = 1e-7 * normal(8, 8)
    assert (fp8.fake_quantize(gradient, E5M2, 1.0) == 0).all()
    assert relative_error(fp8.fake_quantize(gradient, E5M2, fp8.fitting_scale(4e-7, E5M2)), gradient) < 0.1


def test_very_small_values_do_not_become_nan():
    values = torch.tensor([0.0, 1e-38, 3e-39, 1e-45])
    scale = fp8.fitting_scale(values.max().item(), E5M2)
    assert relative_error(fp8.fake_quantize(values, E5M2, scale).double(), values.double()) < 2**-3
