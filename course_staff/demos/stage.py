"""What a demo's kernel needs to be shown by Voilà, to a room."""

from collections.abc import Callable, Mapping
from html import escape
from math import sqrt

from IPython import get_ipython
from IPython.display import display
from ipywidgets import HTML, ToggleButton
from matplotlib.figure import Figure
from matplotlib.text import Text

from course_staff.demos.controls import instructions, press
from course_utils.settings import set_variable
from course_utils.viz import display as display_room

# At 1280 by 720 pixels, the smallest screen that a room is shown, words leave a figure about 440 of the height, and it needs half
# of all: so it must be about twice as wide as high.
_NARROWEST = 2.2
_WIDEST = 2.7
_HEIGHT = 440
_LEAST_SIZE = 14.5  # pixels of a character
_DOTS_PER_INCH = 220  # a figure of the course is 7.6 inches wide, and a projector's picture 1920 dots


def live(scale: str) -> None:
    """From now on, a picture that is to be updated later is a widget, figures are made for a room, and the chapter that begins
    does so at `scale`.

    After Voilà has sent a page, the kernel can change only widgets on it; `viz.play` updates an ordinary output.
    """
    set_variable("COURSE_SCALE", scale)
    leave_bets_to_the_room()
    publisher = get_ipython().display_pub
    publisher.publish = _make_pictures_live(publisher.publish)
    save = Figure.savefig

    def save_for_a_room(figure: Figure, *arguments: object, **options: object) -> None:
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
    """A button that moves the controls of the figure played last, wherever they stand, and back to where they began.

    It stays with that figure: by the time it is pressed, later steps have played theirs.
    """
    figure = dict(display_room.played_controls)
    starting_values = {name: control.value for name, control in figure.items()}
    button = ToggleButton(description=instructions(values))

    def move(change: dict) -> None:
        for name, control in figure.items():
            control.value = starting_values[name]
        if change["new"]:
            press(values, figure)

    button.observe(move, "value")
    display(button)


def enlarge(figure: Figure) -> None:
    """Give `figure` a shape that fills half of a screen beneath some words, and letters that a room can read there.

    One that is higher than wide stays as it is; no demo should show it.
    """
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
    smallest = _LEAST_SIZE * 72 * height / _HEIGHT
    for text in figure.findobj(Text):
        text.set_fontsize(max(text.get_fontsize(), smallest))


def _make_pictures_live(publish: Callable) -> Callable:
    """`publish`, with a widget for a picture that will be updated; what else would be, such as a table below it, is left out."""
    pictures = {}

    def publish_live(
        data: dict, metadata: dict | None = None, *, transient: dict | None = None, update: bool = False, **rest
    ) -> None:
        display_id = (transient or {}).get("display_id")
        if display_id is None:
            publish(data, metadata, transient=transient, update=update, **rest)
        elif "image/png" in data:
            alt = escape(metadata["image/png"]["alt"], quote=True)
            picture = pictures.get(display_id) or HTML()
            picture.value = f'<img src="data:image/png;base64,{data["image/png"]}" alt="{alt}">'
            if display_id not in pictures:  # as it is, too: until the page has its widgets
                pictures[display_id] = picture
                publish({**picture._repr_mimebundle_(), **data}, metadata)

    return publish_live
