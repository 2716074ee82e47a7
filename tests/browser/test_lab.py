"""What a reader does: `course lab`, run chapters, move what can be moved, all in a real browser."""

import json
import re
import time
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import nbformat
import pytest
from real import LAB, ROOT, copy_course, save_picture, served

from course_staff.notebooks.plays import select_needed
from course_utils.files import chapters_in

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

RUN_TIMEOUT = 240
RUN_WHOLE = ("00",)
WIDTHS, THEMES = (800, 1280, 1920), ("Light", "Dark")

# Keys other than the usual ones: the last optimizer, Adam, is the one that uses every slider.
# A book of eight bits is the same with seven and with six of them for the exponent.
KEYS = {("02", "optimizer"): "End", ("05", "zeros at most"): "Home"}
# A linear book has no exponent bits, and seven of eight bits have no seventh exponent bit that could be taken away. Whole logits
# have no pieces. A card runs cuda, and then there is no kind of device to choose. Another format has another number of bits to
# press; and with fp16 each ZeRO stage gets the same refusal.
TURN = {"zeros at most": 0, "whole logits": 0, "kind of device": 0, "codebook": 2, "format": 2, "precision": 2}

CHAPTERS = [path.stem for path in chapters_in(ROOT / "notebooks")]
STOPS = ".widget-vbox :is([role=slider], select, input, button):visible"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the course; in all chapters but one only what the figure needs."""
    folder = tmp_path_factory.mktemp("lab") / "course"
    copy_course(folder, "notebooks", "course_utils")
    for chapter in CHAPTERS:
        shorten(folder / "notebooks" / f"{chapter}.ipynb", is_run_whole=chapter.startswith(RUN_WHOLE))
    return folder


def shorten(path, is_run_whole):
    """Without outputs, and unless it is to be run whole, with the set-up cell, the figure's cells and what these use."""
    notebook = nbformat.read(path, 4)
    if not is_run_whole:
        sources = select_needed(notebook.cells)
        notebook.cells = [nbformat.v4.new_code_cell(source) for source in sources]
    for cell in code_cells(notebook):
        cell.outputs, cell.execution_count = [], None
    nbformat.write(notebook, path)


@pytest.fixture(scope="module")
def own_copy(checkout):
    """The reader's own folder, which `course lab` makes and opens."""
    return checkout.parent / "home" / "my-course"


@pytest.fixture(scope="module")
def address(checkout):
    """The address `course lab` prints."""
    command = ("-m", "course_utils.cli", "lab", "--port", "0")
    settings = {"COURSE_SCALE": "smoke", "COURSE_STRICT": "0"}
    with served(*command, address=LAB, home=checkout.parent, cwd=checkout, **settings) as address:
        yield address


@pytest.fixture
def page(browser, address):
    """A fresh page; the kernels it started are shut down with it."""
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    yield page
    page.close()
    for kernel in json.load(urlopen(url_of(address, "/api/kernels"), timeout=20)):
        urlopen(Request(url_of(address, f"/api/kernels/{kernel['id']}"), method="DELETE"), timeout=20)


def url_of(address, path):
    """The server's address of `path`, with the token."""
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc}{path}?{parts.query}"


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_control_moves_the_figure_to_play_with(address, page, own_copy, chapter):
    """Chapter 00 is run whole. By the keyboard alone; then the pictures are kept, to be looked at."""
    number = chapter.split("_")[0]
    open_and_run(address, page, own_copy / "notebooks" / f"{chapter}.ipynb")
    cell = page.locator(".jp-CodeCell", has_text=re.compile(r"viz\.(play|planner)\(")).last
    assert "Run this notebook to move" not in cell.text_content(), "that is for where widgets do not run"
    try:
        check_widths(page, cell, number)
        tab_through(page, cell)
        for control in sorted(controls_of(cell), key=lambda control: TURN.get(control["name"], 1)):
            move(page, cell, number, control)
    finally:
        save_picture(page, number)


def open_and_run(address, page, notebook):
    """Every cell, in a workspace of its own, so that no other notebook is open."""
    page.goto(url_of(address, f"/lab/workspaces/{notebook.stem}/tree/{notebook.parent.name}/{notebook.name}"))
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)
    page.keyboard.press("Control+b")  # the list of files takes a third of a narrow page
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.locator(".lm-Menu-itemLabel", has_text=re.compile("^Run All Cells$")).click()
    await_all_cells(page, notebook)


def controls_of(cell):
    """A dict per stop of the panel, in order: its place among them, kind, accessible name, and what its label says."""
    return cell.locator(STOPS).evaluate_all(
        """stops => stops.map((stop, place) => {
            const widget = stop.closest('.widget-inline-hbox, .widget-button')
            const label = widget && widget.querySelector('.widget-label')
            const name = stop.getAttribute('aria-label') || (stop.labels && stop.labels[0] && stop.labels[0].textContent)
            const group = stop.closest('[role=group]')
            return {place, kind: stop.getAttribute('role') || stop.tagName.toLowerCase() + '.' + (stop.type || ''),
                    name: (group ? group.getAttribute('aria-label') : name || stop.textContent).trim(),
                    pressed: stop.getAttribute('aria-pressed'), label: label && label.textContent}
        }).filter(stop => stop.pressed !== 'true')"""
    )


def check_widths(page, cell, number):
    """At each width and in each theme nothing is cut off; the pictures are kept."""
    for theme in THEMES:
        choose_theme(page, theme)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 1150})
            cell.locator(".widget-vbox").first.evaluate("panel => panel.scrollIntoView({block: 'start'})")
            page.wait_for_timeout(400)
            assert cut_off(cell) == []
            save_picture(page, f"{number}-{width}-{theme}")
        page.keyboard.press("Control+b")
        page.set_viewport_size({"width": WIDTHS[0], "height": 1150})
        page.wait_for_timeout(400)
        assert page.locator(".jp-FileBrowser").is_visible()
        assert cut_off(cell) == [], "beside the list of files"
        save_picture(page, f"{number}-files-{theme}")
        page.keyboard.press("Control+b")
    choose_theme(page, "Light")


def cut_off(cell):
    """Labels, pictures and code that reach beyond their room."""
    return cell.evaluate(
        """cell => [...cell.querySelectorAll('.widget-label, .widget-label-basic, .widget-label-basic span,' +
               ' .widget-readout, .widget-toggle-button')].filter(
               one => one.scrollWidth > one.clientWidth + 1).map(one => one.textContent).concat(
           [...cell.querySelectorAll('.jp-RenderedImage img, .widget-vbox, .widget-inline-hbox, .widget-button')].filter(
               one => one.getBoundingClientRect().right > cell.getBoundingClientRect().right).map(one => one.className),
           [...cell.querySelectorAll('.cm-scroller')].filter(one => one.scrollWidth > one.clientWidth + 1).map(
               one => one.textContent))"""
    )


def choose_theme(page, theme):
    page.get_by_role("menuitem", name="Settings", exact=True).click()
    page.locator(".lm-Menu-itemLabel", has_text=re.compile("^Theme$")).hover()
    page.locator(".lm-Menu-itemLabel", has_text=re.compile(f"^JupyterLab {theme}$")).click()
    page.wait_for_selector(f"body[data-jp-theme-name='JupyterLab {theme}']", state="attached")
    page.wait_for_timeout(500)


def tab_through(page, cell):
    """Tab goes from the first control to the last in the order in which they stand."""
    stops = cell.locator(STOPS)
    stops.first.focus()
    seen = []
    for _ in range(3 * stops.count()):
        index = stops.evaluate_all("stops => stops.indexOf(document.activeElement)")
        if index >= 0:
            seen.append(index)
        if index == stops.count() - 1:
            break
        page.keyboard.press("Tab")
    assert seen == sorted(seen)
    assert seen == list(range(stops.count())), "a control cannot be reached by Tab"


def move(page, cell, number, control):
    """By the keyboard; the picture follows."""
    assert control["name"], control
    assert control["label"] in (None, "", "\u200b", control["name"]), control
    picture = cell.locator(".jp-RenderedImage img").last
    before = picture.get_attribute("src")
    stop = cell.locator(STOPS).nth(control["place"])
    stop.focus()
    for key in keys_for(stop, number, control):
        page.keyboard.press(key)
    for _ in range(300):
        if picture.get_attribute("src") != before:
            return
        page.wait_for_timeout(100)
    pytest.fail(f"the picture stays the same when {control} is moved")


def keys_for(stop, number, control):
    if (number, control["name"]) in KEYS:
        return [KEYS[number, control["name"]]]
    if control["kind"] == "slider":
        ends = [float(stop.get_attribute(f"aria-value{which}")) for which in ("now", "max")]
        return ["ArrowLeft" if ends[0] >= ends[1] else "ArrowRight"]
    if control["kind"].startswith("select"):
        return ["ArrowDown"]
    if control["kind"] == "input.number":
        return ["Control+a", *"0.7", "Enter"]
    return ["Space"]


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


def await_all_cells(page, notebook):
    """Store the notebook again and again until every code cell has its count; fails at the first error."""
    deadline = time.monotonic() + RUN_TIMEOUT
    while time.monotonic() < deadline:
        page.keyboard.press("Control+s")
        page.wait_for_timeout(1_000)
        cells = code_cells(nbformat.read(notebook, 4))
        errors = [output for cell in cells for output in cell.outputs if output.output_type == "error"]
        assert not errors, errors
        if all(cell.execution_count for cell in cells):
            return
    counts = [cell.execution_count for cell in cells]
    pytest.fail(f"after {RUN_TIMEOUT} s the cells' counts are {counts}")
