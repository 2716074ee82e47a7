"""Every test gets its own home folder and the smallest scale, whatever the machine's environment says."""

import kernels
import pytest

from course_utils import settings as settings_room


def pytest_configure(config):
    if getattr(config.option, "nbval_kernel_name", None) == kernels.NAME and not hasattr(config, "workerinput"):
        config.add_cleanup(kernels.offer())


def pytest_terminal_summary(terminalreporter):
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if "sandbox" in str(report.longrepr)]
    if skipped:
        terminalreporter.write_line(
            f"{len(skipped)} tests of strangers' code were skipped, for want of a sandbox: apt install bubblewrap.",
            yellow=True,
        )


@pytest.fixture(autouse=True)
def _own_home(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COURSE_SCALE", "smoke")
    monkeypatch.setenv("COURSE_DEVICE", "cpu")
    monkeypatch.setenv("COURSE_SEED", "0")
    monkeypatch.setenv("COURSE_STRICT", "0")
    monkeypatch.setenv("COURSE_READER", "1")
    settings_room.settings.cache_clear()
    yield
    settings_room.settings.cache_clear()
