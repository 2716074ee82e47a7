"""A reader answers an exercise in the copy that `course lab` opens: wrongly, rightly, with a slip, unsaved, and asks for ours."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import expect
from real import LAB, ROOT, copy_course, kept_in, save_picture, served
from test_lab import choose_theme, url_of

from course_utils.files import exercises_of
from course_utils.settings import environment_for_child

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

SET = "00_start_here"
EXERCISE = exercises_of(SET)
COUNT = "1000 * 256 + 256 * 10"
WRONG = f'my_bytes = {{"P": 4 * ({COUNT}), "G": 4 * ({COUNT}), "O": 8 * ({COUNT}) + 8}}'
RIGHT = f'n = {COUNT} + 266\nmy_bytes = {{"P": 4 * n, "G": 4 * n, "O": 8 * n + 16}}'
LAST = "def fullest(by_instant):\n    return list(by_instant)[-1], 0  # the last one"
GRAY, RED, GREEN = "#888888", "#D55E00", "#009E73"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """The course with its first chapter and set. JupyterLab does not save by itself, so that the test knows what is saved."""
    folder = tmp_path_factory.mktemp("exercise")
    copy_course(folder / "course", "course_utils")
    for name in (f"notebooks/{SET}.ipynb", EXERCISE, f"solutions/{SET}.ipynb"):
        (folder / "course" / name).parent.mkdir()
        shutil.copy(ROOT / name, folder / "course" / name)
    settings_file = (
        folder / "lab" / "user-settings" / "@jupyterlab" / "docmanager-extension" / "plugin.jupyterlab-settings"
    )
    settings_file.parent.mkdir(parents=True)
    settings_file.write_text('{"autosave": false}', encoding="utf-8")
    return folder / "course"


@pytest.fixture(scope="module")
def page(browser, checkout):
    """The exercise in what `course lab` serves; all its cells are run and saved."""
    command = ("-m", "course_utils.cli", "lab", "--port", "0")
    with served(*command, address=LAB, home=checkout.parent, cwd=checkout, COURSE_STRICT="0") as address:
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        page.goto(url_of(address, f"/lab/tree/{EXERCISE}"))
        page.get_by_text("Python 3 (ipykernel) | Idle").last.wait_for(timeout=60_000)
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.locator(".lm-Menu-itemLabel", has_text=re.compile("^Run All Cells$")).click()
        expect_said(page, "q3", "nothing to check yet", GRAY)
        save(page)
        yield page
        page.close()


@pytest.fixture
def course_check(checkout):
    """`course check 00`, in the terminal of the reader whose browser is open."""
    home = environment_for_child(OMP_NUM_THREADS="1", COURSE_STRICT="0", COURSE_HOME=str(checkout.parent / "home"))
    command = [sys.executable, "-m", "course_utils.cli", "check", "00"]
    return lambda: subprocess.run(
        command, cwd=checkout, env=home, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_wrong_answer_is_diagnosed_and_what_is_not_saved_is_not_judged(page, checkout, course_check):
    answer(page, "q1", WRONG)
    expect_said(page, "q1", "Diagnosis: The biases are left out everywhere", RED)
    answer(page, "q1", RIGHT)
    expect_said(page, "q1", "passed, 3 points", GREEN)
    process = course_check()
    assert process.returncode == 2
    assert re.fullmatch(r"Checking \w+\.ipynb as saved on .*; .*\n\n", process.stdout)
    assert "save the notebook first (Ctrl+S), then type this again." in process.stderr
    save(page)
    process = course_check()
    assert (process.returncode, process.stderr) == (1, "")
    assert "q1 · P, G and O by pencil: passed, 3 points" in process.stdout
    assert "1 of 3 answers is right." in process.stdout
    assert records(checkout)["q1"]["passed"]


def test_after_a_syntax_error_the_verdict_is_on_the_older_answer_and_says_so(page):
    answer(page, "q1", RIGHT)
    expect_said(page, "q1", "passed, 3 points", GREEN)
    answer(page, "q1", WRONG.replace("= {", "= {{", 1))
    expect_said(page, "q1", "failed with SyntaxError", GREEN)
    expect_said(page, "q1", "so this is a verdict on the one from In [", GREEN)
    save_picture(page, "exercise")
    answer(page, "q1", RIGHT)
    expect(result_of(page, "q1")).not_to_contain_text("Not your newest answer", timeout=60_000)


def test_our_solution_is_unlocked_by_a_try_and_stands_beside_the_answer(page, checkout):
    ask(page, "q2")
    expect_said(page, "q2", "First check your own answer", GRAY)
    answer(page, "q2", LAST)
    ask(page, "q2", "")
    expect_said(page, "q2", "not right yet", RED)
    ask(page, "q2")
    expect_said(page, "q2", "your answer and our solution", GRAY)
    lines = result_of(page, "q2").locator("div").all_inner_texts()
    assert "−     return list(by_instant)[-1], 0  # the last one" in lines
    assert "  def fullest(by_instant):" in lines
    assert [line for line in lines if line.startswith("+ ")]
    assert records(checkout)["q2"]["seen"]
    for theme in ("Light", "Dark"):
        choose_theme(page, theme)
        result_of(page, "q2").scroll_into_view_if_needed()
        save_picture(page, f"solution-{theme}")
    choose_theme(page, "Light")


def test_the_chapter_opens_beside_its_exercise_in_a_tab_that_is_called_otherwise(page):
    page.locator(".jp-RenderedMarkdown a", has_text="chapter 00").first.click()
    tabs = page.locator("#jp-main-dock-panel .lm-TabBar-tabLabel")
    expect(tabs).to_have_text([Path(EXERCISE).name, f"{SET}.ipynb"], timeout=60_000)


def records(checkout):
    return kept_in(checkout.parent / "home", "progress", SET)


def save(page):
    """Ctrl+S, until the tab no longer shows that something is not saved."""
    page.keyboard.press("Control+s")
    expect(page.locator("#jp-main-dock-panel .lm-TabBar-tab.lm-mod-current.jp-mod-dirty")).to_have_count(
        0, timeout=20_000
    )


def answer(page, question, source):
    """Replace what the answer's cell holds, then run it and the check under it."""
    write(page, f"# EXERCISE {question}", f"# EXERCISE {question}\n{source}")
    page.keyboard.press("Shift+Enter")
    page.keyboard.press("Shift+Enter")


def ask(page, question, options=", solution=True"):
    """Run the check in other words."""
    write(page, f'check("{question}"', f'check("{question}"{options})')
    page.keyboard.press("Shift+Enter")


def write(page, found_by, source):
    page.locator(".jp-CodeCell", has=page.locator(".cm-content", has_text=found_by)).locator(".cm-content").click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text(source)


def result_of(page, question):
    """What the check of this question shows: HTML came through, whole and unchanged."""
    check = page.locator(".jp-CodeCell", has=page.locator(".cm-content", has_text=f'check("{question}"'))
    return check.locator(".jp-RenderedHTML > div")


def expect_said(page, question, text, color):
    """What the check shows holds `text` and has an edge of this color."""
    expect(result_of(page, question)).to_contain_text(text, timeout=60_000)
    red, green, blue = bytes.fromhex(color[1:])
    expect(result_of(page, question)).to_have_css("border-left-color", f"rgb({red}, {green}, {blue})")
