"""The IPython shell that runs a learner's notebook without Jupyter; requests to Jupyter's window do nothing."""

from contextlib import suppress

import matplotlib
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config


def notebook_shell() -> "NotebookShell":
    """The process's only shell; it stores no history."""
    matplotlib.use("agg")  # `plt.show()` would wait until somebody closes the window
    return NotebookShell.instance(config=Config({"HistoryManager": {"enabled": False}}))


class NotebookShell(InteractiveShell):
    """A shell that ignores magics and extensions that are not installed."""

    def enable_gui(self, gui: str | None = None) -> None:
        """There is no window."""

    def enable_matplotlib(self, gui: str | None = None) -> tuple[str | None, str]:
        """Figures are made and never shown, whichever backend is requested."""
        return gui, "agg"

    def ask_exit(self) -> None:
        """`exit` in a cell ends a kernel; the cells below are run all the same."""

    def run_line_magic(self, magic_name: str, line: str, _stack_depth: int = 1) -> object:
        """The magic's result; None for one that is unknown, and for an extension that is not installed."""
        if self.find_line_magic(magic_name) is None:
            return None
        with suppress(*((ImportError,) if magic_name in ("load_ext", "reload_ext") else ())):
            return super().run_line_magic(magic_name, line, _stack_depth + 1)
