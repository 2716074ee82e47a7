"""What the figures about number formats draw is the data, and their control keeps number and bits together."""

import math

import pytest
import torch
from colors import READABLE, contrast

from course_utils import viz
from course_utils.precision import FORMATS, exponent_counts, loss_in
from course_utils.viz.style import BIT_COLORS


def pattern(name, value):
    return name, FORMATS[name].pattern(value), value


def test_each_format_has_as_many_boxes_as_bits():
    figure, alt = viz.formats_figure()
    assert len(figure.axes[0].patches) == sum(number.bits for number in FORMATS.values())
    assert "bf16: 8 exponent and 7 mantissa bits" in alt


def test_the_histogram_moves_with_the_scale():
    counts = exponent_counts([torch.tensor([1.0, 1.5, 2.0**-30, 0.25])])
    figure, alt = viz.exponents_figure(counts)
    heights = [patch.get_height() for patch in figure.axes[1].patches]
    assert heights == [25.0, 25.0, 50.0]
    assert "25.0% lie below 2^-25" in alt
    assert "from 2^-30 to 2^1, half of them below 2^-1" in alt
    assert "0.0% lie below 2^-25" in viz.exponents_figure(counts, scale=2.0**10)[1]


def test_the_window_of_scales_is_what_the_format_loses():
    gradients = [10.0 ** torch.linspace(-9, -2, 200, dtype=torch.float64)]
    figure, alt = viz.scale_window_figure(gradients, FORMATS["fp16"], powers=(0, 10, 30))
    vanished, _, overflowed = (line.get_ydata() for line in figure.axes[0].lines)
    for place, power in enumerate((0, 10, 30)):
        lost = loss_in(gradients, FORMATS["fp16"], 2.0**power)
        assert (vanished[place], overflowed[place]) == (100 * lost.vanished, 100 * lost.overflowed)
    assert "from 2^10 to 2^10 less than 1 % vanish" in alt


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("value", [0.1, -3.3, 1e-9, 1e9, 0.0, -448.0])
def test_any_number_can_be_drawn(name, value):
    figure, alt = viz.number_figure(pattern(name, value))
    assert f"{FORMATS[name].pattern(value):0{FORMATS[name].bits}b}" in alt
    figure.canvas.draw()


def test_neighbors_stand_one_spacing_apart_and_change_at_a_power_of_two():
    figure, _ = viz.number_figure(pattern("fp8 e4m3", 2.0))
    marks = figure.axes[1].lines[0].get_xdata()
    assert list(marks) == [
        0.875,
        0.9375,
        1.0,
        1.125,
        1.25,
        1.375,
        1.5,
        1.625,
        1.75,
        1.875,
        2.0,
        2.25,
        2.5,
        2.75,
        3.0,
        3.25,
    ]


def test_below_zero_the_neighbors_are_the_mirror_image():
    above, below = (
        viz.number_figure(pattern("fp8 e5m2", value))[0].axes[1].lines[0].get_xdata() for value in (3.0, -3.0)
    )
    inside = {x for x in above if 2 <= x <= 4}
    assert {-x for x in inside} <= set(below)


def test_a_number_too_large_is_said_to_be_infinite():
    _, alt = viz.number_figure(pattern("fp16", 1e6))
    assert "inf. Asked for 1000000" in alt


def test_the_control_rounds_what_is_typed_and_shows_its_bits():
    picker = viz.number_picker("fp16", 0.1)
    assert picker.value == pattern("fp16", 0.1)
    picker.format.value = "fp8 e5m2"
    assert [button.description for button in picker.bits.children] == list("00101110")
    picker.power.value = 3
    assert picker.value == pattern("fp8 e5m2", 0.8)


@pytest.mark.parametrize(("first", "second"), [("fp16", "bf16"), ("fp8 e4m3", "fp8 e5m2")])
def test_bits_are_colored_as_the_format_divides_them(first, second):
    picker = viz.number_picker(first, 0.1)
    picker.format.value = second
    seen = [button.style.button_color for button in picker.bits.children]
    number, colors = FORMATS[second], {part: viz.COLORS[name] for part, name in BIT_COLORS.items()}
    exponent, mantissa = [colors["exponent"]] * number.exponent_bits, [colors["mantissa"]] * number.mantissa_bits
    assert seen == [colors["sign"], *exponent, *mantissa]
    assert all(
        contrast(button.style.text_color, button.style.button_color) > READABLE for button in picker.bits.children
    )


def test_a_click_on_a_bit_flips_it_and_the_number_follows():
    picker = viz.number_picker("fp16", 1.0)
    picker.bits.children[0].click()
    assert picker.value == pattern("fp16", -1.0)
    assert (picker.number.value, picker.power.value) == (-1.0, 0)
    picker.bits.children[1].click()
    assert math.isinf(picker.value[2])
    picker.bits.children[1].click()
    assert picker.value == pattern("fp16", -1.0)


def test_the_cycle_says_where_the_scale_goes_in_and_out():
    assert "multiplied by S" in viz.mixed_precision_figure()[1]
