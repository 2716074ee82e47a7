"""Chapters executed without a browser, each in a fresh kernel of this very Python."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from subprocess import DEVNULL
from typing import TYPE_CHECKING

from course_staff.notebooks.files import make_folder, read_notebook, write_notebook
from course_utils.errors import CourseError
from course_utils.settings import environment_for_child

if TYPE_CHECKING:
    from jupyter_client import AsyncKernelManager
    from nbclient import NotebookClient
    from nbformat import NotebookNode

CELL_TIMEOUT = 600
_START_TIMEOUT = 120


def execute_chapter(path: Path, scale: str | None = None, timeout: float = CELL_TIMEOUT) -> "NotebookNode":
    """The notebook at `path` as it is after a run from top to bottom, with its own folder as working directory.

    `scale` is a name from `settings.SCALES`, or None for what the environment says; `timeout` is in seconds, per cell.
    Shows a progress bar. Raises `CourseError`, naming the cell, if a cell fails or takes too long, or the kernel dies.
    """
    notebook = read_notebook(path)
    environment = environment_for_child(COURSE_READER="0", **({"COURSE_SCALE": scale} if scale else {}))
    progress = _Progress(path, notebook)
    with progress.bar, _explain_failure(path, progress, timeout), _client(notebook, path, timeout, progress) as client:
        client.start_new_kernel(env=environment, stderr=DEVNULL)  # past the notebook, it only writes of its own end
        client.start_new_kernel_client()
        client.execute()
    return notebook


def run_chapters(
    paths: list[Path], into: Path, scale: str | None = None, timeout: float = CELL_TIMEOUT
) -> Iterator[Path]:
    """Execute the notebooks in turn, yielding where each executed copy lies in `into`; stops at the first that fails.

    Raises `CourseError` before the first of them if nothing can be written to `into`.
    """
    make_folder(into)
    for path in paths:
        copy = into / path.name
        write_notebook(execute_chapter(path, scale, timeout), copy)
        yield copy


class _Progress:
    """A bar of how far a chapter has come; `cell` is the number of the cell at work, or 0 before the first."""

    def __init__(self, path: Path, notebook: "NotebookNode"):
        from tqdm import tqdm

        total = sum(cell.cell_type == "code" and bool(cell.source.strip()) for cell in notebook.cells)
        self.cell, self.bar = 0, tqdm(total=total, desc=path.stem, unit="cell", file=sys.stderr)

    def start(self, cell_index: int, **_) -> None:
        self.cell = cell_index + 1

    def step(self, **_) -> None:
        self.bar.update()


@contextmanager
def _client(notebook: "NotebookNode", path: Path, timeout: float, progress: _Progress) -> Iterator["NotebookClient"]:
    """Yields a client that executes `notebook` in a kernel of its own; ends that kernel afterwards, also after an error."""
    from jupyter_client.utils import run_sync
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, DeadKernelError

    manager = _kernel_manager()
    client = NotebookClient(
        notebook,
        km=manager,
        timeout=ceil(timeout),  # older ones of nbclient want a whole number
        startup_timeout=_START_TIMEOUT,
        coalesce_streams=True,
        record_timing=False,
        resources={"metadata": {"path": str(path.parent.absolute())}},
        on_cell_execute=progress.start,
        on_cell_executed=progress.step,
    )
    try:
        yield client
    except (DeadKernelError, CellExecutionError) as error:
        # On Ctrl-C nbclient shuts the kernel down, and then finds it dead, or the kernel still says how its cell ended.
        if manager.shutting_down or getattr(error, "ename", "") == "KeyboardInterrupt":
            raise KeyboardInterrupt from None
        raise
    finally:
        if client.kc is not None:
            client.kc.stop_channels()
        run_sync(manager.shutdown_kernel if run_sync(manager.is_alive)() else manager.cleanup_resources)()


def _kernel_manager() -> "AsyncKernelManager":
    """A manager of kernels of this Python, whatever other kernel is registered under the name `python3`."""
    from jupyter_client import AsyncKernelManager
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager

    class OwnKernel(KernelSpecManager):
        def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
            command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", "--log-level=ERROR"]
            return KernelSpec(argv=command, display_name="Python 3", language="python")

    return AsyncKernelManager(kernel_name="python3", kernel_spec_manager=OwnKernel())


@contextmanager
def _explain_failure(path: Path, progress: _Progress, timeout: float) -> Iterator[None]:
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    try:
        yield
    except CellTimeoutError:
        raise CourseError(
            f"{path.name}, cell {progress.cell}, took more than {timeout:g} s; choose a smaller --scale or a longer --timeout."
        ) from None
    except CellExecutionError as error:
        reason = " ".join(f"{error.ename}: {error.evalue}".split())
        raise CourseError(f"{path.name}, cell {progress.cell}, failed with {reason}") from None
    except DeadKernelError:
        raise CourseError(
            f"{path.name}: the kernel died in cell {progress.cell}, most often for want of memory; choose a smaller --scale."
        ) from None
    except (RuntimeError, OSError) as error:
        raise CourseError(f"{path.name}: no kernel could be started ({error}); run `course doctor`.") from error
