"""What several figures share: units of an axis, the parts of a legend."""

import matplotlib.pyplot as plt

from course_utils.units import GiB, KiB, MiB
from course_utils.viz.style import COLORS

_COLUMNS = 5  # the most names of kinds that stand beside each other in the width of a page


def byte_unit(largest: float) -> tuple[str, int]:
    """Name and bytes of the unit for an axis that reaches to `largest` bytes."""
    return next(((name, size) for name, size in (("GiB", GiB), ("MiB", MiB)) if largest >= size), ("KiB", KiB))


def patches(*entries: tuple[str, str]) -> tuple[list, list[str]]:
    """Handles and labels of a legend, from pairs of label and color name."""
    return [plt.Rectangle((0, 0), 1, 1, color=COLORS[color]) for _, color in entries], [label for label, _ in entries]


def legend_columns(count: int) -> int:
    """Columns for `count` entries: one row where they fit, else rows about equally long."""
    rows = -(-count // _COLUMNS)
    return -(-count // rows)
