"""A reader bets, in a notebook and outside; is told how far off; and sees all bets in one picture."""

import html

import pytest

from course_utils.desk import bets
from course_utils.desk.bets import Bet, bet, settle
from course_utils.desk.bets_figure import figure_of, picture
from course_utils.errors import CourseError
from course_utils.settings import LIVE_OUTPUT, settings
from course_utils.store import Section

WIDGET = "application/vnd.jupyter.widget-view+json"


pytestmark = pytest.mark.usefixtures("restart")


@pytest.fixture
def notebook(monkeypatch):
    """A notebook's kernel with a reader; the bundles that it displays."""
    bundles = []

    def display(bundle, raw, metadata=None):
        if metadata != LIVE_OUTPUT:
            bundles.append(bundle)

    monkeypatch.setattr(bets, "has_kernel", lambda: True)
    for path in ("IPython.display.display", "course_utils.viz.display.display"):
        monkeypatch.setattr(path, display)
    return bundles


def read_unattended(monkeypatch):
    monkeypatch.setenv("COURSE_READER", "0")
    settings.cache_clear()


def panel_of(bundles):
    """The box and the message of the bet that was shown last."""
    from ipywidgets.widgets.widget import _instances

    panel = [bundle for bundle in bundles if WIDGET in bundle][-1][WIDGET]["model_id"]
    _, box, message = _instances[panel].children
    return box, message


def box_of(bundles):
    return panel_of(bundles)[0]


def test_outside_a_notebook_a_bet_and_its_end_are_two_lines(capsys):
    assert bet("07-peak", 50, "% of the peak", "How much is left?") == 50.0
    settle("07-peak", 43.3)
    assert capsys.readouterr().out.splitlines() == [
        "How much is left? Your bet: 50 % of the peak.",
        "You bet 50 % of the peak; it is 43.3 % of the peak: too high by a factor of 1.15.",
    ]


def test_what_is_typed_counts_until_the_number_of_the_cell_changes(notebook, restart):
    assert bet("07-peak", 50, "%") == 50
    box_of(notebook).value = "70"
    settle("07-peak", 35)
    assert notebook[-1]["text/plain"] == "You bet 70 %; it is 35 %: too high by a factor of 2."
    restart()
    assert bet("07-peak", 50, "%") == 70, "the chapter is run again"
    assert box_of(notebook).value == "70"
    assert bet("07-peak", 40, "%") == 40, "the reader changed the cell"
    settle("07-peak", 35)
    assert "You bet 40 %" in notebook[-1]["text/plain"]


def test_the_box_has_the_question_beside_it_and_says_what_stands(notebook):
    bet("07-peak", 50, "GB", "How <much>?")
    assert notebook[0]["text/plain"] == "How <much>? Your bet: 50 GB."
    assert notebook[0]["text/html"] == "<p>How &lt;much&gt;? Your bet: 50 GB.</p>"
    box = box_of(notebook)
    assert (box.value, box.description) == ("50", "your bet (GB)")


@pytest.mark.parametrize("restarted", [False, True], ids=["at once", "after a restart"])
def test_once_the_truth_is_known_a_bet_stays_until_its_cell_is_changed(notebook, restart, restarted):
    bet("07-peak", 50)
    settle("07-peak", 35)
    if restarted:
        restart()
        assert bet("07-peak", 50) == 50
    box, message = panel_of(notebook)
    assert box.disabled is restarted
    box.value = "35"
    assert box.value == "50"
    assert "You bet 50; it is 35: too high by a factor of 1.43. This bet is final." in message.value
    assert "change the number after &#x27;07-peak&#x27; in the cell" in message.value
    assert bets.load_bets()["07-peak"] == Bet(50, 50, "", 35)
    assert bet("07-peak", 40) == 40
    assert bets.load_bets()["07-peak"].truth is None


def test_a_computed_number_has_four_digits_in_the_box_and_counts_in_full(notebook):
    assert bet("00-peak", 14.388824462890625) == 14.388824462890625
    assert box_of(notebook).value == "14.39"
    assert bets.load_bets()["00-peak"].guess == 14.388824462890625


@pytest.mark.parametrize(
    ("guess", "truth", "unit", "sentence"),
    [
        (112, 98.7, "GB", "You bet 112 GB; it is 98.7 GB: too high by a factor of 1.13."),
        (4, 98.7, "", "You bet 4; it is 98.7: too low by a factor of 24.7."),
        (3, 3, "blocks", "You bet 3 blocks; it is 3 blocks: exactly right."),
        (0, 0, "", "You bet 0; it is 0: exactly right."),
        (49.83, 49.81, "%", "You bet 49.83 %; it is 49.81 %: less than 1 % too high."),
        (0, 8, "bytes", "You bet 0 bytes; it is 8 bytes: 8 bytes too low."),
        (8, 0, "", "You bet 8; it is 0: 8 too high."),
        (-3, 2, "", "You bet -3; it is 2: 5 too low."),
        (-3, -5, "", "You bet -3; it is -5: 2 too high."),
        (8_409_088, 4_743_172, "B", "You bet 8,409,088 B; it is 4,743,172 B: too high by a factor of 1.77."),
        (1e-300, 1e300, "", "You bet 1e-300; it is 1e+300: too low by a factor of 1e+300."),
    ],
)
def test_how_far_off_is_said_in_one_line(guess, truth, unit, sentence):
    assert str(Bet(guess, guess, unit, truth)) == sentence


def test_numbers_of_torch_and_numpy_are_taken_and_others_refused():
    import numpy
    import torch

    assert bet("01-x", torch.tensor(3.5)) == 3.5
    settle("01-x", numpy.float32(2))
    for value in ("many", None, float("nan"), float("inf"), [1, 2]):
        with pytest.raises(CourseError, match="must be a number"):
            bet("01-x", value)
        with pytest.raises(CourseError, match="must be a number"):
            settle("01-x", value)


def test_what_was_never_bet_says_which_cell_to_run():
    with pytest.raises(CourseError, match=r"no bet '07-peak' yet; first run the cell with bet\('07-peak', …\)"):
        settle("07-peak", 3)
    for name in ("peak", "7-peak", "07", "07-../x", None):
        with pytest.raises(CourseError, match="begin with the chapter's number"):
            bet(name, 3)


def test_bets_outlive_the_kernel_beside_those_of_other_notebooks(capsys, restart):
    bet("07-peak", 50)
    restart()
    bet("07-forwards", 12)
    bet("05b-best", 1)
    restart()
    for name in ("07-peak", "07-forwards", "05b-best"):
        settle(name, 24)
    assert capsys.readouterr().out.count("it is 24") == 3


def test_where_nothing_can_be_kept_the_bet_still_stands(caplog, capsys):
    settings().home.write_text("a file stands where the folder should be")
    bet("07-a", 2)
    settle("07-a", 2)
    assert "exactly right" in capsys.readouterr().out
    assert "will be forgotten" in caplog.text


def test_where_nobody_reads_along_the_cell_counts_and_the_answer_is_folded(monkeypatch, notebook, capsys, restart):
    bet("07-peak", 50)
    box_of(notebook).value = "70"
    settle("07-peak", 35)
    assert notebook[-1]["text/html"].startswith("<details open>")
    before = Section("bets").load()
    restart()
    read_unattended(monkeypatch)
    notebook.clear()
    assert bet("07-peak", 50, "%") == 50
    settle("07-peak", 25)
    assert capsys.readouterr().out.endswith("Your bet: 50 %.\n")
    assert notebook[-1] == {
        "text/html": "<details><summary>Your bet and the truth</summary>"
        "<p>You bet 50 %; it is 25 %: too high by a factor of 2.</p></details>",
        "text/plain": "You bet 50 %; it is 25 %: too high by a factor of 2.",
    }
    assert Section("bets").load() == before


def test_the_picture_holds_every_chapter_or_where_nobody_reads_this_notebook(monkeypatch, notebook, restart):
    for name in ("07-peak", "02-state", "10-open"):
        bet(name, 50)
    settle("07-peak", 40)
    settle("02-state", 0)
    restart()
    notebook.clear()
    picture()
    alt = notebook[-1]["text/plain"]
    assert alt == (
        "Each bet as a multiple of the truth, on a logarithmic axis: 02-state: bet 50, is 0, 50 too high; "
        "07-peak: bet 50, is 40, too high by a factor of 1.25."
    )
    read_unattended(monkeypatch)
    bet("07-peak", 50)
    settle("07-peak", 40)
    picture()
    assert "02-state" not in notebook[-1]["text/plain"]


@pytest.mark.parametrize(
    ("pairs", "title"),
    [
        ([(50, 40)], "Your bet was too high by a factor of 1.25"),
        ([(5, 0)], "Your bet was 5 too high"),
        (
            [(0, 0), (1, 0), (1, 1), (1, 2), (1, 2.1), (-1, 3)],
            "3 of your 6 bets came within a factor of 2 of the truth",
        ),
        ([(1e300, 1e-300), (1, 1)], "1 of your 2 bets came within a factor of 2 of the truth"),
    ],
)
def test_no_pair_of_numbers_breaks_the_picture(pairs, title):
    figure, alt = figure_of({f"07-{number}": Bet(guess, 1, "", truth) for number, (guess, truth) in enumerate(pairs)})
    figure.canvas.draw()
    assert figure.get_suptitle() == title
    assert alt.count("07-") == len(pairs)


def test_beside_the_box_stands_which_number_counts_and_how_to_go_on(notebook, restart):
    bet("07-peak", 50, "MiB")
    box, message = panel_of(notebook)
    assert message.value == "Until you enter a bet, 50 MiB is used. To continue, click the next cell."
    for text in ("70", " 70 MiB"):
        box.value = text
        assert message.value == "Your bet: 70 MiB. To continue, click the next cell."
    for no_number in ("40,5", "1,000", "lots", "inf", ""):
        box.value = no_number
        assert message.value.startswith(html.escape(f"{no_number!r} is not a number; write it like 40.5"))
        assert message.value.endswith("Until then, 70 MiB is used.")
    box.value = "70"
    bet("07-peak", 50, "MiB")
    assert panel_of(notebook)[1].value == message.value
