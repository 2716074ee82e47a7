import matplotlib.pyplot as plt
import pytest

from course_utils.viz import display as display_module


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


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
