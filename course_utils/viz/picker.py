"""A control made of several: a model from a list, or with sizes of one's own."""

from collections.abc import Callable, Mapping, Sequence

from ipywidgets import BoundedIntText, Dropdown, VBox
from traitlets import Any


class ModelPicker(VBox):
    """Its `value` is a name from the list or, where `own` is chosen, `sizes(…)` of the numbers in fields that then show.

    `names` are pairs of what the list shows and the name; `described` has for each argument of `sizes` the
    words beside its field, and the largest number to be typed there.
    """

    value = Any()

    def __init__(
        self, names: Sequence[tuple[str, str]], own: str, sizes: Callable, described: Mapping[str, tuple[str, int]]
    ):
        start = sizes()
        self.own, self.sizes = own, sizes
        self.model = Dropdown(options=[*names, (own, own)], description="model")
        self.fields = {
            name: BoundedIntText(getattr(start, name), min=1, max=most, description=text)
            for name, (text, most) in described.items()
        }
        super().__init__([self.model, *self.fields.values()])
        for control in self.children:
            control.observe(self._read, names="value")
        self._read()

    def _read(self, _: dict | None = None) -> None:
        own = self.model.value == self.own
        for field in self.fields.values():
            field.layout.display = None if own else "none"
        typed = {name: field.value for name, field in self.fields.items()}
        self.value = self.sizes(**typed) if own else self.model.value
