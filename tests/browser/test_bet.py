"""A reader bets in the copy that `course lab` opens: nothing below gives the answer away, and what is typed counts."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output
from real import LAB, copy_course, kept_in, save_picture, served

from course_staff.notebooks.setup_cell import setup_source

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

BET = "from course_utils.bets import bet, picture, settle\n\nbet('07-peak', 50, '% of the peak', 'How much is left?')"
ANSWER = "it is 43.3 % of the peak"


@pytest.fixture
def checkout(tmp_path):
    """A copy of the course whose first chapter is a bet, executed and stored."""
    copy_course(tmp_path / "course", "notebooks", "course_utils")
    outputs = [new_output("display_data", {"text/html": f"<details><p>{ANSWER}</p></details>", "text/plain": ANSWER})]
    cells = [new_code_cell(source) for source in (setup_source(), BET)]
    cells += [
        new_code_cell(source, outputs=outputs, execution_count=3) for source in ("settle('07-peak', 43.3)", "picture()")
    ]
    kernel = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    notebook = new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.write(notebook, tmp_path / "course" / "notebooks" / "00_start_here.ipynb")
    return tmp_path / "course"


@pytest.fixture
def page(browser, checkout):
    with served(
        "-m",
        "course_utils.cli",
        "lab",
        "00",
        "--port",
        "0",
        address=LAB,
        home=checkout.parent,
        cwd=checkout,
        COURSE_STRICT="0",
    ) as address:
        page = browser.new_page(viewport={"width": 1000, "height": 1000})
        page.goto(address)
        page.wait_for_selector(".jp-NotebookPanel .jp-Cell", timeout=60_000)
        page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)
        yield page
        page.close()


def test_a_notebook_that_is_opened_again_and_saved_shows_its_boxes_as_they_were(page):
    """Its kernel is gone, and with it what moves them; JupyterLab would show an error in their place, and save none of them."""
    from playwright.sync_api import expect

    cells = page.locator(".jp-CodeCell")
    cells.first.locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    page.keyboard.press("Shift+Enter")
    box = cells.nth(1).locator("input[type=text]")
    box.wait_for(timeout=60_000)
    box.fill("70")
    expect(cells.nth(1)).to_contain_text("Your bet: 70 % of the peak.")
    box.press("Control+s")  # in the box, too
    page.wait_for_timeout(1_000)
    server = page.url.partition("/lab")[0]
    for kernel in page.request.get(f"{server}/api/kernels").json():
        token = page.evaluate("document.cookie.match(/_xsrf=([^;]*)/)[1]")
        page.request.delete(f"{server}/api/sessions/{session_of(page, server, kernel)}", headers={"X-XSRFToken": token})
    page.goto(f"{server}/lab/workspaces/again/tree/notebooks/00_start_here.ipynb")
    expect(box).to_have_value("70", timeout=60_000)
    page.wait_for_timeout(2_000)
    save_picture(page, "opened-again")
    assert "model not found" not in page.inner_text("body")
    cells.nth(2).locator(".cm-content").click()
    page.keyboard.press("Control+s")
    page.wait_for_timeout(1_000)
    page.goto(f"{server}/lab/workspaces/once-more/tree/notebooks/00_start_here.ipynb")
    expect(box).to_have_value("70", timeout=60_000)
    assert "model not found" not in page.inner_text("body")


def session_of(page, server, kernel):
    sessions = page.request.get(f"{server}/api/sessions").json()
    return next(session["id"] for session in sessions if session["kernel"]["id"] == kernel["id"])


def test_nothing_below_the_bet_gives_it_away_and_what_is_typed_counts(page, checkout):
    from playwright.sync_api import expect

    before = (checkout / "notebooks" / "00_start_here.ipynb").read_bytes()
    cells = page.locator(".jp-CodeCell")
    expect(cells).to_have_count(4)
    assert page.locator(".jp-OutputArea-output").count() == 0
    assert ANSWER not in page.content()

    cells.first.locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    page.keyboard.press("Shift+Enter")
    box = cells.nth(1).locator("input[type=text]")
    expect(box).to_have_value("50", timeout=60_000)
    assert "How much is left?" in cells.nth(1).inner_text()
    box.click()
    page.keyboard.type("70")  # in place of the 50, and without Enter, too
    expect(cells.nth(1)).to_contain_text("Your bet: 70 % of the peak.")
    save_picture(page, "bet")

    cells.nth(2).locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    expect(cells.nth(2)).to_contain_text(f"You bet 70 % of the peak; {ANSWER}: too high by a factor of 1.62.")
    page.keyboard.press("Shift+Enter")
    cells.nth(3).locator(".jp-RenderedImage img").wait_for(timeout=60_000)
    page.keyboard.press("Control+s")
    page.wait_for_timeout(1_000)
    save_picture(page, "settled")
    bet = kept_in(checkout.parent / "home", "bets", "07")["07-peak"]
    assert (bet["guess"], bet["truth"]) == (70, 43.3)
    assert (checkout / "notebooks" / "00_start_here.ipynb").read_bytes() == before, "only the copy is written to"
    assert ANSWER in (checkout.parent / "home" / "my-course" / "notebooks" / "00_start_here.ipynb").read_text()
