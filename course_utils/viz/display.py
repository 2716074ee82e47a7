"""Showing things in a notebook: figures with a text for those who cannot see them, package source, sliders."""

import base64
import html
import inspect
import io
import textwrap
from collections.abc import Callable, Iterator
from difflib import ndiff
from threading import Lock
from types import ModuleType
from typing import TYPE_CHECKING

import matplotlib.pyplot as plt
from IPython.display import Markdown, display
from matplotlib.figure import Figure

from course_utils.settings import LIVE_OUTPUT
from course_utils.viz.controls import dress, in_words, page_support, redrawing
from course_utils.viz.style import STYLE

if TYPE_CHECKING:
    from ipywidgets import VBox

_DOTS_PER_INCH = 144  # above a page's 96, so that text stays sharp on fine screens
_PAGE_DOTS_PER_INCH = 96
_WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

played_controls: dict = {}
"""The controls of the figure that `play` showed last, by argument name."""


def use_course_style() -> None:
    """Give matplotlib the course's colors and sizes for the rest of the process."""
    plt.rcParams.update(STYLE)


def show(figure: Figure, alt: str) -> None:
    """Display `figure` as a picture with the text `alt`, and close it; raises `ValueError` when `alt` is empty.

    >>> from course_utils.viz.parts import subplots
    >>> figure, axes = subplots()
    >>> lines = axes.plot([3, 2, 1])
    >>> show(figure, "The loss falls from 3 to 1.")
    The loss falls from 3 to 1.
    """
    bundle, metadata = picture(figure, alt)
    display(bundle, metadata=metadata, raw=True)
    display(page_support(alt), metadata=LIVE_OUTPUT, raw=True)


def picture(figure: Figure, alt: str) -> tuple[dict, dict]:
    """`figure` as a display bundle (a PNG) and its metadata: its text and its width on a page; the figure is closed.

    Raises `ValueError` when `alt` is empty.
    """
    if not alt.strip():
        raise ValueError("A figure needs an alt text that says what can be seen in it.")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DOTS_PER_INCH, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)
    png = buffer.getvalue()
    width = int.from_bytes(png[16:20], "big") * _PAGE_DOTS_PER_INCH // _DOTS_PER_INCH  # the first number of a PNG
    bundle = {"image/png": base64.b64encode(png).decode(), "text/plain": alt}
    return bundle, {"image/png": {"alt": alt, "width": width}}


def play(draw: Callable[..., tuple[Figure, str]], below: Callable[..., object] | None = None, /, **controls) -> None:
    """An interactive figure: `draw(**values)` returns a figure and its text, `controls` are ipywidgets by argument name.

    `below(**values)`, where given, is anything that a notebook can show, such as a table; it stands below the picture.
    The picture of the starting values is an ordinary output, so it stays where widgets do not run.
    """
    played_controls.clear()
    played_controls.update(controls)
    box = show_controls(controls, f"Run this notebook to move the controls of the figure below: {in_words(controls)}.")

    def outputs() -> Iterator[tuple[object, dict]]:
        values = {name: control.value for name, control in controls.items()}
        figure, alt = draw(**values)
        bundle, metadata = picture(figure, alt)
        yield bundle, {"metadata": metadata, "raw": True}
        yield page_support(alt), {"metadata": LIVE_OUTPUT, "raw": True}
        if below:
            yield below(**values), {}

    places = [display(output, display_id=True, **options) for output, options in outputs()]
    redraw_lock = Lock()  # JupyterLab may deliver the events of two controls in two threads

    def redraw(_: dict) -> None:
        with redraw_lock, redrawing(box):
            for place, (output, options) in zip(places, outputs(), strict=True):
                place.update(output, **options)

    for control in controls.values():
        control.observe(redraw, names="value")


def show_controls(controls: dict, sentence: str) -> "VBox":
    """The controls where widgets run, in the box that is returned, and elsewhere the `sentence`."""
    from ipywidgets import VBox

    dress(controls)
    box = VBox(list(controls.values()))
    view = {"version_major": 2, "version_minor": 0, "model_id": box.model_id}
    # Plain text would be broken within words, as output of code is.
    display({_WIDGET_VIEW: view, "text/html": f"<p>{html.escape(sentence)}</p>", "text/plain": sentence}, raw=True)
    display(page_support(), metadata=LIVE_OUTPUT, raw=True)
    return box


def source(code: Callable | type | ModuleType) -> Markdown:
    """The package's own source of a function, method, class or whole file, to be read in the notebook.

    >>> from course_utils.optim import SGD
    >>> source(SGD.update).data.splitlines()[-2].strip()
    'parameter.add_(gradient, alpha=-group["lr"])'
    """
    name = code.__name__ if inspect.ismodule(code) else f"{code.__module__}.{code.__qualname__}"
    lines = textwrap.dedent(inspect.getsource(code)).rstrip()
    return Markdown(f"`{name}`\n\n```python\n{lines}\n```")


def difference(before: Callable, after: Callable) -> Markdown:
    """What turns the source of one function into another's, lines with − and +; for short ones, since all lines are shown."""
    old, new = (textwrap.dedent(inspect.getsource(function)).rstrip().splitlines() for function in (before, after))
    lines = [line.rstrip() for line in ndiff(old, new) if not line.startswith("?")]
    names = " → ".join(f"`{function.__module__}.{function.__qualname__}`" for function in (before, after))
    return Markdown(names + "\n\n```diff\n" + "\n".join(lines) + "\n```")


def svg_address(figure: Figure) -> str:
    """`figure` as an SVG in a `data:` address, for a page that loads nothing; equal figures give equal text."""
    buffer = io.BytesIO()
    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with plt.rc_context({"svg.hashsalt": "course"}):
        figure.savefig(buffer, format="svg", bbox_inches="tight", metadata=no_metadata)
    return f"data:image/svg+xml;base64,{base64.b64encode(buffer.getvalue()).decode()}"
