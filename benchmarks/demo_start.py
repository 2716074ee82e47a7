"""Seconds until a demo stands in the browser: started for the first time, started again, and loaded again.

`python -m benchmarks.demo_start 03 10` needs Playwright with a Chromium, and a machine with nothing else to do.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from course_utils.settings import environment_for_child

ROUNDS = 5
_STEP, _SHOWN = ".step:not([hidden]) h2", "body[data-ready], body[data-recalled]"
_THROUGH, _LIVE = "body[data-ready]", ".step .widget-button"


def measure(name: str, browser) -> dict[str, list[float]]:
    """By what is waited for: seconds, once for the first start, and `ROUNDS` times for the others."""
    first, again, reload = [], [], []
    with TemporaryDirectory() as home:
        for round_ in range(1 + ROUNDS):
            with _open(name, home, browser) as (page, began):
                times = [time.monotonic() - began for _ in _wait_for(page, _STEP, _SHOWN, _THROUGH, _LIVE)]
                (again if round_ else first).append(times)
                began = time.monotonic()
                page.reload(wait_until="commit")
                reload.append([time.monotonic() - began for _ in _wait_for(page, _SHOWN, _LIVE)])
    (step, every, _, live), *_ = first
    return {
        "first start: a step": [step],
        "first start: every step": [every],
        "first start: figures move": [live],
        "second start: every step": [every for _, every, _, _ in again],
        "second start: figures move": [live for _, _, _, live in again],
        "reload: every step": [every for every, _ in reload],
        "reload: figures move": [live for _, live in reload],
    }


@contextmanager
def _open(name: str, home: str, browser) -> Iterator[tuple]:
    """The page of a server that is started now, and when that was."""
    began = time.monotonic()
    server = subprocess.Popen(
        [sys.executable, "-m", "course_utils.cli", "demo", name, "--no-browser"],
        env=environment_for_child(COURSE_HOME=home), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    try:
        address = server.stdout.readline().split(" (Ctrl-C")[0].rpartition(" ")[2]
        page.goto(address, wait_until="commit")
        yield page, began
    finally:
        page.close()
        server.send_signal(signal.SIGINT)
        server.wait()


def _wait_for(page, *selectors: str) -> Iterator[str]:
    for selector in selectors:
        page.wait_for_selector(selector, state="attached", timeout=300_000)
        yield selector


def main(names: list[str]) -> None:
    """A table row for each demo and what is waited for: median, and least to most."""
    from playwright.sync_api import sync_playwright

    system = Path("/usr/bin/chromium")
    print("| demo | waited for | seconds, median | least to most |\n|---|---|---:|---:|")
    with sync_playwright() as playwright:
        path = str(system) if system.exists() else None
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for name in names:
            for what, seconds in measure(name, browser).items():
                spread = f"{min(seconds):.1f} to {max(seconds):.1f}" if len(seconds) > 1 else ""
                print(f"| {name} | {what} | {median(seconds):.1f} | {spread} |", flush=True)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:] or ["03"])
