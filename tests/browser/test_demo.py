"""`course demo` in a real browser: both windows, every button pressed, figures that a room can read, nothing cut off or loaded
from elsewhere."""

import base64
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from real import DEMO, ROOT, save_picture, served

from course_staff.demos import SETTINGS, demos_in, read_demo
from course_utils.files import find_place
from course_utils.settings import environment_for_child

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]
pytest.importorskip("voila")

DEMOS = {path.stem: path for path in demos_in(find_place(ROOT).notebooks)}
PAGED = "03_adamw"
TOUCHED = "09_local_sgd"  # its figure has sliders and a checkbox
ROOMS = [(1280, 720), (1920, 1080)]
SMALLER = (1024, 768)
SEEN = {"show": ".output:not(.controls)", "explain": ".answer", "code": ".source", "controls": ".controls"}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("demos")


@pytest.fixture(scope="module")
def address(home):
    """What `course demo 03 --no-browser` prints."""
    with _demo(PAGED, home) as address:
        yield address


def _demo(name, home):
    return served("-m", "course_utils.cli", "demo", name, "--no-browser", address=DEMO, home=home)


@pytest.fixture
def open_page(browser):
    """Opens the presentation at an address, and gives the page when its kernel is through and its figures move."""
    contexts = []

    def open_page(address, scheme="light", requests=None):
        context = browser.new_context(viewport={"width": 1280, "height": 720}, color_scheme=scheme)
        contexts.append(context)
        if requests is not None:
            context.on("request", lambda request: requests.append(request.url))
        page = context.new_page()
        page.goto(address, wait_until="commit", timeout=120_000)
        wait_until_ready(page)
        return page

    yield open_page
    for context in contexts:
        context.close()


def wait_until_ready(page):
    page.wait_for_selector("body[data-ready]", timeout=300_000)
    page.wait_for_selector("#preparing", state="hidden", timeout=60_000)


def test_a_demo_is_paged_through_and_its_figure_moves(address, open_page):
    from playwright.sync_api import expect

    demo, requests = read_demo(DEMOS[PAGED]), []
    count = len(demo.steps)
    page = open_page(address, requests=requests)
    for number, step in enumerate(demo.steps, start=1):
        expect(page.locator("#where")).to_have_text(f"Step {number} of {count}")
        expect(page.locator(".step:visible h2")).to_have_text(step.title)
        possible = {"show": step.covered, "explain": step.then, "code": step.cell, "controls": step.click}
        assert {name: page.locator(f"#{name}").is_visible() for name in possible} == {
            name: bool(is_there) for name, is_there in possible.items()
        }
        if step.covered:
            uncover(page)
        if step.click:
            move_by_keyboard(page)
        if step.then:
            explain(page)
        open_code(page)
        if number < count:
            page.keyboard.press(("ArrowRight", "PageDown")[number % 2])
    expect(page.locator("#next")).to_be_disabled()
    for number in range(count - 1, 0, -1):
        page.get_by_role("button", name="Previous").click()
        expect(page.locator("#where")).to_have_text(f"Step {number} of {count}")
    page.get_by_role("button", name="Next").click()
    for cell in ("65,783,042", "263,132,168"):
        expect(page.locator(".step:visible td", has_text=cell).first).to_be_visible()
    own_urls = (address, "data:", "blob:", address.replace("http", "ws"))
    assert [url for url in requests if not url.startswith(own_urls)] == []


def uncover(page):
    """By the key; before it, nothing that the bet is about is to be seen."""
    output = page.locator(".step:visible .output").first
    assert not output.is_visible()
    page.keyboard.press("s")
    assert output.is_visible() or page.locator(".step:visible .shown img").first.is_visible()


def move_by_keyboard(page):
    """Unfold the controls and move the first slider; the picture follows, and the page stays."""
    from playwright.sync_api import expect

    visible_step = page.locator(".step:visible")
    picture, slider = visible_step.locator(".shown img:visible").first, visible_step.get_by_role("slider").first
    assert not slider.is_visible()
    page.keyboard.press("f")
    before = picture.get_attribute("src")
    slider.press("ArrowLeft")
    expect(picture).not_to_have_attribute("src", before, timeout=30_000)
    assert picture.get_attribute("alt")
    slider.press("ArrowLeft")  # the keys are the slider's while it is held
    assert visible_step.is_visible()
    slider.blur()
    page.get_by_role("button", name="controls").click()
    assert not slider.is_visible()


def explain(page):
    """By the key the answer takes the place of the question; then by the button, back."""
    say, answer = page.locator(".step:visible .say"), page.locator(".step:visible .answer")
    assert (say.is_visible(), answer.is_visible()) == (True, False)
    page.keyboard.press("e")
    assert (say.is_visible(), answer.is_visible()) == (False, True)
    page.get_by_role("button", name="Explain").click()
    assert (say.is_visible(), answer.is_visible()) == (True, False)


def open_code(page):
    """By the key and back by the button."""
    code = page.locator(".step:visible .source")
    page.keyboard.press("c")
    assert code.is_visible()
    page.get_by_role("button", name="Code").click()
    assert not code.is_visible()


def test_the_keys_are_the_pages_whatever_the_mouse_has_touched(home, open_page):
    """A slider that was dragged keeps its arrows alone; a number that is typed in keeps all, until Enter or Escape."""
    from playwright.sync_api import expect

    steps = [number for number, step in enumerate(read_demo(DEMOS[TOUCHED]).steps, start=1) if step.click]
    with _demo(TOUCHED, home) as address:
        page = open_page(address)
        position, visible_step = page.locator("#where"), page.locator(".step:visible")
        for _ in range(steps[0] - 1):
            page.keyboard.press("PageDown")
        page.keyboard.press("f")
        slider, readout = visible_step.get_by_role("slider").first, visible_step.locator(".widget-readout").first
        _drag(page, slider)
        dragged = readout.inner_text()
        _assert_the_page_takes_its_keys(page, visible_step)
        page.keyboard.press("PageUp")
        expect(position).to_contain_text(f"Step {steps[0] - 1} of")
        page.keyboard.press("PageDown")
        expect(position).to_contain_text(f"Step {steps[0]} of")
        assert readout.inner_text() == dragged
        slider.focus()
        page.keyboard.press("ArrowLeft")
        expect(readout).not_to_have_text(dragged)
        expect(position).to_contain_text(f"Step {steps[0]} of")
        visible_step.get_by_role("checkbox").click()
        _assert_the_page_takes_its_keys(page, visible_step)
        for leave in ("Enter", "Escape"):
            readout.click()
            page.keyboard.press("e")
            assert not visible_step.locator(".answer").is_visible(), "a letter that is typed in a field turned the page"
            page.keyboard.press("Backspace")
            page.keyboard.press(leave)
            expect(readout).not_to_be_focused()
            _assert_the_page_takes_its_keys(page, visible_step)


def _drag(page, slider):
    box = slider.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 90, box["y"] + box["height"] / 2, steps=5)
    page.mouse.up()


def _assert_the_page_takes_its_keys(page, visible_step):
    for key, selector in {"e": ".answer", "c": ".source"}.items():
        for is_open in (True, False):
            page.keyboard.press(key)
            assert visible_step.locator(selector).is_visible() == is_open, (key, is_open)


def test_two_windows_stay_in_step_and_either_drives(address, open_page):
    """Every button of the presenter's window; then the class's is loaded again, and both are where they were."""
    from playwright.sync_api import expect

    demo = read_demo(DEMOS[PAGED])
    the_class = open_page(address)
    with the_class.expect_popup() as popup:
        the_class.get_by_role("button", name="Presenter").click()
    presenter = popup.value
    for number, step in enumerate(demo.steps, start=1):
        for window in (the_class, presenter):
            expect(window.locator("#where")).to_have_text(f"Step {number} of {len(demo.steps)}")
            expect(window.locator("h2:visible")).to_have_text(step.title)
        following = demo.steps[number].title if number < len(demo.steps) else "the last step"
        expect(presenter.locator(".next")).to_contain_text(following)
        assert presenter.locator(".notes").all_inner_texts() == ([step.notes] if step.notes else [])
        for phrase in [*step.notes.splitlines(), *step.text, *step.picture]:
            assert phrase in presenter.locator("main").inner_text()
        assert step.notes == "" or step.notes not in the_class.locator("body").inner_text()
        for name, selector in SEEN.items():
            button = presenter.locator(f"#{name}")
            assert button.is_visible() == the_class.locator(f"#{name}").is_visible(), (number, name)
            if button.is_visible():
                button.click()
                seen = the_class.locator(f".step:visible :is({selector}, {selector} img)").locator("visible=true")
                expect(seen.first).to_be_visible()
                expect(button).to_have_attribute("aria-pressed", "true")
        assert presenter.locator("#move").is_visible() == bool(step.click)
        if step.click:
            press_the_button(presenter, the_class, step)
            expect(presenter.locator("#move")).to_have_attribute("aria-pressed", "true")
        driver = (the_class, presenter)[number % 2]
        driver.get_by_role("button", name="Next").click(force=number == len(demo.steps))
    presenter.keyboard.press("ArrowLeft")
    last = f"Step {len(demo.steps) - 1} of {len(demo.steps)}"
    the_class.reload(wait_until="commit")
    wait_until_ready(the_class)
    for window in (the_class, presenter):
        expect(window.locator("#where")).to_have_text(last, timeout=30_000)
        expect(window.locator("#code")).to_have_attribute("aria-pressed", "true")
    expect(presenter.locator("#clock")).not_to_have_text("0:00")
    presenter.locator("#clock").click()
    expect(presenter.locator("#clock")).to_have_text("0:00")
    presenter.get_by_role("button", name="Previous").click()
    expect(the_class.locator("#where")).to_have_text(last.replace("6", "5"))


@pytest.mark.parametrize("name", DEMOS)
@pytest.mark.timeout(900)
def test_a_room_can_read_every_figure_and_every_button_moves_its_own(home, open_page, name):
    """A figure has half of the screen, and its smallest letters 14 pixels, also while its controls are unfolded: matplotlib knows
    their points, the picture its dots. A covered question is large, code leaves all in place, and nobody's bet is shown. Buttons
    are pressed in the class's window and in the presenter's by turns; what they show fits into a smaller window, too."""
    from playwright.sync_api import expect

    points = letters_of(DEMOS[name], home)
    with _demo(name, home) as address:
        page = open_page(address)
        assert not re.search("your bet:|you bet", page.locator("main").inner_html(), re.IGNORECASE)
        with page.expect_popup() as popup:
            page.get_by_role("button", name="Presenter").click()
        driver, other = page, popup.value
        steps = read_demo(DEMOS[name]).steps
        for number, step in enumerate(steps, start=1):
            if step.covered:
                assert_the_question_is_large(page, f"{name}-{number}")
                driver.keyboard.press("s")
            for size in (*ROOMS, SMALLER):
                page.set_viewport_size({"width": size[0], "height": size[1]})
                for opened in ("", "e" * bool(step.then), "f" * bool(step.click)):
                    page.keyboard.press(opened) if opened else None
                    share = 0.3 if opened == "f" else 0.5
                    assert_readable(page, points, f"{name}-{number}-{size[1]}{opened}", size, share)
                    page.keyboard.press(opened) if opened else None
                if step.cell:
                    assert_code_leaves_all_in_place(page, f"{name}-{number}-{size[1]}c")
            if step.click:
                press_the_button(driver, page, step)
                driver, other = other, driver
            driver.keyboard.press("ArrowRight")
            for window in (driver, other):
                expect(window.locator("#where")).to_have_text(f"Step {min(number + 1, len(steps))} of {len(steps)}")


def letters_of(demo, home):
    """Points of the smallest letters in each of a demo's figures, by the beginning of its description."""
    command = [sys.executable, str(Path(__file__).with_name("letters.py")), str(demo)]
    environment = environment_for_child(**SETTINGS, COURSE_HOME=str(home / "home"), MPLBACKEND="agg")
    printed = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=400).stdout
    points = {}
    for alt, size in json.loads(printed).items():
        points[_beginning(alt)] = min(size, points.get(_beginning(alt), size))
    assert points
    return points


def assert_the_question_is_large(page, name):
    """From the last row it is read while everybody bets, and nothing else is there to be read."""
    for size in ROOMS:
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.wait_for_timeout(150)
        save_picture(page, f"room-{name}-{size[1]}covered")
        letters = page.locator(".step:visible .say p").last.evaluate("p => parseFloat(getComputedStyle(p).fontSize)")
        assert letters >= 28 * size[1] / 720, f"{name} at {size}: words of {letters} pixels"
        assert _cut_off(page) <= 1, name


def assert_code_leaves_all_in_place(page, name):
    """Unfolded, it lies over the step within the window, as high as its lines or as all there is, and only it is scrolled."""
    places = "() => [...document.querySelectorAll('.step:not([hidden]) :is(.words, .output)')].map("
    places += "(each) => JSON.stringify(each.getBoundingClientRect()))"
    before = page.evaluate(places)
    page.keyboard.press("c")
    page.wait_for_timeout(150)
    save_picture(page, f"room-{name}")
    code, main = page.locator(".step:visible .source"), page.locator("main").bounding_box()
    box = code.bounding_box()
    assert page.evaluate(places) == before, name
    assert _cut_off(page) <= 1, name
    assert box["height"] <= code.locator("pre").bounding_box()["height"] + 20, f"{name}: it covers more than it needs"
    if code.locator("pre").inner_text().strip().count("\n") < 10:
        assert code.evaluate("code => code.scrollHeight - code.clientHeight") <= 1, f"{name}: a short code is scrolled"
    assert main["y"] <= box["y"], name
    assert box["y"] + box["height"] <= main["y"] + main["height"] + 1, name
    assert code.evaluate("code => code.scrollWidth - code.clientWidth") <= 0, name
    page.keyboard.press("c")


def assert_readable(page, points, name, size, share):
    page.wait_for_timeout(150)
    save_picture(page, f"room-{name}")
    assert _cut_off(page) <= 1, f"{name}: {_cut_off(page)} pixels are cut off"
    cut = "all => all.filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.textContent)"
    assert page.locator(".step:visible .controls .widget-label:visible").evaluate_all(cut) == [], (
        f"{name}: a label is cut"
    )
    pictures = page.locator(".step:visible .shown img:visible").all()
    covered = 0.0
    for picture in pictures:
        box, alt = picture.bounding_box(), picture.get_attribute("alt")
        wide, high, dots = _measure(picture.get_attribute("src"))
        scale = min(box["width"] / wide, box["height"] / high)
        covered += scale * wide * scale * high / (size[0] * size[1])
        smallest = points[_beginning(alt)] / 72 * dots * scale
        assert smallest >= 14 or size == SMALLER, f"{name}: letters of {smallest:.1f} pixels"
    assert not pictures or covered >= share or size == SMALLER, f"{name}: {covered:.0%} of the screen"


def _beginning(alt):
    """What a picture shows, up to its first number: a timeline's seconds and gaps are others in each run."""
    return re.split(r"\d", alt)[0]


def _measure(src):
    from PIL import Image

    with Image.open(io.BytesIO(base64.b64decode(src.partition(",")[2]))) as image:
        return *image.size, image.info["dpi"][0]


def press_the_button(driver, the_class, step):
    from playwright.sync_api import expect

    picture = the_class.locator(".step:visible .shown .widget-html img").first
    before, described = picture.get_attribute("src"), picture.get_attribute("alt")
    driver.locator("#move").click()
    for phrase in step.picture:
        expect(picture).to_have_attribute("alt", re.compile(re.escape(phrase)), timeout=30_000)
    expect(picture).not_to_have_attribute("src", before, timeout=30_000)
    assert picture.get_attribute("alt") != described


def _cut_off(page):
    """How many pixels of the page or its buttons would have to be scrolled to."""
    return page.evaluate(
        "() => Math.max(...[...document.querySelectorAll('main, nav')].map((each) => "
        "Math.max(each.scrollWidth - each.clientWidth, each.scrollHeight - each.clientHeight)))"
    )


def test_the_page_is_as_well_seen_in_the_dark(address, open_page):
    """Its figures too: white paper would light up the room."""
    page = open_page(address, "dark")
    pictures = 0
    for number in range(1, page.locator(".step").count() + 1):
        page.keyboard.press("s")
        save_picture(page, f"demo-dark-{number}")
        for picture in page.locator(".step:visible .shown img:visible").all():
            pictures += 1
            assert _brightness(picture.screenshot()) < 60
        page.keyboard.press("ArrowRight")
    assert pictures
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 28)"


def _brightness(png):
    from PIL import Image, ImageStat

    with Image.open(io.BytesIO(png)) as image:
        return ImageStat.Stat(image.convert("L")).median[0]
