"""`course lab` without a name: the first page, and where its links lead, in a real browser."""

import shutil

import pytest
from real import LAB, ROOT, save_picture, served

pytestmark = [pytest.mark.browser, pytest.mark.timeout(200)]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("start") / "course"
    for name in ("notebooks", "exercises", "course_utils", "docs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
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
        now = tabs(page)
        for each in before:
            now.remove(each)
        assert opened in now[0]
