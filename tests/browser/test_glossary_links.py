"""A link into the glossary, followed in JupyterLab: the page opens to be read, at the term."""

import shutil

import pytest
from real import LAB, ROOT, served

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


@pytest.fixture
def address(tmp_path):
    """The address that `course lab` prints in a copy of the course."""
    for name in ("notebooks", "course_utils", "docs"):
        shutil.copytree(ROOT / name, tmp_path / "course" / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = ("-m", "course_utils.cli", "lab", "00", "--port", "0", "--no-browser")
    with served(*command, address=LAB, home=tmp_path, cwd=tmp_path / "course") as address:
        yield address


def test_a_term_leads_to_its_entry(address, browser):
    from playwright.sync_api import expect

    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(address)
    # A kernel that still starts outlives Ctrl-C.
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)
    link = page.locator('.jp-MarkdownOutput a[href*="glossary.md"]', has_text="gradients").first
    expect(link).to_have_attribute(
        "title", "The derivative of the loss by a parameter: one number for each.", timeout=90_000
    )
    link.click()
    entry = page.locator('.jp-MarkdownViewer h3[data-jupyter-id="gradient"]')
    expect(entry).to_be_in_viewport(timeout=30_000)
    assert page.locator(".jp-FileEditor").count() == 0, "it is shown, not opened to be edited"
    page.close()
