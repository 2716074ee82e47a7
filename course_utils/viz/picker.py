"""A control made of several: a model from a list, or with sizes of one's own."""

from collections.abc import Callable, Mapping, Sequence

from ipywidgets import BoundedIntText, Dropdown, VBox
from traitlets import Any


class ModelPicker(VBox):
    """Its `value` is a name from the list or, where `custom` is chosen, `sizes(…)` of the numbers in fields that then show.

    `names` are pairs of what the list shows and the name; `labels` has for each argument of `sizes` the
    words beside its field, and the largest number to be typed there.
    """

    value = Any()

    def __init__(
        self, names: Sequence[tuple[str, str]], custom: str, sizes: Callable, labels: Mapping[str, tuple[str, int]]
    ):
        start = sizes()
        self.custom, self.sizes = custom, sizes
        self.model = Dropdown(options=[*names, (custom, custom)], description="model")
        self.fields = {
            name: BoundedIntText(getattr(start, name), min=1, max=maximum, description=text)
            for name, (text, maximum) in labels.items()
        }
        super().__init__([self.model, *self.fields.values()])
        for control in self.children:
            control.observe(self._read, names="value")
        self._read()

    def _read(self, _: dict | None = None) -> None:
        is_custom = self.model.value == self.custom
        for field in self.fields.values():
            field.layout.display = None if is_custom else "none"
        typed = {name: field.value for name, field in self.fields.items()}
        self.value = self.sizes(**typed) if is_custom else self.model.value
