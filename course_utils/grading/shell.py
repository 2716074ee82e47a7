"""The IPython shell in which a learner's notebook is run without Jupyter: whatever a notebook asks of its window does nothing."""

from contextlib import suppress

import matplotlib
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config


def notebook_shell() -> "NotebookShell":
    """The process's own shell; it remembers no history."""
    matplotlib.use("agg")  # `plt.show()` would wait until somebody closes the window
    return NotebookShell.instance(config=Config({"HistoryManager": {"enabled": False}}))


class NotebookShell(InteractiveShell):
    """A shell that takes the magics of Jupyter's kernel, and no harm from those that are not installed here."""

    def enable_gui(self, gui: str | None = None) -> None:
        """There is no window."""

    def enable_matplotlib(self, gui: str | None = None) -> tuple[str | None, str]:
        """Figures are made and never shown, whichever of Jupyter's ways to show them is requested."""
        return gui, "agg"

    def ask_exit(self) -> None:
        """`exit` in a cell ends a kernel; the cells below are run all the same."""

    def run_line_magic(self, magic_name: str, line: str, _stack_depth: int = 1):
        """The magic's result; None for one that is not known here, and for an extension that is not installed."""
        if self.find_line_magic(magic_name) is None:
            return None
        with suppress(*((ImportError,) if magic_name in ("load_ext", "reload_ext") else ())):
            return super().run_line_magic(magic_name, line, _stack_depth + 1)
