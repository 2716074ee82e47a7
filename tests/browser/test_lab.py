"""What a reader does: `course lab`, run the first chapter, answer an exercise, all in a real browser."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

import nbformat
import psutil
import pytest

from course_utils.settings import environment_for_child

pytestmark = [pytest.mark.browser, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
START_TIMEOUT, RUN_TIMEOUT = 60, 240
PLAYS = (
    "01",
    "02",
    "03",
    "04",
    "05",
    "05b",
    "06",
    "07",
    "08",
    "09",
    "10",
)  # the calculator of chapter 00 has a test of its own


@pytest.fixture
def checkout(tmp_path):
    """A copy to work in, because JupyterLab stores what it runs."""
    for name in ("notebooks", "exercises", "course_utils"):
        shutil.copytree(ROOT / name, tmp_path / "course" / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "course"


@pytest.fixture
def address(checkout, tmp_path):
    """The address `course lab` prints; the server and its kernels are gone afterwards."""
    environment = environment_for_child(
        COURSE_SCALE="smoke", OMP_NUM_THREADS="1", CI="1", JUPYTER_CONFIG_DIR=str(tmp_path),
        COURSE_HOME=str(tmp_path / "home"), COURSE_STRICT="0",
    )  # fmt: skip
    server = subprocess.Popen(
        [sys.executable, "-m", "course_utils.cli", "lab", "--port", "0"],
        cwd=checkout, env=environment, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    children = []
    try:
        yield first_address(server)
        children = psutil.Process(server.pid).children(recursive=True)
    finally:
        stop(server)
    assert psutil.wait_procs(children, timeout=20)[1] == [], "kernels were left running"


def stop(server):
    server.send_signal(signal.SIGINT if os.name == "posix" else signal.SIGTERM)
    try:
        server.wait(timeout=30)
    except subprocess.TimeoutExpired:
        for process in [*psutil.Process(server.pid).children(recursive=True), server]:
            process.kill()


def first_address(server):
    lines = Queue()
    Thread(target=lambda: [lines.put(line) for line in server.stdout], daemon=True).start()
    said, deadline = [], time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline and (server.poll() is None or not lines.empty()):
        try:
            said.append(lines.get(timeout=0.2))
        except Empty:
            continue
        if found := re.search(r"http://(?:localhost|127\.0\.0\.1):\d+/lab\S*token=\w+", said[-1]):
            return found.group()
    return pytest.fail("`course lab` printed no address:\n" + "".join(said))


@pytest.fixture
def page():
    if CHROMIUM is None:
        pytest.skip("no chromium or chrome is installed to drive")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(QUIET), timeout=60_000)
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        yield page
        browser.close()


def test_the_first_chapter_opens_and_runs(address, page, checkout):
    notebook = checkout / "notebooks" / "00_start_here.ipynb"
    forget_outputs(notebook)
    page.goto(address)
    page.wait_for_selector(".jp-NotebookPanel .jp-Cell", timeout=60_000)
    # The notebook's own indicator says "idle" before there is a kernel, and JupyterLab then asks for one.
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)
    assert page.locator(".lm-TabBar-tabLabel", has_text="00_start_here.ipynb").count() == 1
    assert page.locator(".jp-Dialog").all_inner_texts() + page.locator(".jp-toast-message").all_inner_texts() == []
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.locator(".lm-Menu-itemLabel", has_text=re.compile("^Run All Cells$")).click()
    try:
        await_all_cells(page, notebook)
        move_the_calculator(page)
    finally:
        save_picture(page, "00")


@pytest.mark.parametrize("chapter", PLAYS)
def test_a_slider_moves_the_figure_to_play_with(address, page, checkout, chapter):
    notebook = next((checkout / "notebooks").glob(f"{chapter}_*.ipynb"))
    forget_outputs(notebook)
    page.set_viewport_size({"width": 800, "height": 1000})
    page.goto(address.replace("00_start_here.ipynb", notebook.name))
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.locator(".lm-Menu-itemLabel", has_text=re.compile("^Run All Cells$")).click()
    try:
        await_all_cells(page, notebook)
        move_the_first_slider(page)
    finally:
        save_picture(page, chapter)


def test_an_exercise_is_checked_wrong_and_right(address, page, tmp_path):
    page.goto(address.replace("/notebooks/", "/exercises/"))
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.locator(".lm-Menu-itemLabel", has_text=re.compile("^Run All Cells$")).click()
    count = "1000 * 256 + 256 * 10"
    try:
        expect_said(page, "q1", "not written yet", "#999999")
        answer(page, "q1", f'my_bytes = {{"P": 4 * ({count}), "G": 4 * ({count}), "O": 8 * ({count}) + 8}}')
        expect_said(page, "q1", "Diagnosis: The biases are left out everywhere", "#D55E00")
        answer(page, "q1", f'n = {count} + 266\nmy_bytes = {{"P": 4 * n, "G": 4 * n, "O": 8 * n + 16}}')
        expect_said(page, "q1", "passed, 3 points", "#009E73")
    finally:
        save_picture(page, "exercise")
    assert '"passed": true' in (tmp_path / "home" / "progress" / "00_start_here.json").read_text()


def answer(page, question, source):
    """Replace what the answer's cell holds, then run it and the check under it."""
    cell = page.locator(".jp-CodeCell", has_text=f"# EXERCISE {question}")
    cell.locator(".cm-content").click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(f"# EXERCISE {question}\n{source}")
    page.keyboard.press("Shift+Enter")
    page.keyboard.press("Shift+Enter")


def expect_said(page, question, text, color):
    """What the check shows holds `text` and has an edge of this color: HTML came through, whole and unchanged."""
    from playwright.sync_api import expect

    check = page.locator(".jp-CodeCell", has=page.locator(".cm-content", has_text=f'check("{question}")'))
    shown = check.locator(".jp-RenderedHTML > div")
    expect(shown).to_contain_text(text, timeout=60_000)
    red, green, blue = bytes.fromhex(color[1:])
    expect(shown).to_have_css("border-left-color", f"rgb({red}, {green}, {blue})")


def move_the_first_slider(page):
    """By the keyboard; the picture follows."""
    from playwright.sync_api import expect

    cell = page.locator(".jp-CodeCell", has_text="viz.play(").last
    cell.scroll_into_view_if_needed()
    picture = cell.locator(".jp-RenderedImage img").last
    before = picture.get_attribute("src")
    cell.get_by_role("slider").first.press("ArrowLeft")
    expect(picture).not_to_have_attribute("src", before, timeout=30_000)


def move_the_calculator(page):
    """Two controls in quick succession: the picture and the table follow, and nothing is printed beside them."""
    from playwright.sync_api import expect

    cell = page.locator(".jp-CodeCell", has_text="viz.memory_calculator()")
    cell.scroll_into_view_if_needed()
    picture, outputs = cell.locator(".jp-RenderedImage img"), cell.locator(".jp-OutputArea-child")
    before, table, count = picture.get_attribute("src"), cell.locator("table").text_content(), outputs.count()
    cell.get_by_label("gradient checkpointing").check()
    cell.get_by_role("button", name="autocast").click()
    expect(picture).not_to_have_attribute("src", before, timeout=20_000)
    expect(cell.locator("table")).not_to_have_text(table, timeout=20_000)
    assert outputs.count() == count
    page.wait_for_selector('.jp-Notebook-ExecutionIndicator[data-status="idle"]', timeout=60_000)


def forget_outputs(notebook):
    stored = nbformat.read(notebook, 4)
    for cell in code_cells(stored):
        cell.outputs, cell.execution_count = [], None
    nbformat.write(stored, notebook)


def code_cells(stored):
    return [cell for cell in stored.cells if cell.cell_type == "code" and cell.source.strip()]


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


def save_picture(page, name):
    folder = ROOT / "build" / "browser"
    folder.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=folder / f"{name}.png")
