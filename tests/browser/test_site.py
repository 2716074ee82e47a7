"""The site as its readers meet it: from a folder, without a network, by pointer and by keyboard, in the light and in the dark."""

import re
from pathlib import Path

import pytest
from site_pages import ROOT, pages_in

from course_staff.site.build import build
from course_staff.site.cost_tables import BATCHES, LENGTHS, METHODS, command, rows_of
from course_utils.files import Place
from course_utils.hardware import MACHINES

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(1800)]
WIDTHS = (390, 800, 1280, 1920)
THEMES = ("light", "dark")
CHAPTER = "notebooks/03_adamw.html"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    assert build(Place(ROOT), folder) == []
    return folder


@pytest.fixture
def opened(site, browser):
    """Opens a page from the folder; whatever is asked of anybody else is refused, and so is a fault in a script."""
    contexts, faults = [], []

    def opened(name: str, theme: str = "light", width: int = 1280):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        context.add_init_script(f"localStorage.setItem('mode', '{theme}'); localStorage.setItem('theme', '{theme}')")
        contexts.append(context)

        def only_files(route):
            if route.request.url.startswith("file:"):
                route.continue_()
            else:
                faults.append(route.request.url)
                route.abort()

        context.route("**/*", only_files)
        page = context.new_page()
        page.on("pageerror", lambda error: faults.append(f"{name}: {error}"))
        page.on("requestfailed", lambda request: faults.append(request.url))
        file, query = re.match(r"([^?#]*)(.*)", name).groups()
        page.goto((site / file).as_uri() + query)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert faults == []


def names(site: Path) -> list[str]:
    return [page.path.relative_to(site).as_posix() for page in pages_in(site)]


def show_everything(page) -> None:
    """And let the theme settle: it fades in what unfolds, and looks a moment later which blocks of code can be scrolled."""
    page.add_style_tag(content="* { animation: none !important; transition: none !important; }")
    while (buttons := page.locator(".bet-cover button:visible")).count():
        buttons.first.click()
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    page.wait_for_timeout(500)


def test_a_bet_covers_its_answer_until_the_reader_clicks(opened):
    page = opened(CHAPTER)
    covered = page.locator("[data-under]")
    assert covered.count() > 10
    assert page.locator("[data-under]:visible").count() == 0
    page.locator(".bet-cover button").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("[data-under]:visible").count() > 10
    assert page.evaluate("document.activeElement.matches('[data-under].open')"), "the keyboard goes on from there"
    show_everything(page)
    assert page.locator(".bet-cover").count() == 0
    assert page.locator("[data-under]:not(.open)").count() == 0


def test_a_link_to_a_covered_heading_uncovers_it_and_one_to_a_bets_own_section_does_not(opened):
    for chapter in ("notebooks/00_start_here.html", "notebooks/13_capstone.html"):
        page = opened(chapter)
        contents = page.locator("#pst-page-toc-nav a")
        contents.filter(has_text="Predict the cost").first.click()
        page.wait_for_function("location.hash === '#cost-before'")
        assert page.locator("[data-under]:visible").count() == 0, chapter
        contents.filter(has_text="Summary").first.click()
        page.wait_for_function("location.hash === '#summary'")
        assert page.locator("#summary h2").is_visible()


def test_a_bet_stays_open_when_the_page_is_loaded_again(opened):
    page = opened(CHAPTER)
    page.locator(".bet-cover button").first.click()
    page.reload()
    assert page.locator("[data-under]:visible").count() > 10


def test_a_fragment_that_means_nothing_harms_nothing(opened):
    page = opened(f"{CHAPTER}#100%")
    assert page.locator("a[data-term]").count() > 5


def test_without_scripts_all_of_a_page_is_there(site, browser):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((site / CHAPTER).as_uri())
    assert page.locator("[data-under]:visible").count() > 10
    assert page.locator(".bet-cover:visible").count() == 0
    assert page.locator("math:visible").count() > 0
    context.close()


def test_formulas_are_set_in_the_font_that_the_site_brings(opened):
    page = opened(CHAPTER)
    show_everything(page)
    page.wait_for_function("[...document.fonts].some((one) => one.family.includes('STIX') && one.status === 'loaded')")
    box = page.locator(".formula math").nth(1).bounding_box()
    assert box["height"] > 30, "a fraction has two floors"


def test_the_search_finds_a_word_of_a_chapter(opened):
    page = opened("search.html?q=Adafactor")
    page.wait_for_selector("#search-results li")
    addresses = page.locator("#search-results li a").evaluate_all("all => all.map((one) => one.getAttribute('href'))")
    assert any(address.startswith("notebooks/04_adafactor.html") for address in addresses)


@pytest.mark.parametrize("device", ["pointer", "keyboard"])
def test_a_term_shows_what_it_means(device, opened):
    page = opened(CHAPTER)
    term = page.locator("a[data-term]").first
    term.hover() if device == "pointer" else term.focus()
    card = page.locator("#term-card")
    assert card.is_visible()
    assert card.inner_text() == term.get_attribute("data-term") == term.get_attribute("aria-description")
    page.keyboard.press("Escape")
    assert not card.is_visible()


@pytest.mark.parametrize("width", WIDTHS)
def test_the_first_screen_leads_to_an_answer(width, opened):
    page = opened("index.html", width=width)
    assert "course plan llama-3.1-8b --memory 24GB" in page.locator(".hero pre").inner_text()
    page.locator(".hero a.answer").click()
    page.wait_for_url(re.compile(r"cost/llama-3\.1-8b\.html"))
    assert page.locator("section.cost:visible").count() == 1
    assert page.locator("tr[data-most]:visible").count() == len(METHODS)


def test_the_page_of_a_model_shows_what_fits_on_the_chosen_card_and_its_command(opened):
    page = opened("cost/llama-3.1-8b.html")
    page.locator("select[name=tokens]").select_option("512")
    page.locator("select[name=batch]").select_option("4")
    page.locator("select[name=card]").select_option("RTX 4090")
    memory = MACHINES["RTX 4090"].memory
    possible = [row["method"] for row in rows_of("llama-3.1-8b", 4, 512) if row["least"] <= memory]
    assert 0 < len(possible) < len(METHODS)
    assert page.locator("tr[data-most]:visible th").all_inner_texts() == possible
    page.locator("tr[data-most]:visible button").last.click()
    visible_command = page.locator("pre.command:visible").inner_text()
    method = next(method for method in METHODS if method.name == possible[-1])
    assert visible_command == command("llama-3.1-8b", method, 4, 512, '"RTX 4090"')
    page.reload()
    assert page.locator("select[name=card]").input_value() == "RTX 4090", "the address holds the question"


def test_without_scripts_the_page_of_a_model_shows_all_its_tables(site, browser):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((site / "cost/llama-3.1-8b.html").as_uri())
    assert page.locator("section.cost:visible").count() == len(LENGTHS) * len(BATCHES)
    assert not page.locator(".cost-form").is_visible()
    context.close()


@pytest.mark.parametrize("theme", THEMES)
def test_a_figure_follows_the_theme(theme, opened):
    page = opened(CHAPTER, theme)
    show_everything(page)
    figure = page.locator("img.figure").first
    filtered = figure.evaluate("one => getComputedStyle(one).filter")
    assert (filtered != "none") == (theme == "dark")


@pytest.mark.parametrize("width", WIDTHS)
def test_no_page_is_wider_than_the_window(width, opened, site):
    for name in names(site):
        page = opened(name, width=width)
        show_everything(page)
        too_wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert too_wide <= 0, name
        page.context.close()


@pytest.mark.parametrize("theme", THEMES)
def test_axe_finds_nothing_serious_on_any_page(theme, opened, site):
    from axe_playwright_python.sync_playwright import Axe

    misplaced = []
    for name in names(site):
        page = opened(name, theme)
        show_everything(page)
        violations = Axe().run(page, options={"preload": False}).response["violations"]  # a folder allows no fetch
        misplaced += [
            (name, fault["id"], fault["nodes"][0]["html"])
            for fault in violations
            if fault["impact"] in ("serious", "critical")
        ]
        page.context.close()
    assert misplaced == []
