import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_utils.precision import FORMATS, fp8

E4M3, E5M2 = FORMATS["fp8 e4m3"], FORMATS["fp8 e5m2"]


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
    ours = fp8.matmul(a, b, (E4M3, E5M2), (64.0, 8.0))
    left = (a * 64).to(torch.float8_e4m3fn).float() / 64
    right = (b * 8).to(torch.float8_e5m2).float() / 8
    assert torch.equal(ours, left @ right)


def test_without_a_scale_small_gradients_vanish():
    gradient = 1e-7 * normal(8, 8)
    assert (fp8.fake_quantize(gradient, E5M2, 1.0) == 0).all()
    assert relative_error(fp8.fake_quantize(gradient, E5M2, fp8.fitting_scale(4e-7, E5M2)), gradient) < 0.1


def test_a_delayed_scale_looks_back_over_its_history():
    scale = fp8.DelayedScale(E4M3, history=2)
    sizes = (1.0, 8.0, 2.0, 2.0, 2.0)
    given_out = [scale.next(torch.tensor([size])) for size in sizes]
    assert given_out == [E4M3.largest / size for size in (1.0, 1.0, 8.0, 8.0, 2.0)]


def test_very_small_values_do_not_become_nan():
    values = torch.tensor([0.0, 1e-38, 3e-39, 1e-45])
    scale = fp8.fitting_scale(values.max().item(), E5M2)
    assert relative_error(fp8.fake_quantize(values, E5M2, scale).double(), values.double()) < 2**-3


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_an_overflow_does_not_enter_the_history(bad):
    delayed = fp8.DelayedScale(E5M2, history=3)
    scales = [delayed.next(torch.tensor([size, 0.5])) for size in (bad, 1.0, bad, 1.0)]
    assert scales == [1.0, E5M2.largest, E5M2.largest, E5M2.largest]
