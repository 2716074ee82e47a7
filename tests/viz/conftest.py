import pytest
from figures import _close_figures, _letters_are_readable  # noqa: F401  (fixtures of every test here)

from course_utils.viz import display as display_module


@pytest.fixture
def shown(monkeypatch):
    """Everything that was displayed or updated, as (bundle, metadata)."""
    seen = []

    class Handle:
        def update(self, bundle, metadata=None, raw=False):
            seen.append((bundle, metadata))

    def display(bundle, metadata=None, raw=False, display_id=None):
        seen.append((bundle, metadata))
        return Handle() if display_id else None

    monkeypatch.setattr(display_module, "display", display)
    return seen
