"""What a demo's kernel needs to be shown by Voilà."""

from collections.abc import Mapping
from html import escape

from IPython.display import display

from course_staff.demos.controls import instructions, press
from course_utils.settings import set_variable
from course_utils.viz import display as display_room


def live(scale: str) -> None:
    """From now on, what is displayed to be updated later is a widget, and the chapter that begins does so at `scale`.

    Once a page of Voilà stands, only widgets hear from the kernel; `viz.play` updates an ordinary output.
    """
    from IPython import get_ipython

    set_variable("COURSE_SCALE", scale)
    publisher = get_ipython().display_pub
    publisher.publish = _Updatable(publisher.publish)


def offer(values: Mapping[str, object]) -> None:
    """A button that moves the controls of the figure played last, for those who would rather not drag.

    It stays with that figure: by the time it is pressed, later steps have played theirs.
    """
    from ipywidgets import Button

    figure = dict(display_room.played)
    button = Button(description=instructions(values), layout={"width": "auto", "height": "auto"})
    button.on_click(lambda _: press(values, figure))
    display(button)


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
            self._places[place] = self._shown(data, metadata)

    def _shown(self, data: dict, metadata: dict | None):
        from ipywidgets import VBox

        box = VBox([_as_widget(data, metadata)])
        box.add_class("picture")
        display(box)
        return box


def _as_widget(data: dict, metadata: dict | None):
    """A picture with its description, or anything else as the page renders it."""
    from ipywidgets import HTML, Output

    if "image/png" not in data:
        return Output(outputs=({"output_type": "display_data", "data": data, "metadata": metadata or {}},))
    about = (metadata or {}).get("image/png", {})
    width, alt = about.get("width", ""), escape(about.get("alt", ""), quote=True)
    return HTML(f'<img src="data:image/png;base64,{data["image/png"]}" alt="{alt}" width="{width}">')
