"""The controls of an interactive figure: one look, and names for those who do not see where they stand."""

import html
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ipywidgets import Widget

_CHARACTER_WIDTH = 0.56  # in em, of a description
_DESCRIPTION_MARGIN = 1.2  # in em, for what stands beside a description
_MAX_WIDTH = "36em"
_MIN_BUTTON_WIDTH = 7

# ipywidgets connects no label with a slider or a row of buttons, and calls a slider's value by its place on the way.
# Its handles are as good as white on white. And JupyterLab takes the arrow keys from a list of options, and letters from
# all controls, for its shortcuts, unless the element itself says that it may not.
# It knows no text for a picture either, and the look of its dark theme leaves pictures as they are.
_SUPPORT_HTML = (Path(__file__).parent / "accessibility.html").read_text(encoding="utf-8")

_REDRAW_CLASS = "course-drawing"


def page_support(alt: str = "") -> dict:
    """An output that names controls and figures for screen readers and draws figures in the dark; it shows nothing itself.

    With `alt` it is about the figure that is the output before it.
    """
    description = f'<p class="course-alt" style="display: none">{html.escape(alt)}</p>' if alt else ""
    return {"text/html": _SUPPORT_HTML + description, "text/plain": ""}


def dress(controls: Mapping) -> None:
    """Give the controls room for the longest description, one width, and an answer when they come to rest, not on the way."""
    all_leaves = [leaf for control in controls.values() for leaf in leaves(control)]
    described_leaves = [leaf for leaf in all_leaves if hasattr(leaf.style, "description_width")]
    longest = max((len(leaf.description) for leaf in described_leaves if not hasattr(leaf, "indent")), default=0)
    for leaf in described_leaves:
        leaf.style.description_width = f"{_CHARACTER_WIDTH * longest + _DESCRIPTION_MARGIN:.1f}em"
    for leaf in all_leaves:
        if not getattr(leaf, "tooltip", True):  # else the page says "null"; ipywidgets 7 has no such thing
            leaf.tooltip = leaf.description
        if hasattr(leaf.style, "button_width"):
            labels = (option[0] if isinstance(option, tuple) else option for option in leaf.options)
            widest = max(len(str(label)) for label in labels)
            leaf.style.button_width = f"{max(_MIN_BUTTON_WIDTH, _CHARACTER_WIDTH * widest + 2):.1f}em"
            leaf.layout.display = "flex"
        elif hasattr(leaf, "value"):
            leaf.layout.width, leaf.layout.max_width = "98%", _MAX_WIDTH
        if hasattr(leaf, "continuous_update"):
            leaf.continuous_update = False


@contextmanager
def redrawing(box: "Widget") -> Iterator[None]:
    """Within it the page shows the figure below `box` pale: it is still of the values before."""
    box.add_class(_REDRAW_CLASS)
    try:
        yield
    finally:
        box.remove_class(_REDRAW_CLASS)


def leaves(control: "Widget") -> Iterator:
    """A control, or those that it is made of."""
    if hasattr(control, "children"):
        for child in control.children:
            yield from leaves(child)
    else:
        yield control


def in_words(controls: Mapping) -> str:
    """What can be moved, and where it stands: `stage 3; ranks 8`."""
    all_leaves = (leaf for control in controls.values() for leaf in leaves(control))
    movable = (leaf for leaf in all_leaves if hasattr(leaf, "value") and not getattr(leaf, "disabled", False))
    return "; ".join(f"{leaf.description} {_format_value(leaf)}" for leaf in movable if leaf.layout.display != "none")


def _format_value(leaf: "Widget") -> str:
    if isinstance(leaf.value, bool):
        return "on" if leaf.value else "off"
    value = getattr(leaf, "label", "") or leaf.value  # of a list of options, what is written for the value
    return f"{value:g}" if isinstance(value, float) else str(value)
