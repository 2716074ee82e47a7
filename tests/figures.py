"""Fixtures for tests that draw: figures are closed, and their letters can be read. Imported by the conftest of a folder."""

import matplotlib.pyplot as plt
import pytest
from colors import faint_texts

from course_utils.viz import parts

# Figures of a test, some of which draw hundreds.
_MAX_FIGURES = 5


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


@pytest.fixture(autouse=True)
def letters_are_readable(monkeypatch):
    """Every figure that a test lets the course draw has letters of 4.5 to 1 against what is behind them (WCAG 2.2, 1.4.3)."""
    figures = []

    class KeptPage(parts.Page):
        def __init__(self, *arguments, **shape):
            super().__init__(*arguments, **shape)
            figures.append(self)

    monkeypatch.setattr(parts, "Page", KeptPage)
    yield
    faint = [(text, round(ratio, 2)) for figure in figures[:_MAX_FIGURES] for text, ratio in faint_texts(figure)]
    assert not faint, faint


def title(axes) -> str:
    """The title where the style puts it, which depends on whether a test before set the course's."""
    return axes.get_title(loc="left") or axes.get_title()
