"""Formats by arithmetic, held against torch's types: every pattern of 8 and 16 bits, and any float32."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_utils.precision import FORMATS, Format

DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8 e4m3": torch.float8_e4m3fn,
    "fp8 e5m2": torch.float8_e5m2,
}
INTEGERS = {8: torch.uint8, 16: torch.uint16, 32: torch.int32}
# torch 2.13 casts what is too large to 448; versions before cast it to NaN.
TORCH_SATURATES = {"fp8 e4m3": torch.tensor(1e4).to(torch.float8_e4m3fn).float().item() == 448}
any_float = st.floats(width=32)


def equal_or_nan(first, second):
    return torch.equal(first.nan_to_num(nan=12345.0), second.nan_to_num(nan=12345.0))


def narrow_names():
    return [name for name in DTYPES if FORMATS[name].bits <= 16]


@pytest.mark.parametrize("name", narrow_names())
def test_every_pattern_means_what_torch_says(name):
    fmt = FORMATS[name]
    patterns = range(2**fmt.bits)
    theirs = torch.tensor(patterns, dtype=INTEGERS[fmt.bits]).view(DTYPES[name]).double()
    ours = torch.tensor([fmt.value(pattern) for pattern in patterns], dtype=torch.float64)
    assert equal_or_nan(ours, theirs)
    assert torch.equal(torch.signbit(ours[~ours.isnan()]), torch.signbit(theirs[~theirs.isnan()]))


@pytest.mark.parametrize("name", narrow_names())
def test_a_pattern_is_found_again_from_its_value(name):
    fmt = FORMATS[name]
    for pattern in range(0, 2**fmt.bits, 1 if fmt.bits == 8 else 31):
        value = fmt.value(pattern)
        assert math.isnan(value) or fmt.pattern(value) == pattern
    assert math.isnan(fmt.value(fmt.pattern(math.nan)))


@pytest.mark.parametrize("name", DTYPES)
def test_limits_are_torch_s(name):
    fmt, theirs = FORMATS[name], torch.finfo(DTYPES[name])
    assert fmt.largest == theirs.max
    assert fmt.smallest_normal == theirs.smallest_normal
    assert fmt.smallest_subnormal == fmt.value(1)
    assert fmt.spacing(1.0) == theirs.eps


def test_tf32_has_the_range_of_fp32_and_the_mantissa_of_fp16():
    tf32, fp32, fp16 = (FORMATS[name] for name in ("tf32", "fp32", "fp16"))
    assert tf32.smallest_normal == fp32.smallest_normal
    assert tf32.spacing(1.0) == fp16.spacing(1.0)
    assert tf32.bits == 19


@pytest.mark.parametrize("name", [name for name in DTYPES if name != "fp32"])
@given(values=st.lists(any_float, min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_rounding_is_torch_s_cast(name, values):
    tensor = torch.tensor(values, dtype=torch.float32)
    largest = FORMATS[name].largest
    ours = FORMATS[name].nearest(tensor.clamp(-largest, largest) if TORCH_SATURATES.get(name) else tensor)
    assert equal_or_nan(ours, tensor.to(DTYPES[name]).float())


@pytest.mark.parametrize("name", [name for name in DTYPES if name != "fp32"])
def test_rounding_is_torch_s_cast_at_every_midpoint_and_beside_it(name):
    fmt = FORMATS[name]
    top = fmt.pattern(fmt.largest)
    values = torch.tensor([fmt.value(p) for p in range(0, top, max(1, top // 3000))], dtype=torch.float64)
    middle = (values + fmt.spacings(values) / 2).float()
    for tensor in (middle, middle.nextafter(torch.tensor(math.inf)), middle.nextafter(torch.tensor(-math.inf))):
        assert equal_or_nan(fmt.nearest(tensor), tensor.to(DTYPES[name]).float())


@given(value=st.floats(-(2.0**100), 2.0**100, width=32))
@settings(max_examples=100, deadline=None)
def test_tf32_keeps_ten_bits_of_the_mantissa(value):
    """The oracle works on the bits of float32: add half of the last bit kept (ties to even), then cut 13 bits off."""
    bits = torch.tensor(value, dtype=torch.float32).view(torch.int32).item() & 0xFFFFFFFF
    bits = (bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFF & 0xFFFFFFFF
    expected = torch.tensor(bits, dtype=torch.int64).to(torch.int32).view(torch.float32)
    assert torch.equal(FORMATS["tf32"].nearest(torch.tensor(value, dtype=torch.float32)), expected)


@given(value=st.floats(width=32, allow_nan=False, allow_infinity=False))
@settings(max_examples=100, deadline=None)
def test_every_format_rounds_to_one_of_two_neighbors_within_half_a_spacing(value):
    for fmt in FORMATS.values():
        value = max(-fmt.largest, min(value, fmt.largest))
        rounded = fmt.nearest(torch.tensor(value, dtype=torch.float64)).item()
        assert fmt.value(fmt.pattern(rounded)) == rounded
        assert abs(rounded - value) <= fmt.spacing(value) / 2


@pytest.mark.parametrize("name", FORMATS)
def test_stochastic_rounding_takes_a_neighbor_and_is_right_on_average(name):
    fmt, generator = FORMATS[name], torch.Generator().manual_seed(0)
    for value in (1.3, -0.0371, 3.3 * fmt.smallest_subnormal):
        spacing = fmt.spacing(value)
        samples = fmt.stochastic(torch.full((20_000,), value, dtype=torch.float64), generator)
        assert set(samples.tolist()) == {math.floor(value / spacing) * spacing, math.ceil(value / spacing) * spacing}
        assert abs(samples.mean().item() - value) < 0.02 * spacing


def test_stochastic_rounding_leaves_a_number_of_the_format():
    fmt = FORMATS["bf16"]
    values = torch.tensor([fmt.value(p) for p in range(0, 0x7F80, 97)], dtype=torch.float64)
    assert torch.equal(fmt.stochastic(values), values)
    assert torch.equal(fmt.stochastic(-values), -values)


@pytest.mark.parametrize("name", FORMATS)
def test_too_large_is_infinite_or_nan_or_the_largest(name):
    fmt = FORMATS[name]
    beyond = fmt.nearest(torch.tensor([2.1 * fmt.largest, -math.inf], dtype=torch.float64))
    if fmt.nan:
        assert beyond.isinf().all() if fmt.infinities else beyond.isnan().all()
    else:
        assert beyond.tolist() == [fmt.largest, -fmt.largest]
    assert fmt.nearest(torch.tensor(math.nan)).isnan()


def test_four_bits_are_the_numbers_of_the_open_standard():
    fmt = FORMATS["fp4 e2m1"]
    assert [fmt.value(pattern) for pattern in range(8)] == [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert all(fmt.pattern(fmt.value(pattern)) == pattern for pattern in range(16))


def test_a_format_may_be_made_up():
    tiny = Format("fp4 with a NaN", 2, 1, infinities=False)
    positive = [tiny.value(pattern) for pattern in range(7)]
    assert positive == [0, 0.5, 1, 1.5, 2, 3, 4]
    assert math.isnan(tiny.value(7))
