"""`course lab` without a name: the first page, and where its links lead, in a real browser."""

import shutil
import subprocess
import sys

import pytest
from real import LAB, copy_course, save_picture, served
from test_lab import url_of

from course_utils.settings import environment_for_child

pytestmark = [pytest.mark.browser, pytest.mark.timeout(200)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("start") / "course"


@pytest.fixture(scope="module")
def address(folder):
    copy_course(folder, "notebooks", "exercises", "course_utils", "docs")
    command = ("-m", "course_utils.cli", "lab", "--port", "0")
    with served(*command, address=LAB, home=folder.parent, cwd=folder) as address:
        yield address


@pytest.fixture
def page(browser, address):
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    page.goto(address)
    page.wait_for_selector(".jp-MarkdownViewer h1", timeout=60_000)
    yield page
    page.close()


def tabs(page) -> list[str]:
    return [text for text in page.locator("#jp-main-dock-panel .lm-TabBar-tabLabel").all_inner_texts() if text]


def test_the_address_opens_the_first_page_and_nothing_else(page):
    assert tabs(page) == ["start.md"]
    assert "Welcome" in page.locator(".jp-MarkdownViewer").inner_text()
    assert page.locator(".jp-Dialog").all_inner_texts() + page.locator(".jp-toast-message").all_inner_texts() == []
    for width in (800, 1280, 1920):
        page.set_viewport_size({"width": width, "height": 1000})
        page.wait_for_timeout(300)
        save_picture(page, f"start-{width}")


def test_its_links_open_the_chapter_its_exercises_and_the_glossary_beside_it(page):
    for name, opened in (("Start here", "00_start_here"), ("exercises", "00_"), ("glossary", "glossary.md")):
        page.locator(".lm-TabBar-tabLabel", has_text="start.md").click()
        before = tabs(page)
        page.locator(".jp-MarkdownViewer:visible a", has_text=name).first.click()
        for _ in range(100):
            if len(tabs(page)) > len(before):
                break
            page.wait_for_timeout(100)
        new_tabs = tabs(page)
        for tab in before:
            new_tabs.remove(tab)
        assert opened in new_tabs[0]


def test_a_term_of_a_chapter_leads_to_its_entry(address, page):
    """The glossary opens to be read, at the term."""
    from playwright.sync_api import expect

    page.goto(url_of(address, "/lab/workspaces/term/tree/notebooks/00_start_here.ipynb"))
    # A kernel that still starts outlives Ctrl-C.
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)
    link = page.locator('.jp-MarkdownOutput a[href*="glossary.md"]', has_text="gradients").first
    expect(link).to_have_attribute(
        "title", "The derivative of the loss with respect to a parameter: one number for each.", timeout=90_000
    )
    link.click()
    entry = page.locator('.jp-MarkdownViewer h3[data-jupyter-id="gradient"]')
    expect(entry).to_be_in_viewport(timeout=30_000)
    assert page.locator(".jp-FileEditor").count() == 0, "it is shown, not opened to be edited"


def test_who_types_it_again_is_told_where_it_is_open_and_nothing_is_merged(address, folder, page):
    """A later version of the course lies there, and the open windows may hold what is not saved. The page is renewed."""
    own_copy = folder.parent / "home" / "my-course"
    handed = sorted((own_copy / "notebooks").glob("*.ipynb"))
    (own_copy / "start.md").write_bytes((own_copy / "start.md").read_bytes().replace(b"Updated 20", b"Updated 19"))
    shutil.copy(own_copy / "start.md", own_copy / ".handed-out")
    before = [path.read_bytes() for path in handed]
    newer = folder / "notebooks" / handed[0].name
    newer.write_text(newer.read_text().replace("Predict the cost", "Cost beforehand"))
    environment = environment_for_child(JUPYTER_CONFIG_DIR=str(folder.parent), COURSE_HOME=str(folder.parent / "home"))
    command = [sys.executable, "-m", "course_utils.cli", "lab", "--no-browser"]
    for arguments, path in ((), "start.md"), (("01",), "notebooks/01_autodiff.ipynb"):
        process = subprocess.run(
            [*command, *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=60
        )
        assert process.returncode == 0, process.stderr
        assert f"Your course is already open: {address.replace('start.md', path)}\n" in process.stdout
        assert "choose File → Shut Down" in process.stdout
    assert "Updated 20" in (own_copy / "start.md").read_text(encoding="utf-8")
    page.locator(".lm-TabBar-tabLabel", has_text="start.md").click()
    page.get_by_role("menuitem", name="File", exact=True).click()
    page.locator(".lm-Menu-itemLabel", has_text="Reload Markdown File from Disk").click()
    page.locator(".jp-MarkdownViewer small", has_text="Updated 20").wait_for(timeout=20_000)
    assert [text for text in page.locator(".jp-Dialog").all_inner_texts() if text] == []
    assert [path.read_bytes() for path in handed] == before
