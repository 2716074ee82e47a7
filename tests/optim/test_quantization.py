"""Codebooks and block-wise quantization against bitsandbytes, and against a search through all entries."""

import bitsandbytes.functional as oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_utils.optim import quantization
from course_utils.optim.codebook import dynamic_codebook, linear_codebook, value_of_bits
from course_utils.optim.quantization import dequantize, look_up, lookup_table, nearest, quantize

BOOKS = {
    "dynamic, signed": dynamic_codebook(True),
    "dynamic, unsigned": dynamic_codebook(False),
    "linear, signed": linear_codebook(True),
    "linear, unsigned": linear_codebook(False),
    "five bits": dynamic_codebook(True, 5),
    "two exponent bits": dynamic_codebook(False, 8, 2),
    "two entries closer than the look-up sees": torch.tensor([-1.0, 0.3, 0.3001, 0.3002, 1.0]),
}
books = pytest.mark.parametrize("codes", BOOKS.values(), ids=BOOKS)


def by_brute_force(values, codes):
    """The place of the nearest of all entries, in float64; `argmin` takes the lower of two."""
    return (values.double().reshape(-1, 1) - codes.double()).abs().argmin(1).reshape(values.shape)


def hard_values(codes):
    """Values over nine decades, and both neighbors of every midpoint and entry."""
    generator = torch.Generator().manual_seed(0)
    spread = torch.randn(20_000, generator=generator) * 10 ** (-9 * torch.rand(20_000, generator=generator))
    edges = torch.cat([quantization.midpoints(codes), codes])
    neighbors = [edges.nextafter(torch.tensor(end)) for end in (-9.0, 9.0)]
    return torch.cat([spread, edges, *neighbors, torch.tensor([0.0, -0.0, 1e-45, -1e-45])]).clamp(codes[0], 1)


@pytest.mark.parametrize("signed", [True, False])
def test_dynamic_books_equal_the_library_to_the_last_entry(signed):
    assert torch.equal(dynamic_codebook(signed), oracle.create_dynamic_map(signed))
    for bits in range(4, 8):  # the library fills up to 256 entries with zeros
        theirs = oracle.create_dynamic_map(signed, bits - 1, bits).unique()
        assert torch.equal(dynamic_codebook(signed, bits), theirs)


@pytest.mark.parametrize("signed", [True, False])
def test_linear_books_equal_the_library(signed):
    """To the rounding of a division; the library's signed book has 0 beside an entry of 10⁻⁸ or so."""
    ours, theirs = linear_codebook(signed), oracle.create_linear_map(signed)
    theirs = theirs[(theirs == 0) | (theirs.abs() > 1e-6)].unique()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-7)
    assert 0 in ours


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("bits", range(3, 9))
def test_each_pattern_of_bits_is_another_number(signed, bits):
    for exponent_bits in range(1, 8):
        codes = dynamic_codebook(signed, bits, exponent_bits)
        assert len(codes.unique()) == 2**bits
        assert (codes.max(), codes.abs().min()) == (1, 0)
        assert (codes.min() < 0) == signed


def test_bits_are_read_as_the_paper_says():
    assert value_of_bits("00000000") == 0
    assert value_of_bits("10000000") == 1  # a second zero would be wasted
    assert value_of_bits("00000001") == pytest.approx(0.55e-6)  # no bit is left for the fraction
    assert value_of_bits("01000000") == pytest.approx(0.1 + 0.9 / 128)
    assert value_of_bits("11111111") == pytest.approx(-(1 - 0.9 / 128))
    assert value_of_bits("11111111", signed=False) == pytest.approx(1 - 0.9 / 256)
    assert value_of_bits("00000001", signed=False) == 1


@books
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_codes_are_exactly_the_nearest(codes, dtype):
    values = hard_values(codes).to(dtype)
    expected = by_brute_force(values, codes)
    assert torch.equal(nearest(values, codes).long(), expected)
    assert torch.equal(look_up(values, codes).long(), expected)


def test_the_look_up_is_used_where_it_can_be():
    usable = {name: lookup_table(codes) is not None for name, codes in BOOKS.items()}
    assert [name for name, yes in usable.items() if not yes] == ["two entries closer than the look-up sees"]


@books
@given(
    shape=st.lists(st.integers(0, 6), max_size=3).map(tuple),
    block=st.integers(1, 40),
    decades=st.integers(0, 20),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=15, deadline=None)
def test_blocks_are_scaled_and_rounded_as_by_hand(codes, shape, block, decades, seed):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator) * 10 ** (-decades * torch.rand(shape, generator=generator))
    values = values if codes[0] < 0 else values.abs()
    before = values.clone()
    places, absmax = quantize(values, codes, block)
    blocks = list(values.reshape(-1).split(block)) if values.numel() else []
    assert torch.equal(values, before)
    assert (places.shape, places.dtype, absmax.dtype) == (values.shape, torch.uint8, torch.float32)
    assert absmax.tolist() == [part.abs().max().item() for part in blocks]
    expected = [by_brute_force(part / (part.abs().max() or 1), codes) for part in blocks]
    assert places.reshape(-1).tolist() == [place for part in expected for place in part.tolist()]
    dequantized = dequantize(places, absmax, codes, block)
    requantized, _ = quantize(dequantized, codes, block)
    if values.numel() and codes[0] in (-1, 0):  # what is in the book stays
        assert torch.equal(dequantize(requantized, absmax, codes, block), dequantized)


def test_blocks_of_zeros_and_of_the_smallest_floats():
    values = torch.tensor([0.0, 0.0, 1e-45, -1e-45, 3e38, 1.0])
    places, absmax = quantize(values, dynamic_codebook(), 2)
    assert absmax.tolist() == pytest.approx([0.0, 1e-45, 3e38])
    assert dequantize(places, absmax, dynamic_codebook(), 2).tolist() == pytest.approx([0, 0, 1e-45, -1e-45, 3e38, 0])


def gradients(decades, count=2**15, seed=0):
    generator = torch.Generator().manual_seed(seed)
    scales = 10 ** (-decades * torch.rand(count, generator=generator))
    return torch.randn(count, generator=generator) * scales


@pytest.mark.parametrize("signed", [True, False])
def test_unpacking_equals_the_library(signed):
    codes, values = dynamic_codebook(signed), gradients(3) if signed else gradients(3) ** 2
    places, absmax = quantize(values, codes, 256)
    state = oracle.QuantState(absmax=absmax, code=codes, blocksize=256, dtype=torch.float32)
    assert torch.equal(dequantize(places, absmax, codes, 256), oracle.dequantize_blockwise(places, state))


GRID = 2 / 65_535
"""The library's CPU code looks places up in a table of 2¹⁶ equal steps from -1 to 1, so it may miss by one of them."""


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize(("decades", "lowest", "highest"), [(0, 0.0005, 0.06), (3, 0.005, 0.6), (6, 0.1, 0.9)])
def test_the_library_on_this_backend_is_off_by_a_step_of_its_table(signed, decades, lowest, highest):
    """Scales are equal; a share of the codes differs, most near zero; its values are never nearer, and at most a step off."""
    codes, values = dynamic_codebook(signed), gradients(decades) if signed else gradients(decades) ** 2
    places, absmax = quantize(values, codes, 256)
    theirs, state = oracle.quantize_blockwise(values, codes, blocksize=256)
    assert torch.equal(state.absmax, absmax)
    scaled = (values.view(-1, 256) / absmax[:, None]).view(-1).double()
    ours_off, theirs_off = ((codes[p.long()].double() - scaled).abs() for p in (places, theirs))
    assert lowest <= (places != theirs).float().mean() <= highest
    assert (ours_off <= theirs_off).all()
    assert (theirs_off - ours_off).max() <= 1.01 * GRID
    assert (places.int() - theirs.int()).abs().max() <= 7


def test_stochastic_rounding_takes_neighbors_and_is_right_on_average():
    codes, generator = dynamic_codebook(), torch.Generator().manual_seed(0)
    values = torch.tensor([-0.9921, -0.3, 1e-7, 0.0, 3e-4, 0.77, 1.0])
    samples = codes[quantization.stochastic(values.expand(40_000, 7), codes, generator).long()].double()
    above = torch.searchsorted(codes, values)
    for i, value in enumerate(values.double()):
        allowed = {codes[above[i]].item(), codes[max(above[i] - 1, 0)].item()}
        assert set(samples[:, i].tolist()) <= allowed
        spread = samples[:, i].std() / 200
        assert abs(samples[:, i].mean() - value) <= 4 * spread + 1e-9
    exact = quantization.stochastic(codes, codes, generator)
    assert torch.equal(codes[exact.long()], codes)
