"""`course demo` in a real browser: paged to the end and back, every button pressed, nothing cut off or loaded from elsewhere."""

import re
import time

import pytest
from real import DEMO, ROOT, save_picture, served

from course_staff.demos import demos_in, read_demo
from course_staff.demos.presentation import write_presentation
from course_utils.chapters import find_place

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
pytest.importorskip("voila")

DEMOS = {path.stem: path for path in demos_in(find_place(ROOT).notebooks)}
ALWAYS, PAGED = "07_gradient_checkpointing", "03_adamw"
SIZES = [(800, 700), (1024, 768), (1400, 900)]
SERVE_ALL = """
import sys
from pathlib import Path
from course_staff.demos import server
port = server.free_port(0)
print(f"http://127.0.0.1:{port}/", flush=True)
server.serve(Path(sys.argv[1]), port, browser=False)
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """What `course demo 03 --no-browser` prints."""
    command = ("-m", "course_utils.cli", "demo", "03", "--no-browser")
    with served(*command, address=DEMO, home=tmp_path_factory.mktemp("demo")) as address:
        yield address


@pytest.fixture(scope="module")
def of_all(tmp_path_factory):
    """One server of all demos."""
    folder = tmp_path_factory.mktemp("demos")
    for path in DEMOS.values():
        write_presentation(read_demo(path), folder)
    with served("-c", SERVE_ALL, str(folder), address=DEMO, home=tmp_path_factory.mktemp("all")) as address:
        yield address


@pytest.fixture
def open_page(browser):
    """Opens the presentation at an address, and gives the page when it is ready; its kernel ends with the page."""
    pages = []

    def open_page(address, scheme="light", asked=None):
        page = browser.new_page(viewport={"width": 1400, "height": 900}, color_scheme=scheme)
        pages.append(page)
        if asked is not None:
            page.on("request", lambda request: asked.append(request.url))
        _go(page, address)
        page.wait_for_selector("body[data-ready]", timeout=180_000)
        page.wait_for_selector(".step .jupyter-widgets", state="attached", timeout=60_000)
        return page

    yield open_page
    for page in pages:
        page.close()


def _go(page, address):
    deadline = time.monotonic() + 60
    while True:  # the address is printed a moment before the server listens
        try:
            return page.goto(address, wait_until="commit", timeout=120_000)
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def test_a_demo_is_paged_through_and_its_figure_moves(address, open_page):
    from playwright.sync_api import expect

    demo, asked = read_demo(DEMOS[PAGED]), []
    count = len(demo.steps)
    page = open_page(address, asked=asked)
    for number, step in enumerate(demo.steps, start=1):
        expect(page.locator("#where")).to_have_text(f"Step {number} of {count}")
        expect(page.locator(".step:visible h2")).to_have_text(step.title)
        if step.covered:
            uncover(page)
        if step.click:
            move_by_keyboard(page)
        if number < count:
            page.keyboard.press(("ArrowRight", "PageDown")[number % 2])
    expect(page.locator("#next")).to_be_disabled()
    for number in range(count - 1, 0, -1):
        page.get_by_role("button", name="Previous").click()
        expect(page.locator("#where")).to_have_text(f"Step {number} of {count}")
    page.keyboard.press("ArrowRight")
    for cell in ("65,783,042", "263,132,168"):
        expect(page.locator(".step:visible td", has_text=cell).first).to_be_visible()
    explain(page)
    own = (address, "data:", "blob:", address.replace("http", "ws"))
    assert [url for url in asked if not url.startswith(own)] == []


def uncover(page):
    """By the key; before it, nothing that the bet is about is to be seen."""
    output = page.locator(".step:visible .output").first
    assert not output.is_visible()
    page.keyboard.press("s")
    assert output.is_visible()


def move_by_keyboard(page):
    """The first slider; the picture follows, and the page stays."""
    from playwright.sync_api import expect

    here = page.locator(".step:visible")
    picture, slider = here.locator(".shown img").first, here.get_by_role("slider").first
    before = picture.get_attribute("src")
    slider.press("ArrowLeft")
    expect(picture).not_to_have_attribute("src", before, timeout=30_000)
    assert picture.get_attribute("alt")
    slider.press("ArrowLeft")  # the keys are the slider's while it is held
    assert here.is_visible()
    slider.blur()


def explain(page):
    """By the key, the explanation and what is expected take the place of the words; then by the button, back."""
    say, explained = page.locator(".step:visible .say"), page.locator(".step:visible .explained")
    assert (say.is_visible(), explained.is_visible()) == (True, False)
    page.keyboard.press("e")
    assert (say.is_visible(), explained.is_visible()) == (False, True)
    page.get_by_role("button", name="Explain").click()
    assert (say.is_visible(), explained.is_visible()) == (True, False)


EVERY = [pytest.param(name, marks=[] if name == ALWAYS else [pytest.mark.slow]) for name in DEMOS]


@pytest.mark.parametrize("name", EVERY)
def test_every_button_moves_its_own_figure_to_what_is_expected(of_all, open_page, name):
    """And whatever a step shows is seen at once, in a small window and in a large one."""
    page = open_page(f"{of_all}voila/render/{name}.ipynb")
    for number, step in enumerate(read_demo(DEMOS[name]).steps, start=1):
        page.keyboard.press("s")
        if step.click:
            press_the_button(page, step)
        for size in SIZES:
            assert_fits(page, size, f"{name}-{number}")
        page.keyboard.press("ArrowRight")


def press_the_button(page, step):
    from playwright.sync_api import expect

    here = page.locator(".step:visible")
    picture = here.locator(".shown img").first
    before, described = picture.get_attribute("src"), picture.get_attribute("alt")
    here.locator(".click button").click()
    for words in step.picture:
        expect(picture).to_have_attribute("alt", re.compile(re.escape(words)), timeout=30_000)
    expect(picture).not_to_have_attribute("src", before, timeout=30_000)
    assert picture.get_attribute("alt") != described


def assert_fits(page, size, name):
    """No picture, table or line is cut off, with the words or with the explanation; only the code may have to be scrolled."""
    page.set_viewport_size({"width": size[0], "height": size[1]})
    for key in ("", "e"):
        if key:
            page.keyboard.press(key)
        page.wait_for_timeout(100)
        save_picture(page, f"demo-{name}-{size[0]}{key}")
        over = page.locator("main").evaluate(
            "main => [main.scrollWidth - main.clientWidth, main.scrollHeight - main.clientHeight]"
        )
        assert max(over) <= 1, f"{name} at {size} {key}: {over} pixels are cut off"
    page.keyboard.press("e")


def test_the_page_is_as_well_seen_in_the_dark(address, open_page):
    page = open_page(address, "dark")
    for number in range(1, page.locator(".step").count() + 1):
        page.keyboard.press("s")
        for size in SIZES:
            assert_fits(page, size, f"dark-{number}")
        page.keyboard.press("ArrowRight")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 28)"
