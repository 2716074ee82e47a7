"""`course demo` in a real browser: both windows, every button pressed, figures that a room can read, nothing cut off or loaded
from elsewhere."""

import base64
import io
import json
import re
import subprocess
import sys

import psutil
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
SIZES = [(800, 700), (1024, 768), (1400, 900)]
ROOMS = [(1280, 720), (1920, 1080)]
LETTERS = """
import json
import sys
from pathlib import Path
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from matplotlib.figure import Figure
from matplotlib.text import Text
from course_staff.demos import read_demo
from course_staff.demos.controls import press
from course_staff.demos.presentation import presentation
from course_utils.viz import display

points, last = {}, []


def note(figure, *arguments, save=Figure.savefig, **options):
    texts = [each for each in figure.findobj(Text) if each.get_visible() and each.get_text().strip()]
    last[:] = [min(each.get_fontsize() for each in texts)]
    return save(figure, *arguments, **options)


def described(figure, alt, picture=display.picture):
    shown = picture(figure, alt)
    points[alt] = min(last[0], points.get(alt, last[0]))
    return shown


Figure.savefig, display.picture = note, described
demo = read_demo(Path(sys.argv[1]))
shell, clicks = InteractiveShell.instance(), [step.click for step in demo.steps if step.click]
for cell in presentation(demo).cells:
    if cell.cell_type == "code":
        with capture_output():
            shell.run_cell(cell.source).raise_error()
            if cell.metadata["demo"]["role"] == "click":
                press(clicks.pop(0))
print(json.dumps(points))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Where all servers of this file keep what they showed."""
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
    """Opens the presentation at an address, and gives the page when its kernel is through."""
    contexts = []

    def open_page(address, scheme="light", asked=None, until="body[data-ready]"):
        context = browser.new_context(viewport={"width": 1400, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        if asked is not None:
            context.on("request", lambda request: asked.append(request.url))
        page = context.new_page()
        page.goto(address, wait_until="commit", timeout=120_000)
        page.wait_for_selector(until, timeout=300_000)
        if "ready" in until:
            page.wait_for_selector(".step .jupyter-widgets", state="attached", timeout=60_000)
        return page

    yield open_page
    for context in contexts:
        context.close()


def test_a_demo_is_paged_through_and_its_figure_moves(address, open_page):
    from playwright.sync_api import expect

    demo, asked = read_demo(DEMOS[PAGED]), []
    count = len(demo.steps)
    page = open_page(address, asked=asked)
    for number, step in enumerate(demo.steps, start=1):
        expect(page.locator("#where")).to_have_text(f"Step {number} of {count}")
        expect(page.locator(".step:visible h2")).to_have_text(step.title)
        possible = {"uncover": step.covered, "explain": step.then, "code": step.cell, "controls": step.click}
        assert {name: page.locator(f"#{name}").is_visible() for name in possible} == {
            name: bool(there) for name, there in possible.items()
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
    own = (address, "data:", "blob:", address.replace("http", "ws"))
    assert [url for url in asked if not url.startswith(own)] == []


def uncover(page):
    """By the key; before it, nothing that the bet is about is to be seen."""
    output = page.locator(".step:visible .output").first
    assert not output.is_visible()
    page.keyboard.press("s")
    assert output.is_visible()


def move_by_keyboard(page):
    """Unfold the controls and move the first slider; the picture follows, and the page stays."""
    from playwright.sync_api import expect

    here = page.locator(".step:visible")
    picture, slider = here.locator(".shown img:visible").first, here.get_by_role("slider").first
    assert not slider.is_visible()
    page.keyboard.press("f")
    before = picture.get_attribute("src")
    slider.press("ArrowLeft")
    expect(picture).not_to_have_attribute("src", before, timeout=30_000)
    assert picture.get_attribute("alt")
    slider.press("ArrowLeft")  # the keys are the slider's while it is held
    assert here.is_visible()
    slider.blur()
    page.get_by_role("button", name="controls").click()
    assert not slider.is_visible()


def explain(page):
    """By the key the answer takes the place of the question; then by the button, back."""
    say, explained = page.locator(".step:visible .say"), page.locator(".step:visible .explained")
    assert (say.is_visible(), explained.is_visible()) == (True, False)
    page.keyboard.press("e")
    assert (say.is_visible(), explained.is_visible()) == (False, True)
    page.get_by_role("button", name="Explain").click()
    assert (say.is_visible(), explained.is_visible()) == (True, False)


def open_code(page):
    """By the key and back by the button."""
    code = page.locator(".step:visible .code")
    page.keyboard.press("c")
    assert code.is_visible()
    page.get_by_role("button", name="Code").click()
    assert not code.is_visible()


def test_the_keys_are_the_pages_whatever_the_mouse_has_touched(home, open_page):
    """A slider that was dragged keeps its arrows alone; a number that is typed in keeps all, until Enter or Escape."""
    from playwright.sync_api import expect

    steps = [number for number, step in enumerate(read_demo(DEMOS[TOUCHED]).steps, start=1) if step.click]
    with _demo(TOUCHED, home) as address:
        page = open_page(f"{address}#{steps[0]}")
        where, here = page.locator("#where"), page.locator(f"#step-{steps[0]}")
        page.keyboard.press("f")
        slider, readout = here.get_by_role("slider").first, here.locator(".widget-readout").first
        _drag(page, slider)
        dragged = readout.inner_text()
        _assert_the_page_takes_its_keys(page, here)
        page.keyboard.press("PageUp")
        expect(where).to_contain_text(f"Step {steps[0] - 1} of")
        page.keyboard.press("PageDown")
        expect(where).to_contain_text(f"Step {steps[0]} of")
        assert readout.inner_text() == dragged
        slider.focus()
        page.keyboard.press("ArrowLeft")
        expect(readout).not_to_have_text(dragged)
        expect(where).to_contain_text(f"Step {steps[0]} of")
        here.get_by_role("checkbox").click()
        _assert_the_page_takes_its_keys(page, here)
        for leave in ("Enter", "Escape"):
            readout.click()
            page.keyboard.press("e")
            assert not here.locator(".explained").is_visible(), "a letter that is typed in a field turned the page"
            page.keyboard.press("Backspace")
            page.keyboard.press(leave)
            expect(readout).not_to_be_focused()
            _assert_the_page_takes_its_keys(page, here)


def _drag(page, slider):
    box = slider.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + 90, box["y"] + box["height"] / 2, steps=5)
    page.mouse.up()


def _assert_the_page_takes_its_keys(page, here):
    for key, selector in {"e": ".explained", "c": ".code"}.items():
        for is_open in (True, False):
            page.keyboard.press(key)
            assert here.locator(selector).is_visible() == is_open, (key, is_open)


def test_two_windows_stay_in_step_and_either_drives(address, open_page):
    """Every button of the presenter's window; each window is loaded again, and the class's is closed and opened again."""
    from playwright.sync_api import expect

    demo = read_demo(DEMOS[PAGED])
    the_class = open_page(address)
    secret = [step.notes for step in demo.steps if step.notes]
    assert secret
    assert not [note for note in secret if note in the_class.content()]
    with the_class.expect_popup() as popup:
        the_class.get_by_role("button", name="Presenter").click()
    presenter = popup.value
    for number, step in enumerate(demo.steps, start=1):
        for window in (the_class, presenter):
            expect(window.locator("#where")).to_have_text(f"Step {number} of {len(demo.steps)}")
            expect(window.locator("h2:visible")).to_have_text(step.title)
        here = presenter.locator("section:visible")
        following = demo.steps[number].title if number < len(demo.steps) else "the last step"
        expect(here.locator(".next")).to_contain_text(following)
        if step.notes:
            expect(here.locator(".notes")).to_have_text(step.notes)
        seen = {"uncover": ".output:not(.controls)", "explain": ".explained", "code": ".code", "controls": ".controls"}
        for name, selector in seen.items():
            button = presenter.locator(f"#{name}")
            assert button.is_visible() == the_class.locator(f"#{name}").is_visible(), (number, name)
            if button.is_visible():
                button.click()
                expect(the_class.locator(f".step:visible {selector}").first).to_be_visible()
                expect(button).to_have_attribute("aria-pressed", "true")
        assert presenter.locator("#move").is_visible() == bool(step.click)
        if step.click:
            presenter.locator("#move").click()
            expect(the_class.locator(".step:visible .shown .widget-html img")).to_have_attribute(
                "alt", re.compile(re.escape(step.picture[0])), timeout=30_000
            )
            expect(presenter.locator("#to")).to_have_text(": back to where it began")
        driver = (the_class, presenter)[number % 2]
        driver.get_by_role("button", name="Next").click(force=number == len(demo.steps))
    presenter.keyboard.press("ArrowLeft")
    last = f"Step {len(demo.steps) - 1} of {len(demo.steps)}"
    for window in (the_class, presenter):
        window.reload()
        expect(window.locator("#where")).to_have_text(last, timeout=30_000)
        expect(window.locator("#code")).to_have_attribute("aria-pressed", "true")
    expect(presenter.locator("#clock")).not_to_have_text("0:00")
    presenter.get_by_role("button", name="Previous").click()
    the_class.close()
    with presenter.expect_popup() as popup:
        presenter.get_by_role("button", name="Open it again").click()
    expect(popup.value.locator("#where")).to_have_text(last.replace("6", "5"), timeout=30_000)
    expect(presenter.locator("#gone")).to_be_hidden()
    presenter.locator("#clock").click()
    expect(presenter.locator("#clock")).to_have_text("0:00")


def test_a_window_loaded_again_beside_a_slow_kernel_says_so_and_keeps_a_press(address, open_page):
    """A stopped kernel stands for a slow one."""
    from playwright.sync_api import expect

    (number, *_) = [number for number, step in enumerate(read_demo(DEMOS[PAGED]).steps, start=1) if step.click]
    page = open_page(f"{address}#{number}")
    here, button = page.locator(f"#step-{number}"), page.locator(f"#step-{number} .click button")
    expect(button).to_be_visible(timeout=60_000)
    asked = button.inner_text()
    kernels = [each for each in psutil.Process().children(recursive=True) if "ipykernel" in " ".join(each.cmdline())]
    assert kernels
    for kernel in kernels:
        kernel.suspend()
    try:
        page.reload(wait_until="commit")
        page.get_by_text("Loading widget").first.wait_for(state="attached", timeout=60_000)
        expect(page.locator("#preparing")).to_be_visible()
        assert not here.get_by_text("Loading widget").locator("visible=true").count()
        assert float(here.locator(".picture > img").evaluate("each => getComputedStyle(each).opacity")) < 0.5
        page.keyboard.press("m")
    finally:
        for kernel in kernels:
            kernel.resume()
    expect(button).to_be_visible(timeout=60_000)
    expect(button).not_to_have_text(asked, timeout=30_000)
    expect(page.locator("#preparing")).to_be_hidden()


def test_the_next_start_shows_every_step_before_a_kernel_has_run_it(home, open_page):
    """And when the kernel is through, the same step stands there, and its figure moves."""
    from playwright.sync_api import expect

    demo = read_demo(DEMOS[PAGED])
    for until in ("body[data-ready]", "body[data-recalled]"):
        with _demo(PAGED, home) as address:
            page = open_page(address, until=until)
            if "ready" in until:
                continue  # what it showed is kept now, if no test before has seen to that
            for step in demo.steps:
                expect(page.locator(".step:visible h2")).to_have_text(step.title)
                page.keyboard.press("s")
                expect(page.locator(".step:visible .output:not(.controls)").first).to_be_visible()
                page.keyboard.press("ArrowRight")
            page.wait_for_selector("body[data-ready]", timeout=300_000)
            expect(page.locator("#where")).to_have_text(f"Step {len(demo.steps)} of {len(demo.steps)}")
            page.keyboard.press("ArrowLeft")
            page.locator(".step:visible .jupyter-widgets").first.wait_for(state="attached", timeout=60_000)
            move_by_keyboard(page)


@pytest.mark.parametrize("name", DEMOS)
@pytest.mark.timeout(900)
def test_a_room_can_read_every_figure_and_every_button_moves_its_own(home, open_page, name):
    """It has half of the screen, and its smallest letters 14 pixels, also while its controls are unfolded: matplotlib knows
    their points, the picture its dots. A covered question is large, code leaves all in place, and nobody's bet is shown. Buttons
    are pressed in the class's window and in the presenter's by turns; what they show fits into small windows, too."""
    from playwright.sync_api import expect

    command = [sys.executable, "-c", LETTERS, str(DEMOS[name])]
    environment = environment_for_child(**SETTINGS, COURSE_HOME=str(home / "home"), MPLBACKEND="agg")
    printed = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=400).stdout
    points = {}
    for alt, size in json.loads(printed).items():
        points[_beginning(alt)] = min(size, points.get(_beginning(alt), size))
    assert points
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
            for size in ROOMS:
                page.set_viewport_size({"width": size[0], "height": size[1]})
                for opened in ("", "e" * bool(step.then), "f" * bool(step.click)):
                    page.keyboard.press(opened) if opened else None
                    assert_readable(
                        page, points, f"{name}-{number}-{size[1]}{opened}", size, 0.3 if opened == "f" else 0.5
                    )
                    page.keyboard.press(opened) if opened else None
                if step.cell:
                    assert_code_leaves_all_in_place(page, f"{name}-{number}-{size[1]}c")
            if step.click:
                press_the_button(driver, page, step)
                driver, other = other, driver
            for size in SIZES:
                assert_fits(page, size, f"{name}-{number}")
            driver.keyboard.press("ArrowRight")
            for window in (driver, other):
                expect(window.locator("#where")).to_have_text(f"Step {min(number + 1, len(steps))} of {len(steps)}")


def assert_the_question_is_large(page, where):
    """From the last row it is read while everybody bets, and nothing else is there to be read."""
    for size in ROOMS:
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.wait_for_timeout(150)
        save_picture(page, f"room-{where}-{size[1]}covered")
        letters = page.locator(".step:visible .say p").last.evaluate("p => parseFloat(getComputedStyle(p).fontSize)")
        assert letters >= 28 * size[1] / 720, f"{where} at {size}: words of {letters} pixels"
        assert _cut_off(page) <= 1, where


def assert_code_leaves_all_in_place(page, where):
    """Unfolded, it lies over the step within the window, as high as its lines or as all there is; it breaks long lines, and only
    it is scrolled."""
    places = "() => [...document.querySelectorAll('.step:not([hidden]) :is(.words, .output)')].map("
    places += "(each) => JSON.stringify(each.getBoundingClientRect()))"
    before = page.evaluate(places)
    page.keyboard.press("c")
    page.wait_for_timeout(150)
    save_picture(page, f"room-{where}")
    code, main = page.locator(".step:visible .code"), page.locator("main").bounding_box()
    box = code.bounding_box()
    assert page.evaluate(places) == before, where
    assert _cut_off(page) <= 1, where
    assert box["height"] <= code.locator("pre").bounding_box()["height"] + 20, f"{where}: it covers more than it needs"
    if code.locator("pre").inner_text().strip().count("\n") < 10:
        assert code.evaluate("code => code.scrollHeight - code.clientHeight") <= 1, f"{where}: a short code is scrolled"
    assert main["y"] <= box["y"], where
    assert box["y"] + box["height"] <= main["y"] + main["height"] + 1, where
    assert code.evaluate("code => code.scrollWidth - code.clientWidth") <= 0, where
    page.keyboard.press("c")


def assert_readable(page, points, where, size, share):
    page.wait_for_timeout(150)
    save_picture(page, f"room-{where}")
    assert _cut_off(page) <= 1, where
    cut = "all => all.filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.textContent)"
    assert page.locator(".step:visible .controls .widget-label:visible").evaluate_all(cut) == [], (
        f"{where}: a label is cut"
    )
    pictures = page.locator(".step:visible .shown img:visible").all()
    covered = 0.0
    for picture in pictures:
        box, alt = picture.bounding_box(), picture.get_attribute("alt")
        wide, high, dots = _measure(picture.get_attribute("src"))
        scale = min(box["width"] / wide, box["height"] / high)
        covered += scale * wide * scale * high / (size[0] * size[1])
        smallest = points[_beginning(alt)] / 72 * dots * scale
        assert smallest >= 14, f"{where}: letters of {smallest:.1f} pixels"
    assert not pictures or covered >= share, f"{where}: {covered:.0%} of the screen"


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
    driver.locator(".step:visible .click button, #move:visible").click()
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
        over = _cut_off(page)
        assert over <= 1, f"{name} at {size} {key}: {over} pixels are cut off"
    page.keyboard.press("e")


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
