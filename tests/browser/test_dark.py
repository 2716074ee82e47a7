"""Light and dark in JupyterLab: figures, controls and source, on a page long enough to be scrolled, in a real browser."""

import json
from urllib.request import Request, urlopen

import pytest
from nbformat import write
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from real import LAB, copy_course, save_picture, served
from test_lab import await_all_cells, choose_theme, url_of

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

KERNEL = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
BEGIN = "from course_utils.chapters import begin\nbegin()"
FIGURE = """import matplotlib.pyplot as plt
from course_utils import optim, viz
def draw(side="left"):
    figure, axes = plt.subplots(figsize=(4, 2))
    axes.set_title(side)
    return figure, f"An empty plot, {side} & <right>."
viz.show(*draw())"""
READERS_PICTURE = (
    "figure, _ = draw()\nfigure.savefig('own.png')\nfrom IPython.display import Image\nImage('own.png', width=300)"
)
PLAY = """from pathlib import Path
from time import sleep
from ipywidgets import Checkbox, ToggleButtons
def drawn(side, on):
    while not (on or Path("go-on").exists()):
        sleep(0.05)
    return draw(side)
viz.play(drawn, side=ToggleButtons(options=("left", "right"), description="the side of the plot"),
         on=Checkbox(True, description="on"))"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("dark") / "course"


@pytest.fixture(scope="module")
def opened(browser, folder):
    """The page with the notebook, every cell run, in JupyterLab as it takes cells out of the page that are out of sight."""
    copy_course(folder, "notebooks", "exercises", "course_utils")
    cells = [new_code_cell(BEGIN), new_code_cell(FIGURE), new_code_cell(READERS_PICTURE)]
    cells += [new_code_cell("viz.source(optim.AdamW)")]
    cells += [new_markdown_cell("\n\n".join(["One line of many."] * 12)) for _ in range(12)] + [new_code_cell(PLAY)]
    notebook = folder / "notebooks" / "99_dark.ipynb"
    write(new_notebook(cells=cells, metadata={"kernelspec": KERNEL}), notebook)
    command = ("-m", "course_utils.cli", "lab", "--port", "0", str(notebook))
    with served(*command, address=LAB, home=folder.parent, cwd=folder, COURSE_SCALE="smoke") as address:
        setting = json.dumps({"raw": json.dumps({"windowingMode": "full"})}).encode()
        url = url_of(address, "/lab/api/settings/@jupyterlab/notebook-extension:tracker")
        urlopen(Request(url, setting, method="PUT"), timeout=20)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(address)
        page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.locator(".lm-Menu-itemLabel").get_by_text("Run All Cells", exact=True).click()
        await_all_cells(page, folder.parent / "home" / "my-course" / "notebooks" / "99_dark.ipynb")
        yield page
        page.close()


def scroll(page, share: float) -> None:
    """To this share of the notebook, in steps, since JupyterLab learns the height of cells on the way."""
    for _ in range(12):
        page.locator(".jp-WindowedPanel-outer").evaluate(f"one => one.scrollTo(0, {share} * one.scrollHeight)")
        page.wait_for_timeout(150)


def filters(page) -> list[tuple[str, str]]:
    """What each picture in the page has for a text, and which filter it is drawn with."""
    return page.evaluate(
        "[...document.querySelectorAll('.jp-RenderedImage img')].map(one => [one.alt, getComputedStyle(one).filter])"
    )


def test_figures_of_the_course_follow_the_theme_and_a_readers_own_picture_stays(opened):
    scroll(opened, 0)
    choose_theme(opened, "Light")
    assert filters(opened)[:2] == [["An empty plot, left & <right>.", "none"], ["", "none"]]
    choose_theme(opened, "Dark")
    save_picture(opened, "dark-top")
    (text, filter_of_figure), of_reader = filters(opened)[:2]
    assert (text, of_reader) == ("An empty plot, left & <right>.", ["", "none"])
    assert "invert" in filter_of_figure


def test_they_do_so_when_the_first_cell_is_out_of_the_page_and_when_a_control_was_moved(opened):
    choose_theme(opened, "Dark")
    scroll(opened, 1)
    assert opened.locator(".jp-CodeCell", has_text="begin()").count() == 0, "it is out of sight, and out of the page"
    opened.get_by_role("button", name="right").click()
    opened.locator("img[alt='An empty plot, right & <right>.']").wait_for(timeout=20_000)
    assert "invert" in filters(opened)[-1][1]
    save_picture(opened, "dark-end")


def test_a_figure_is_pale_while_its_next_picture_is_drawn(opened, folder):
    scroll(opened, 1)
    opacity = "getComputedStyle([...document.querySelectorAll('.jp-RenderedImage img')].at(-1)).opacity"
    assert opened.evaluate(opacity) == "1"
    opened.get_by_role("checkbox", name="on").uncheck()
    opened.wait_for_function(f"{opacity} < 0.5", timeout=20_000)
    save_picture(opened, "dark-pale")
    (folder.parent / "home" / "my-course" / "notebooks" / "go-on").touch()
    opened.wait_for_function(f"{opacity} == 1", timeout=20_000)
    opened.get_by_role("checkbox", name="on").check()


@pytest.mark.parametrize("theme", ["Light", "Dark"])
def test_a_pressed_button_is_told_from_the_others(theme, opened):
    choose_theme(opened, theme)
    scroll(opened, 1)
    look = "all => all.map(one => [one.getAttribute('aria-pressed'), getComputedStyle(one).backgroundColor])"
    colors = dict(opened.locator(".widget-toggle-button").evaluate_all(look))
    assert colors["true"] == "rgb(0, 114, 178)"
    red, green, blue = (int(part) for part in colors["false"].strip("rgb()").split(","))
    assert abs(red - green) < 20, "the others are gray"
    assert abs(green - blue) < 20


@pytest.mark.parametrize("width", [800, 1280, 1920])
def test_source_is_broken_between_words_only(width, opened):
    opened.set_viewport_size({"width": width, "height": 900})
    scroll(opened, 0)
    listing = opened.locator(".jp-RenderedMarkdown pre", has_text="class AdamW")
    listing.scroll_into_view_if_needed()
    torn, seen = listing.evaluate(
        """listing => {
            const nodes = document.createTreeWalker(listing, NodeFilter.SHOW_TEXT), torn = []
            let seen = 0
            while (nodes.nextNode())
                for (const word of nodes.currentNode.textContent.matchAll(/\\w+/g)) {
                    const place = document.createRange()
                    place.setStart(nodes.currentNode, word.index)
                    place.setEnd(nodes.currentNode, word.index + word[0].length)
                    seen += 1
                    if (new Set([...place.getClientRects()].map(one => Math.round(one.top))).size > 1) torn.push(word[0])
                }
            return [torn, seen]
        }"""
    )
    save_picture(opened, f"source-{width}")
    assert seen > 50
    assert torn == []
