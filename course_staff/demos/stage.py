"""What a demo's kernel needs to be shown by Voilà, to a room."""

from collections.abc import Mapping
from html import escape
from math import sqrt
from typing import TYPE_CHECKING

from IPython.display import display

from course_staff.demos.controls import instructions, press
from course_utils.settings import set_variable
from course_utils.viz import display as display_room

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BACK = "back to where it began"
_VIEW = "application/vnd.jupyter.widget-view+json"
# At 1280 by 720 pixels, the smallest screen that a room is shown, words leave a figure about 440 of the height, and it needs half
# of all: so it must be about twice as wide as high.
_NARROWEST, _WIDEST, _HEIGHT, _LETTERS = 2.2, 2.7, 440, 14.5
_DOTS_PER_INCH = 220  # a figure of the course is 7.6 inches wide, and a projector's picture 1920 dots


def live(scale: str) -> None:
    """From now on, what is displayed to be updated later is a widget, figures are made for a room, and the chapter that begins
    does so at `scale`.

    Once a page of Voilà stands, only widgets hear from the kernel; `viz.play` updates an ordinary output.
    """
    from IPython import get_ipython
    from matplotlib.figure import Figure

    set_variable("COURSE_SCALE", scale)
    leave_bets_to_the_room()
    publisher = get_ipython().display_pub
    publisher.publish = _Updatable(publisher.publish)
    save = Figure.savefig

    def save_for_a_room(figure, *arguments, **options):
        enlarge(figure)
        return save(figure, *arguments, **{**options, "dpi": _DOTS_PER_INCH})

    Figure.savefig = save_for_a_room


def leave_bets_to_the_room() -> None:
    """From now on, what the chapter bets and settles is shown nowhere: a class has not made these bets.

    To be called before the chapter imports `bet` and `settle`.
    """
    from course_utils import bets

    bets.bet = lambda name, default, unit="", question="": float(default)
    bets.settle = lambda name, truth: None


def offer(values: Mapping[str, object]) -> None:
    """A button that moves the controls of the figure played last, wherever they stand; pressed again it brings them back.

    It stays with that figure: by the time it is pressed, later steps have played theirs.
    """
    from ipywidgets import Button

    figure = dict(display_room.played)
    button = Button(description=instructions(values), layout={"width": "auto", "height": "auto"})
    begun = {name: control.value for name, control in figure.items()}
    wanted = []

    def move(_) -> None:
        back = wanted == [control.value for control in figure.values()]
        for name, control in figure.items():
            control.value = begun[name]
        if not back:
            press(values, figure)
            wanted[:] = [control.value for control in figure.values()]

    def say(_) -> None:
        button.description = _BACK if wanted == [control.value for control in figure.values()] else instructions(values)

    button.on_click(move)
    button.on_click(say)
    for control in figure.values():
        control.observe(say, names="value")
    display(button)


def enlarge(figure: "Figure") -> None:
    """Give `figure` a shape that fills half of a screen beneath some words, and letters that a room can read there.

    One that is higher than wide stays as it is; no demo should show it.
    """
    from matplotlib.text import Text

    width, height = figure.get_size_inches()
    shape = width / height
    if shape < 1:
        return  # a page to be printed: its lines would fall over each other
    if shape < _NARROWEST:
        factor = sqrt(_NARROWEST / shape)
        width, height = width * factor, height / factor
    elif shape > _WIDEST:
        height = width / _WIDEST
    figure.set_size_inches(width, height)
    figure.draw_without_rendering()  # the axes choose their ticks
    least = _LETTERS * 72 * height / _HEIGHT
    for text in figure.findobj(Text):
        text.set_fontsize(max(text.get_fontsize(), least))


class _Updatable:
    def __init__(self, publish):
        self._publish = publish
        self._places = {}

    def __call__(self, data: dict, metadata: dict | None = None, *, transient=None, update=False, **rest) -> None:
        place = (transient or {}).get("display_id")
        if place is None:
            self._publish(data, metadata, transient=transient, update=update, **rest)
        elif update and place in self._places:
            self._places[place].children = [_as_widget(data, metadata)]
        else:
            self._places[place] = self._make_view(data, metadata or {})

    def _make_view(self, data: dict, metadata: dict):
        """As a widget, and as it is, for a page without a kernel."""
        from ipywidgets import VBox

        box = VBox([_as_widget(data, metadata)])
        box.add_class("picture")
        view = {"version_major": 2, "version_minor": 0, "model_id": box.model_id}
        kind = "picture" if "image/png" in data else "also"
        self._publish({**data, _VIEW: view}, {**metadata, "demo": kind})
        return box


def _as_widget(data: dict, metadata: dict | None):
    """A picture with its description, or anything else as the page renders it."""
    from ipywidgets import HTML, Output

    if "image/png" not in data:
        return Output(outputs=({"output_type": "display_data", "data": data, "metadata": metadata or {}},))
    about = (metadata or {}).get("image/png", {})
    width, alt = about.get("width", ""), escape(about.get("alt", ""), quote=True)
    return HTML(f'<img src="data:image/png;base64,{data["image/png"]}" alt="{alt}" width="{width}">')
