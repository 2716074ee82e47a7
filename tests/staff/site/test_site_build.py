"""The site as it is built: complete, whole in itself, light, and without a dead link."""

import json
import re
from pathlib import Path

import pytest
from bs4 import BeautifulSoup
from site_pages import ROOT, addresses_in, pages_in

from course_staff.notebooks.links import prose
from course_staff.site.build import build, pages_of
from course_staff.site.cost_tables import MODELS
from course_utils.desk.workspace import without_outputs
from course_utils.errors import CourseError
from course_utils.files import Place

# A build takes about half a minute.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MIB = 2**20
CHAPTERS = [name for name in pages_of(ROOT) if name.startswith("notebooks/")]


@pytest.fixture(scope="module")
def site_and_warnings(tmp_path_factory) -> tuple[Path, list[str]]:
    site = tmp_path_factory.mktemp("site")
    return site, build(Place(ROOT), site)


@pytest.fixture(scope="module")
def site(site_and_warnings) -> Path:
    return site_and_warnings[0]


@pytest.fixture(scope="module")
def pages(site) -> dict:
    return {page.path.relative_to(site).as_posix(): page for page in pages_in(site)}


def test_it_is_built_without_a_warning(site_and_warnings):
    assert site_and_warnings[1] == []


def test_a_folder_with_other_things_in_it_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work", encoding="utf-8")
    with pytest.raises(CourseError, match="contains files that are not a site"):
        build(Place(ROOT), tmp_path)
    assert (tmp_path / "thesis.tex").read_text(encoding="utf-8") == "years of work"


def test_every_chapter_exercise_and_guide_is_a_page(pages):
    expected = {re.sub(r"\.\w+$", ".html", name) for name in pages_of(ROOT)} | {
        "index.html",
        "cost.html",
        *(f"cost/{model}.html" for model in MODELS),
        "search.html",
    }
    assert expected <= pages.keys()
    guides = {f"docs/{path.stem}.html" for path in (ROOT / "docs").glob("*.md")}
    assert guides <= pages.keys(), "every guide of the course"


def test_every_link_leads_to_a_file_and_every_anchor_to_a_place_in_it(pages, site):
    ids = {page.path: page.ids() for page in pages.values()}
    dead = []
    for page in pages.values():
        for link in page.links():
            if link.path is None or link.target in ("#", "#top"):
                continue
            exists = link.path.is_file() and (not link.anchor or link.anchor in ids.get(link.path, {link.anchor}))
            dead += [] if exists else [f"{page.path.relative_to(site)}: {link.target}"]
    assert dead == []


def test_it_asks_nobody_else_for_anything(pages, site):
    """Every script, style, font and picture is the site's own file."""
    missing = [
        (asset.page.name, asset.target)
        for page in pages.values()
        for asset in page.assets()
        if not (asset.path and asset.path.is_file())
    ]
    assert missing == []
    for style in site.rglob("*.css"):
        for address in addresses_in(style):
            assert (style.parent / address.partition("?")[0].partition("#")[0]).is_file(), f"{style.name}: {address}"


def test_links_that_lead_nowhere_on_it_are_known(site):
    """Only files that nobody reads on a site: what is a page, or is handed out, stays a link."""
    dead = []
    for page in pages_in(site):
        dead += [
            anchor.get_text()
            for anchor in page.soup.select("article a:not([href])")
            if not (anchor.get("id") or anchor.get("name"))
        ]
    assert dead == []


def test_a_page_has_at_most_one_mebibyte_of_its_own(pages):
    for name, page in pages.items():
        figures = {asset.path for asset in page.assets() if "figures" in asset.target}
        assert sum(path.stat().st_size for path in {page.path, *figures}) <= MIB, name


def test_what_all_pages_share_is_at_most_two_and_a_half(pages):
    assets = {asset.path for page in pages.values() for asset in page.assets()}
    shared = {path for path in assets if path.suffix in (".js", ".css")}
    styles = [path for path in shared if path.suffix == ".css"]
    fonts = {(style.parent / link.partition("?")[0]).resolve() for style in styles for link in addresses_in(style)}
    assert sum(path.stat().st_size for path in shared | fonts) <= 2.5 * MIB


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_chapter_shows_all_that_its_notebook_holds(name, pages):
    page = pages[name.replace(".ipynb", ".html")].soup
    cells = json.loads((ROOT / name).read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(page.select("div.cell")) == len(code)
    text, alts = without_space(page.get_text()), [image["alt"] for image in page.select("img.figure")]
    assert all(alts)
    for cell in code:
        assert without_space("".join(cell["source"])) in text
        played = any(play in "".join(cell["source"]) for play in ("viz.play(", "viz.planner("))
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                assert played or output["metadata"]["image/png"]["alt"] in alts
            elif "text/html" in data and not played:
                assert without_space(BeautifulSoup("".join(data["text/html"]), "html.parser").get_text()) in text
            elif "text/markdown" not in data and not played:
                assert without_space("".join(output.get("text", data.get("text/plain", "")))) in text


def without_space(text: str) -> str:
    return re.sub(r"\s+", "", text)


@pytest.mark.parametrize("name", CHAPTERS)
def test_a_formula_is_set_without_a_script(name, pages):
    text = re.sub(r"```.*?```|`[^`]*`", "", "\n".join(text for _, text in prose(ROOT / name)), flags=re.DOTALL)
    formulas = re.findall(r"\$\$.+?\$\$|\$[^$\n]+\$", text, flags=re.DOTALL)
    page = pages[name.replace(".ipynb", ".html")].soup
    assert len(page.select("math")) == len(formulas)
    assert "$" not in "".join(formula.get_text() for formula in page.select("math"))


@pytest.mark.parametrize("name", CHAPTERS)
def test_an_interactive_figure_stands_there_in_three_settings(name, pages):
    stills = pages[name.replace(".ipynb", ".html")].soup.select(".stills figure")
    labels = [figure.figcaption.get_text() for figure in stills]
    assert len(labels) == len(set(labels)) == 3
    assert all(figure.img["alt"] and figure.img["loading"] == "lazy" for figure in stills)
    assert all(figure.a["href"] == figure.img["src"] for figure in stills), "one click shows it in full size"


def test_the_notebooks_to_download_are_those_that_are_handed_out(site):
    """Without outputs: those would give a bet's answer away."""
    for name in pages_of(ROOT):
        if name.endswith(".ipynb"):
            assert (site / "downloads" / name).read_bytes() == without_outputs(ROOT / name)


def test_every_page_says_what_it_is_to_those_who_show_a_link_to_it(pages):
    for name, page in pages.items():
        if name in ("search.html", "genindex.html"):
            continue
        properties = {
            tag.get("property") or tag.get("name"): tag["content"] for tag in page.soup.select("meta[content]")
        }
        assert len(properties["og:title"]) > 3, name
        assert len(properties["description"]) > 40, name
        picture = (page.path.parent / properties["og:image"]).resolve()
        assert picture.read_bytes()[:4] == b"\x89PNG", name
