"""Moving the controls of the figure that a chapter shows to play with."""

from collections.abc import Mapping
from functools import reduce
from math import isclose, log
from typing import TYPE_CHECKING

from course_utils.errors import CourseError
from course_utils.viz import display

if TYPE_CHECKING:
    from ipywidgets import Widget


def press(values: Mapping[str, object], controls: Mapping | None = None) -> None:
    """Set `controls`, by default those of the figure played last, by argument name; `name.part` is a part of a control that
    is made of several.

    Raises `CourseError` if there is no such control, or the control cannot have the value.
    """
    for name, value in values.items():
        control = _control(name, display.played_controls if controls is None else controls)
        try:
            control.value = value
            stands = list(control.value) if isinstance(control.value, tuple) else control.value  # TOML has no tuples
            is_taken = stands == value and _is_on_a_step(control)
        except Exception:  # each kind of control refuses in its own way
            is_taken = False
        if not is_taken:
            raise CourseError(f"The control {name!r} cannot be set to {value!r}; choose one of its values.")


def instructions(values: Mapping[str, object]) -> str:
    """What to do with these controls of the figure played last, in words: `learning rate α: 0.001, steps: 100`."""

    def describe(name: str, value: object) -> str:
        control = _control(name, display.played_controls)
        labels = {option[1]: option[0] for option in getattr(control, "options", ()) if isinstance(option, tuple)}
        number = f"{value:,g}" if isinstance(value, int | float) else value
        label = ("off", "on")[value] if isinstance(value, bool) else labels.get(value, number)
        return f"{getattr(control, 'description', '') or name}: {label}"

    return ", ".join(describe(*setting) for setting in values.items())


def _is_on_a_step(control: "Widget") -> bool:
    """Whether a slider can be moved to where it stands; widgets hold back what is past an end, and nothing between steps."""
    if not (getattr(control, "step", None) and hasattr(control, "min")):
        return True
    position = log(control.value, control.base) if hasattr(control, "base") else control.value
    steps = (position - control.min) / control.step
    return isclose(steps, round(steps), abs_tol=1e-6)


def _control(name: str, controls: Mapping):
    first, *rest = name.split(".")
    try:
        return reduce(getattr, rest, controls[first])
    except (AttributeError, KeyError):
        names = ", ".join(controls) or "none"
        raise CourseError(f"The figure has no control {name!r}; its controls are: {names}.") from None
