"""Every test gets its own home folder and the smallest scale, whatever the machine's environment says."""

import gc
import shutil
import sys

import kernels
import pytest

from course_utils import settings as settings_room

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip


def pytest_configure(config):
    if getattr(config.option, "nbval_kernel_name", None) == kernels.NAME and not hasattr(config, "workerinput"):
        config.add_cleanup(kernels.offer())


def pytest_collection_finish():
    """All that was imported stays: no search for garbage, with which each measurement begins, need look through it.

    And a process of tests runs each dry run once, however many come between.
    """
    gc.collect()
    gc.freeze()
    if trial := sys.modules.get("course_utils.memory.formulas.trial"):
        trial.MAX_RECALLED_TRIALS = 10_000


def pytest_terminal_summary(terminalreporter):
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if "sandbox" in str(report.longrepr)]
    if skipped:
        terminalreporter.write_line(
            f"{len(skipped)} tests of strangers' code were skipped, for want of a sandbox: apt install bubblewrap.",
            yellow=True,
        )


@pytest.fixture(scope="session", autouse=True)
def _fork_ranks_from_here(tmp_path_factory):
    """Ranks find every module of the tests imported; else each imports the one that its work is in, for a second or more.

    And no collection of garbage looks through those modules again: each measurement of memory begins with one.
    """
    gc.collect()
    gc.freeze()
    torch = sys.modules.get("torch")
    # With several threads, a module that computed while it was imported has left some, and a fork would wait for them.
    if torch is None or torch.get_num_threads() > 1:
        return
    from course_utils.distributed.launch import fork_server

    with pytest.MonkeyPatch.context() as monkeypatch:
        _set_environment(monkeypatch, tmp_path_factory.mktemp("ranks"))
        fork_server()


@pytest.fixture(autouse=True)
def _own_home(tmp_path, monkeypatch):
    _set_environment(monkeypatch, tmp_path)
    settings_room.settings.cache_clear()
    yield
    settings_room.settings.cache_clear()


@pytest.fixture
def restart():
    """What a new process knows: nothing but what is on disk; also to be called in the middle of a story."""
    from course_utils.capstone.kept import CHOICES
    from course_utils.desk.bets import BETS
    from course_utils.desk.ledger import ROWS

    def forget():
        for section in (BETS, ROWS, CHOICES):
            section.in_memory.clear()

    forget()
    yield forget
    forget()


@pytest.fixture(autouse=True)
def _no_overrides_of_bitsandbytes():
    """Trainer has an embedding's 8-bit states kept in 32 bits; bitsandbytes then does so for any parameter in its place."""
    yield
    if bitsandbytes := sys.modules.get("bitsandbytes"):
        bitsandbytes.optim.GlobalOptimManager._instance = None


@pytest.fixture(scope="module")
def browser():
    """One for each file of tests."""
    if CHROMIUM is None:
        pytest.skip("no chromium or chrome is installed to drive")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(QUIET), timeout=60_000)
        yield browser
        browser.close()


def _set_environment(monkeypatch, folder):
    monkeypatch.setenv("COURSE_HOME", str(folder / "home"))
    monkeypatch.setenv("COURSE_SCALE", "smoke")
    monkeypatch.setenv("COURSE_DEVICE", "cpu")
    monkeypatch.setenv("COURSE_SEED", "0")
    monkeypatch.setenv("COURSE_STRICT", "0")
    monkeypatch.setenv("COURSE_READER", "1")
