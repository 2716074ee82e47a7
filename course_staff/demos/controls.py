"""Moving the controls of the figure that a chapter shows to play with."""

from collections.abc import Mapping
from math import isclose, log

from course_utils.errors import CourseError
from course_utils.viz import display


def press(values: Mapping[str, object], controls: Mapping | None = None) -> None:
    """Set `controls`, by default those of the figure played last, by argument name; `name.part` is a part of a control that
    is made of several.

    Raises `CourseError` where there is no such control, or the value is none of its own.
    """
    for name, value in values.items():
        control = _control(name, display.played if controls is None else controls)
        try:
            control.value = value
        except Exception as error:  # each kind of control refuses in its own way
            raise CourseError(
                f"The control {name!r} does not take {value!r} ({error}); choose a value that it has."
            ) from None
        stands = list(control.value) if isinstance(control.value, tuple) else control.value  # TOML has no tuples
        if stands != value or not _is_on_a_step(control):
            raise CourseError(f"The control {name!r} does not take {value!r}; choose a value at which it can stand.")


def instructions(values: Mapping[str, object]) -> str:
    """What to do with these controls, in words: `learning rate α: 0.001, steps: 100`."""
    return ", ".join(_describe(name, value) for name, value in values.items())


def _is_on_a_step(control) -> bool:
    """Whether a slider can be moved to where it stands; widgets hold back what is past an end, and nothing between steps."""
    if not (getattr(control, "step", None) and hasattr(control, "min")):
        return True
    place = log(control.value, control.base) if hasattr(control, "base") else control.value
    steps = (place - control.min) / control.step
    return isclose(steps, round(steps), abs_tol=1e-6)


def _control(name: str, controls: Mapping):
    first, *rest = name.split(".")
    if first not in controls:
        names = ", ".join(controls) or "none"
        raise CourseError(f"The figure has no control {first!r}; its controls are: {names}.")
    control = controls[first]
    for part in rest:
        if not hasattr(control, part):
            raise CourseError(f"The control {first!r} has no part {part!r}; look where it is made.")
        control = getattr(control, part)
    return control


def _describe(name: str, value: object) -> str:
    control = _control(name, display.played)
    options = [option for option in getattr(control, "options", ()) if isinstance(option, tuple)]
    if isinstance(value, bool):
        words = "on" if value else "off"
    else:
        plain = f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else value
        words = {of: label for label, of in options}.get(value, plain)
    return f"{getattr(control, 'description', '') or name}: {words}"
