"""The control for a number of a format keeps number and bits together."""

import math

import pytest
from colors import READABLE, contrast

from course_utils import viz
from course_utils.lessons.c08_figures import NumberPicker
from course_utils.precision import FORMATS
from course_utils.viz.style import BIT_COLORS


def pattern(name, value):
    return name, FORMATS[name].pattern(value), value


def test_the_control_rounds_what_is_typed_and_shows_its_bits():
    picker = NumberPicker("fp16", 0.1)
    assert picker.value == pattern("fp16", 0.1)
    picker.format.value = "fp8 e5m2"
    assert [button.description for button in picker.bits.children] == list("00101110")
    picker.power.value = 3
    assert picker.value == pattern("fp8 e5m2", 0.8)


@pytest.mark.parametrize(("first", "second"), [("fp16", "bf16"), ("fp8 e4m3", "fp8 e5m2")])
def test_bits_are_colored_as_the_format_divides_them(first, second):
    picker = NumberPicker(first, 0.1)
    picker.format.value = second
    seen = [button.style.button_color for button in picker.bits.children]
    number = FORMATS[second]
    colors = {part: viz.COLORS[name] for part, name in BIT_COLORS.items()}
    exponent, mantissa = [colors["exponent"]] * number.exponent_bits, [colors["mantissa"]] * number.mantissa_bits
    assert seen == [colors["sign"], *exponent, *mantissa]
    assert all(
        contrast(button.style.text_color, button.style.button_color) > READABLE for button in picker.bits.children
    )


def test_a_click_on_a_bit_flips_it_and_the_number_follows():
    picker = NumberPicker("fp16", 1.0)
    picker.bits.children[0].click()
    assert picker.value == pattern("fp16", -1.0)
    assert picker.number.value == -1.0
    assert picker.power.value == 0
    picker.bits.children[1].click()
    assert math.isinf(picker.value[2])
    picker.bits.children[1].click()
    assert picker.value == pattern("fp16", -1.0)
