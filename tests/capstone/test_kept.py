"""The capstone's choices outlive the process, and neither damage nor a run that nobody watches takes anything from them."""

import pytest

from course_utils.capstone.kept import BudgetLine, Choice, keep, load
from course_utils.errors import CourseError
from course_utils.settings import settings
from course_utils.store import Section

ROWS = (
    ("peak of a step", 24 * 2**30, 22.5 * 2**30, 23 * 2**30, "bytes"),
    ("a step", 2.0, 1.75, None, "seconds"),
    ("sent in a step", 2**20, 2**19, 2**19, "bytes sent"),
    ("accuracy", 75, 80, 76.25, "%"),
)


pytestmark = pytest.mark.usefixtures("restart")


def choice(scenario="one-card", **fields):
    return Choice(**{"scenario": scenario, "recipe": {"batch": 4}, "layout": None, "rows": ROWS} | fields)


def leave_unattended(monkeypatch, variable):
    monkeypatch.setenv(variable, {"COURSE_READER": "0", "COURSE_STRICT": "1"}[variable])
    settings.cache_clear()


def test_a_choice_is_read_back_as_it_was_and_a_later_one_takes_its_place(restart):
    keep(choice("two-cards", layout={"ranks": [2, 4]}))
    keep(choice())
    restart()
    assert load() == (choice(), choice("two-cards", layout={"ranks": [2, 4]}))
    keep(choice(recipe={"batch": 8}))
    restart()
    assert [later.recipe for later in load()] == [{"batch": 8}, {"batch": 4}]


def test_figures_are_said_in_their_unit():
    texts = [[row.in_words(row.predicted), row.in_words(row.budget)] for row in choice().rows]
    assert texts == [["22.5 GiB", "24.0 GiB"], ["1.75 s", "2.00 s"], ["512 KiB", "1.00 MiB"], ["80 %", "75 %"]]
    assert BudgetLine("x", 1, 1.5, None, "").in_words(1.5) == "1.50"


WRONG = [
    {"scenario": "../x"},
    {"recipe": []},
    {"layout": "wide"},
    {"rows": [["peak", 1, 2]]},
    {"rows": [["peak", None, 2, 3, "bytes"]]},
    {"rows": [["peak", 1, float("nan"), 3, "bytes"]]},
    {"rows": [["peak", 1, 2, 3, None]]},
    {"rows": 3},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_what_is_no_choice_is_refused(wrong):
    with pytest.raises(ValueError, match="a choice has"):
        choice(**wrong)


@pytest.mark.parametrize("recipe", [{"optimizer": max}, {"clipping": float("nan")}], ids=str)
def test_what_json_cannot_hold_says_what_to_give(recipe):
    message = "The choice for one-card cannot be kept; give an optimizer and the like by name"
    with pytest.raises(CourseError, match=message):
        keep(choice(recipe=recipe))
    assert load() == ()


@pytest.mark.parametrize("variable", ["COURSE_READER", "COURSE_STRICT"])
def test_where_nobody_reads_along_nothing_is_kept_or_looked_up(variable, monkeypatch, restart):
    keep(choice())
    restart()
    leave_unattended(monkeypatch, variable)
    assert load() == ()
    keep(choice("two-cards"))
    assert load() == (choice("two-cards"),)
    assert list(Section("capstone").load()) == ["one-card"]


def test_where_nothing_can_be_written_the_process_still_knows(caplog):
    settings().home.write_text("a file where a folder should be")
    keep(choice())
    assert load() == (choice(),)
    assert "what is new will be forgotten" in caplog.text
