"""`course demo` in a real browser: paged to the end and back, a control moved, nothing loaded from elsewhere."""

import os
import re
import subprocess
import sys
import time
from queue import Empty, Queue
from threading import Thread

import psutil
import pytest
from test_lab import CHROMIUM, QUIET, ROOT, save_picture, stop

from course_utils.chapters import find_place
from course_utils.demos import demos_in, read_demo
from course_utils.settings import environment_for_child

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]
pytest.importorskip("voila")

SCREENS = [(width, scheme) for width in (800, 1400) for scheme in ("light", "dark")]
"""What is looked at, in CSS pixels and by the reader's choice of colors."""


@pytest.fixture
def address(tmp_path):
    """What `course demo 03 --no-browser` prints; server and kernels are gone after Ctrl-C."""
    environment = environment_for_child(
        OMP_NUM_THREADS="1", CI="1", JUPYTER_CONFIG_DIR=str(tmp_path), COURSE_HOME=str(tmp_path / "home")
    )
    server = subprocess.Popen(
        [sys.executable, "-m", "course_utils.cli", "demo", os.environ.get("DEMO", "03"), "--no-browser"],
        cwd=ROOT, env=environment, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    children = []
    try:
        yield _printed(server)
        children = psutil.Process(server.pid).children(recursive=True)
    finally:
        stop(server)
    assert psutil.wait_procs(children, timeout=20)[1] == [], "kernels were left running"
    assert server.returncode == 0


def _printed(server) -> str:
    lines = Queue()
    Thread(target=lambda: [lines.put(line) for line in server.stdout], daemon=True).start()
    said, deadline = [], time.monotonic() + 60
    while time.monotonic() < deadline and (server.poll() is None or not lines.empty()):
        try:
            said.append(lines.get(timeout=0.2))
        except Empty:
            continue
        if found := re.search(r"http://127\.0\.0\.1:\d+/", said[-1]):
            return found.group()
    return pytest.fail("`course demo` printed no address:\n" + "".join(said))


@pytest.fixture
def browser():
    if CHROMIUM is None:
        pytest.skip("no chromium or chrome is installed to drive")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(QUIET), timeout=60_000)
        yield browser
        browser.close()


def open_page(browser, address, width, scheme, asked):
    """The presentation when it is ready; `asked` takes every address that the page asks for."""
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.on("request", lambda request: asked.append(request.url))
    deadline = time.monotonic() + 60
    while True:  # the address is printed a moment before the server listens
        try:
            page.goto(address, wait_until="commit")
            break
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
    page.wait_for_selector("body[data-ready]", timeout=120_000)
    page.wait_for_selector(".step .widget-slider, .step .jupyter-widgets", state="attached", timeout=60_000)
    return page


def test_a_demo_is_paged_through_and_its_figure_moves(address, browser):
    from playwright.sync_api import expect

    demo = read_demo(demos_in(find_place(ROOT).notebooks, [os.environ.get("DEMO", "03")])[0])
    asked, count = [], len(demo.steps)
    page = open_page(browser, address, 1400, "light", asked)
    expect(page.locator("#where")).to_have_text(f"Step 1 of {count}")
    for number, step in enumerate(demo.steps, start=1):
        expect(page.locator(".step:visible h2")).to_have_text(step.title)
        if step.covered:
            uncover(page)
        if step.click:
            press_the_button(page)
        if number < count:
            page.keyboard.press(("ArrowRight", "PageDown")[number % 2])
    expect(page.locator("#next")).to_be_disabled()
    save_picture(page, "demo-last")
    for number in range(count - 1, 0, -1):
        page.get_by_role("button", name="Previous").click()
        expect(page.locator("#where")).to_have_text(f"Step {number} of {count}")
    page.keyboard.press("e")
    assert page.locator(".step:visible details.expect[open]").count() == 1
    assert [
        url for url in asked if not url.startswith((address, "data:", "blob:", address.replace("http", "ws")))
    ] == []


def uncover(page):
    """By the key; before it, nothing that the bet is about is to be seen."""
    output = page.locator(".step:visible .output").first
    assert not output.is_visible()
    page.keyboard.press("s")
    assert output.is_visible()


def press_the_button(page):
    """The offered click, then the control itself by keyboard: the picture follows each."""
    from playwright.sync_api import expect

    here = page.locator(".step:visible")
    picture = here.locator(".shown img").first
    before = picture.get_attribute("src")
    here.locator(".click button").click()
    expect(picture).not_to_have_attribute("src", before, timeout=30_000)
    assert picture.get_attribute("alt")
    slider = here.get_by_role("slider").first
    if slider.count():
        before = picture.get_attribute("src")
        slider.press("ArrowLeft")
        expect(picture).not_to_have_attribute("src", before, timeout=30_000)
        slider.press("ArrowLeft")  # the keys are the slider's while it is held
        assert here.is_visible()
        slider.blur()


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_every_step_fits_the_width(address, browser, width, scheme):
    page = open_page(browser, address, width, scheme, [])
    for number in range(1, page.locator(".step").count() + 1):
        page.keyboard.press("s")
        page.keyboard.press("e")
        save_picture(page, f"demo-{width}-{scheme}-{number}")
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, f"step {number} is {wide} pixels wide"
        page.keyboard.press("ArrowRight")
