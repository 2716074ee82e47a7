"""Controls made of several: one number in one format, with bits to click; a model from a list, or with sizes of one's own."""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite

from ipywidgets import BoundedIntText, Box, Button, Dropdown, FloatText, IntSlider, VBox
from traitlets import Any, Tuple

from course_utils.precision import FORMATS
from course_utils.viz.style import BIT_COLORS, BIT_INK, COLORS


class NumberPicker(VBox):
    """Its `value` is (format name, bit pattern, the number that was asked for); the pattern is that number, rounded."""

    value = Tuple()

    def __init__(self, name: str = "fp16", number: float = 0.1):
        self.format = Dropdown(options=list(FORMATS), value=name, description="format")
        self.number = FloatText(number, description="number")
        self.power = IntSlider(0, -60, 60, description="times 2 to the power")
        self.bits = Box(layout={"display": "flex", "flex_flow": "row wrap"})
        self._flipped = False
        super().__init__([self.format, self.number, self.power, self.bits])
        for control in (self.format, self.number, self.power):
            control.observe(self._read, names="value")
        self._read()

    @property
    def wanted(self) -> float:
        """The typed number times the slider's power of two."""
        return self.number.value * 2.0**self.power.value

    def flip(self, place: int) -> None:
        """Turn the bit at `place`, counted from the left, and ask for the number that the pattern then is."""
        number = FORMATS[self.format.value]
        pattern = self.value[1] ^ 1 << (number.bits - 1 - place)
        self._flipped = True
        if isfinite(number.value(pattern)):  # else the field keeps the last number that can be typed
            self.number.value, self.power.value = number.value(pattern), 0
        self._flipped = False
        self._show(pattern, number.value(pattern))

    def _read(self, _=None) -> None:
        if not self._flipped:
            self._show(FORMATS[self.format.value].pattern(self.wanted), self.wanted)

    def _show(self, pattern: int, wanted: float) -> None:
        number = FORMATS[self.format.value]
        if len(self.bits.children) != number.bits:
            self.bits.children = [self._button(place) for place in range(number.bits)]
        for place, bit in enumerate(f"{pattern:0{number.bits}b}"):
            button, part = self.bits.children[place], _part(number, place)
            button.description, button.style.button_color = bit, COLORS[BIT_COLORS[part]]
            button.tooltip = f"{part} bit {place + 1}, {bit}: press to flip"
        self.value = (number.name, pattern, wanted)

    def _button(self, place: int) -> Button:
        button = Button(layout={"width": "2.1em", "padding": "0", "margin": "1px"}, style={"text_color": BIT_INK})
        button.on_click(lambda _: self.flip(place))
        return button


def _part(number, place: int) -> str:
    return list(BIT_COLORS)[(place > 0) + (place > number.exponent_bits)]


class ModelPicker(VBox):
    """Its `value` is a name from the list or, where `own` is chosen, `sizes(…)` of the numbers in fields that then show.

    `names` are pairs of what the list shows and the name; `described` has for each argument of `sizes` the
    words beside its field, and the largest number to be typed there.
    """

    value = Any()

    def __init__(
        self, names: Sequence[tuple[str, str]], own: str, sizes: Callable, described: Mapping[str, tuple[str, int]]
    ):
        start, self.own, self.sizes = sizes(), own, sizes
        self.model = Dropdown(options=[*names, (own, own)], description="model")
        self.fields = {
            name: BoundedIntText(getattr(start, name), min=1, max=most, description=text)
            for name, (text, most) in described.items()
        }
        super().__init__([self.model, *self.fields.values()])
        for control in self.children:
            control.observe(self._read, names="value")
        self._read()

    def _read(self, _=None) -> None:
        own = self.model.value == self.own
        for field in self.fields.values():
            field.layout.display = None if own else "none"
        typed = {name: field.value for name, field in self.fields.items()}
        self.value = self.sizes(**typed) if own else self.model.value
