"""A link into the glossary, followed in JupyterLab: the page opens to be read, at the term."""

import shutil
import subprocess
import sys

import pytest
from test_lab import CHROMIUM, QUIET, ROOT, first_address, stop

from course_utils.settings import environment_for_child

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


@pytest.fixture
def address(tmp_path):
    """The address that `course lab` prints in a copy of the course."""
    for name in ("notebooks", "course_utils", "docs"):
        shutil.copytree(ROOT / name, tmp_path / "course" / name, ignore=shutil.ignore_patterns("__pycache__"))
    home = {"JUPYTER_CONFIG_DIR": str(tmp_path), "COURSE_HOME": str(tmp_path / "home")}
    server = subprocess.Popen(
        [sys.executable, "-m", "course_utils.cli", "lab", "--port", "0", "--no-browser"],
        cwd=tmp_path / "course",
        env=environment_for_child(CI="1", **home),
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        yield first_address(server)
    finally:
        stop(server)


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium or chrome is installed to drive")
def test_a_term_leads_to_its_entry(address):
    from playwright.sync_api import expect, sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(QUIET), timeout=60_000)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(address)
        link = page.locator('.jp-MarkdownOutput a[href*="glossary.md"]', has_text="gradients").first
        expect(link).to_have_attribute(
            "title", "The derivative of the loss by a parameter: one number for each.", timeout=90_000
        )
        link.click()
        entry = page.locator('.jp-MarkdownViewer h3[data-jupyter-id="gradient"]')
        expect(entry).to_be_in_viewport(timeout=30_000)
        assert page.locator(".jp-FileEditor").count() == 0, "it is shown, not opened to be edited"
        browser.close()
