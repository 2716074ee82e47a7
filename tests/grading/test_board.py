"""Progress over all sets: the table, its HTML, and forgetting; kept for each learner outside the repository."""

import html
import json
import re
from pathlib import Path

import pytest

from course_utils import settings as settings_room
from course_utils.cli import main
from course_utils.files import exercises_of
from course_utils.grading import my_progress
from course_utils.grading.board import NOTHING_PASSED, Board, Standing
from course_utils.grading.loading import SETS, load_set
from course_utils.grading.progress import PROGRESS, Attempts, recall

FIRST = "00_start_here"


def passed_attempts(*questions, points=1.0):
    return dict.fromkeys(questions, Attempts(0, True, points))


def answer_prompts(monkeypatch, answer):
    questions = []
    monkeypatch.setattr("builtins.input", lambda question: questions.append(question) or answer)
    return questions


def test_a_fresh_learner_is_met_kindly_and_told_where_to_begin(capsys):
    assert main(["check"]) == 0
    output = capsys.readouterr().out
    assert f"Exercises: {NOTHING_PASSED}" in output
    assert "█" not in output
    first = load_set(FIRST)["questions"][0]
    assert f"Next question: q1 · {first['title']}, in {exercises_of(FIRST)}." in output
    assert all(path.stem in output for path in SETS.glob("*.json"))


def test_what_is_passed_is_counted_with_its_points_and_the_set_begun_comes_next():
    PROGRESS.put("03_adamw", passed_attempts("q1", "q2", points=2.0) | {"q3": Attempts(4, False, 0.5)})
    table = my_progress()
    (adamw,) = [standing for standing in table.standings if standing.name == "03_adamw"]
    assert (adamw.passed, adamw.points) == (2, 4.5)
    assert adamw.questions == len(load_set("03_adamw")["questions"])
    assert table.next.startswith("q3 · ")
    assert table.exercises == "exercises/03_exercises_adamw.ipynb"
    assert str(table).startswith(f"2 of {sum(row.questions for row in table.standings)} questions passed, 4.5 of ")


def test_everything_passed_leaves_nothing_to_do():
    for path in SETS.glob("*.json"):
        entries = json.loads(path.read_text("utf-8"))["questions"]
        PROGRESS.put(path.stem, {entry["id"]: Attempts(0, True, entry["points"]) for entry in entries})
    table = my_progress()
    assert "nothing is left" in table.next
    assert all((standing.share, standing.points) == (1, standing.max_points) for standing in table.standings)
    assert "·····" not in str(table)


def test_a_solution_that_was_seen_is_neither_passed_nor_left():
    PROGRESS.put(FIRST, passed_attempts("q1") | {"q2": Attempts(1, False, 0.0, seen=True)})
    table = my_progress()
    assert table.next.startswith("q3 · ")
    assert table.head.endswith(" points. Solutions seen instead: 1.")
    assert re.search(rf"{FIRST} .* 1 of  3 questions .*points  1 seen", str(table))
    assert "<td>1 of 3, 1 seen</td>" in table._repr_html_()
    PROGRESS.put(FIRST, dict.fromkeys(("q1", "q2", "q3"), Attempts(seen=True)))
    assert my_progress().head.startswith("0 of ")
    assert my_progress().next.startswith("q1 · ")
    assert exercises_of(FIRST) not in str(my_progress())


def test_questions_and_points_that_the_set_no_longer_has_do_not_count():
    PROGRESS.put(FIRST, passed_attempts("q1", "q77", points=1000.0))
    first = my_progress().standings[0]
    assert (first.passed, first.points) == (1, load_set(FIRST)["questions"][0]["points"])


@pytest.mark.parametrize(("passed", "full"), [(0, 0), (1, 1), (500, 10), (999, 19), (1000, 20)])
def test_a_bar_is_full_or_empty_only_where_all_or_nothing_is_done(passed, full):
    (line,) = Board((Standing("a", passed, questions=1000, points=0, max_points=1, next=""),)).bars
    assert line.split()[1] == "█" * full + "·" * (20 - full)


def test_what_is_next_can_be_followed():
    page = my_progress()._repr_html_()
    (target,) = re.findall(r'<a href="../(exercises/[^"]+)">', page)
    assert (Path(__file__).parents[2] / target).is_file()
    assert f">{target}</a>" in page


def test_text_and_html_say_the_same_with_a_label_for_every_bar():
    table = Board((Standing("01_<b>", 1, 4, 2.5, 8, "q2 · A & B"), Standing("02_x", 0, 3, 0, 3, "q1 · C")))
    page = table._repr_html_()
    assert "<b>" not in page
    assert re.findall(r'role="img" aria-label="([^"]+)"', page) == [
        "1 of 4 questions passed",
        "0 of 3 questions passed",
    ]
    assert re.findall(r"width:(\d+%)", page) == ["25%", "0%"]
    text = html.unescape(re.sub(r"<[^>]+>", " ", page))
    for part in (table.head, table.next, "01_<b>", "1 of 4", "2.5 of 8"):
        assert part in text
        assert part in str(table).replace("  1 of  4", "1 of 4") or part == "1 of 4" or part == "2.5 of 8"
    assert page.count('scope="col"') == 4
    assert re.findall(r"(?<![\w-])color:(\w+)", page) == ["inherit"], "text keeps the page's own color"


def test_reset_asks_keeps_a_copy_and_says_what_it_did(monkeypatch, capsys):
    PROGRESS.put(FIRST, passed_attempts("q1", "q2"))
    PROGRESS.put("03_adamw", passed_attempts("q1"))
    questions = answer_prompts(monkeypatch, "n")
    assert main(["check", "--reset", "00"]) == 1
    assert questions == [f"Reset your progress in {FIRST} (2 of 3 passed)? A copy is saved. [y/N] "]
    assert capsys.readouterr().out == "Nothing was reset.\n"
    answer_prompts(monkeypatch, "y")
    assert main(["check", "--reset", exercises_of(FIRST)]) == 0
    output = capsys.readouterr().out
    assert output.startswith(f"Reset: {FIRST} (2 of 3 passed). A copy of everything is in ")
    assert (recall(FIRST), set(recall("03_adamw"))) == ({}, {"q1"})
    (copy,) = (settings_room.settings().home / "copies").glob("*/*")
    assert str(copy.parent) in output
    copy.replace(settings_room.settings().home / copy.name)
    assert set(recall(FIRST)) == {"q1", "q2"}


def test_reset_of_all_without_a_question_and_then_of_nothing(monkeypatch, capsys):
    PROGRESS.put(FIRST, passed_attempts("q1"))
    PROGRESS.put("03_adamw", {"q1": Attempts(2, False, 0.0)})
    monkeypatch.setattr("builtins.input", lambda _: pytest.fail("asked"))
    assert main(["check", "--reset", "--yes"]) == 0
    assert my_progress().head.startswith(NOTHING_PASSED)
    assert recall("03_adamw") == {}
    capsys.readouterr()
    assert main(["check", "--reset"]) == 0
    assert capsys.readouterr().out == "There was no progress to reset.\n"


def test_where_nobody_can_be_asked_nothing_is_forgotten(monkeypatch, capsys):
    PROGRESS.put(FIRST, passed_attempts("q1"))
    monkeypatch.setattr("builtins.input", lambda _: (_ for _ in ()).throw(EOFError))
    assert main(["check", "--reset"]) == 2
    assert "add --yes" in capsys.readouterr().err
    assert set(recall(FIRST)) == {"q1"}


@pytest.mark.parametrize("options", [["--reset", "77"], ["--reset", "03_x"], ["--yes"]])
def test_a_reset_that_cannot_be_meant_is_refused(options, capsys):
    assert main(["check", *options]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
