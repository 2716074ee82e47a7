"""One browser for each file of tests."""

import pytest
from real import CHROMIUM, QUIET


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("no chromium or chrome is installed to drive")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(QUIET), timeout=60_000)
        yield browser
        browser.close()
