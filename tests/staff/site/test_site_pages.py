"""From a notebook to a page's source: no pixel and no word is lost on the way."""

import io
import json
from base64 import b64encode

import matplotlib.pyplot as plt
import pytest
from bs4 import BeautifulSoup
from nbformat import v4
from PIL import Image, ImageChops

from course_staff.documents.readme import colab_place
from course_staff.site.cards import HEIGHT, WIDTH, draw_card
from course_staff.site.pages import FIGURES, Pages, Picture
from course_utils.errors import CourseError

NAME = "notebooks/01_one.ipynb"
TITLE = "# One\n\nText.\n\n**Time:** about 20 minutes. See [the plan](../docs/plan.md)."
STILLS = {NAME: [Picture(f"01-{n}.webp", f"seen {n}", 600, 300, f"setting {n}") for n in (1, 2, 3)]}


@pytest.fixture(scope="module")
def png() -> bytes:
    figure, axes = plt.subplots()
    axes.plot([0, 1], [1, 3])
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    plt.close(figure)
    return buffer.getvalue()


def picture_output(png: bytes, alt: str):
    metadata = {"image/png": {"alt": alt, "width": 400}}
    return v4.new_output("display_data", {"image/png": b64encode(png).decode(), "text/plain": alt}, metadata=metadata)


@pytest.fixture
def write(tmp_path, png):
    """Writes the page of a small chapter and gives its cells; `colab` as of `Pages`."""

    def write(colab: str = ""):
        cells = [
            v4.new_markdown_cell(TITLE),
            v4.new_code_cell("begin()", metadata={"tags": ["setup"]}),
            v4.new_code_cell("figure", id="figure", outputs=[picture_output(png, 'a "line"')]),
            v4.new_code_cell("viz.play(draw)", id="play", outputs=[picture_output(png, "the start")]),
            v4.new_code_cell(
                "link", outputs=[v4.new_output("display_data", {"text/html": '<a href="../docs/plan.md">x</a>'})]
            ),
        ]
        (tmp_path / "notebooks").mkdir(exist_ok=True)
        (tmp_path / NAME).write_text(v4.writes(v4.new_notebook(cells=cells)), encoding="utf-8")
        source = tmp_path / "source"
        Pages(tmp_path, source, STILLS, colab).write_notebook(NAME)
        return json.loads((source / NAME).read_text(encoding="utf-8"))["cells"]

    return write


def html_of(cell: dict) -> BeautifulSoup:
    return BeautifulSoup("".join("".join(output["data"]["text/html"]) for output in cell["outputs"]), "html.parser")


def test_a_picture_keeps_every_pixel_and_its_text(write, png, tmp_path):
    image = html_of(write()[2]).img
    path = tmp_path / "source" / FIGURES / image["src"].rpartition("/")[2]
    before, after = Image.open(io.BytesIO(png)).convert("RGB"), Image.open(path).convert("RGB")
    assert ImageChops.difference(before, after).getbbox() is None
    assert path.stat().st_size < len(png)
    assert image["alt"] == 'a "line"'
    assert int(image["width"]) / int(image["height"]) == pytest.approx(before.width / before.height, rel=0.01)


def test_a_picture_that_says_nothing_is_refused_by_name(tmp_path, png):
    bare = v4.new_output("display_data", {"image/png": b64encode(png).decode()})
    notebook = v4.new_notebook(cells=[v4.new_markdown_cell(TITLE), v4.new_code_cell("plot", outputs=[bare])])
    (tmp_path / "notebooks").mkdir()
    (tmp_path / NAME).write_text(v4.writes(notebook), encoding="utf-8")
    with pytest.raises(CourseError, match=rf"{NAME} has a picture without a description; show it with viz.show"):
        Pages(tmp_path, tmp_path / "source", {}).write_notebook(NAME)


def test_the_set_up_cell_is_folded(write):
    assert "hide-input" in write()[1]["metadata"]["tags"]


@pytest.mark.parametrize(
    ("repository", "offered"),
    [
        ("", None),
        ("https://git.somewhere.org/a/b", None),
        ("https://github.com/a/b", "https://colab.research.google.com/github/a/b/blob/main/notebooks/01_one.ipynb"),
    ],
)
def test_colab_is_offered_where_it_can_open_the_notebook(write, repository, offered):
    title = BeautifulSoup("".join(write(colab_place(repository))[0]["source"]), "html.parser")
    links = {link.string: link["href"] for link in title.select(".about a")}
    assert links.pop("Download the notebook") == "../downloads/notebooks/01_one.ipynb"
    assert links.get("Open in Colab") == offered


def test_a_preview_has_the_size_that_is_asked_for_and_holds_a_long_title(tmp_path):
    draw_card("Fewer bits and fewer weights", "You will test papers' claims.", tmp_path / "card.png")
    with Image.open(tmp_path / "card.png") as card:
        assert card.size == (WIDTH, HEIGHT)
        white = Image.new("RGB", card.size, "white")
        box = ImageChops.difference(card.convert("RGB"), white).getbbox()
    assert box[0] > 40
    assert box[2] < WIDTH - 40, "nothing is cut off"
