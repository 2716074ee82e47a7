"""Catches what a test displays, and checks the figures that it draws."""

import pytest
from figures import close_figures, letters_are_readable  # noqa: F401  (fixtures of every test here)

from course_utils.settings import LIVE_OUTPUT
from course_utils.viz import display as display_module


class Outputs(list):
    """Everything that was displayed or updated, as (bundle, metadata); what is never stored is in `live`."""

    def __init__(self):
        super().__init__()
        self.live = []

    def take(self, bundle, metadata):
        (self.live if metadata == LIVE_OUTPUT else self).append((bundle, metadata))


@pytest.fixture
def outputs(monkeypatch):
    seen = Outputs()

    class Handle:
        def update(self, bundle, metadata=None, raw=False):
            seen.take(bundle, metadata)

    def display(bundle, metadata=None, raw=False, display_id=None):
        seen.take(bundle, metadata)
        return Handle() if display_id else None

    monkeypatch.setattr(display_module, "display", display)
    return seen
