"""The class's leaderboard: the front is what a slower look says, nobody is named unasked, nothing hostile gets through."""

import base64
import csv
import json
import random
import re
from html.parser import HTMLParser

import pytest
from tiny_set import ANSWER, SEED, SET, submission, write_class

from course_staff.grading import grade
from course_staff.grading.leaderboard import boards, give_letters
from course_staff.grading.report import Results, file_name
from course_utils.cli import main
from course_utils.viz.tradeoff import format_operations, tradeoff_figure

HOSTILE = ("=cmd()", "<script>alert(1)</script>", "$\\frac{1}{0}$", "a'b\"c`d`", "\x1b[31m\N{RIGHT-TO-LEFT OVERRIDE}")


def question(figures, state="passed", name="q1"):
    passed = state == "passed"
    said = {"case": "c", "passed": passed, "kind": "" if passed else "values", "sentence": "", "brief": ""}
    told = {"diagnosis": "", "hint": ""}
    whole = {"id": name, "title": f"Train <{name}>", "points": 2, "of": 2, "parts": False, "state": state}
    rest = {"diagnosis": "", "mistake": None, "shown": told, "counted": [], "hidden": [], "not_run": 0, "notes": []}
    return {**whole, **rest, "public": [said], **({} if figures is None else {"figures": figures})}


def take(bytes_, operations, accuracy):
    return {"bytes": bytes_, "operations": operations, "accuracy": accuracy}


def record(student, *questions):
    of_file = {"key": f"key of {student}", "file": student, "seed": 3}
    return {"student": student, "set": SET, "points": 2, "of": 2, "notes": [], "questions": list(questions), **of_file}


def written(folder, records, **how):
    """The results' folder after a run that graded these, beside what was there."""
    results = Results(folder, SET)
    earlier = results.earlier()
    for one in records:
        results.save(one["student"], one)
    results.finish(list({**earlier, **{one["student"]: one for one in records}}.values()), [], **how)
    return folder


def rows_of(folder):
    with (folder / "leaderboard.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def text_of(folder):
    return (folder / "leaderboard.html").read_text(encoding="utf-8")


def cases():
    """Classes of right answers, from a grid so small that many are equal in one thing or in all."""
    for seed in range(60):
        drawn = random.Random(seed)
        yield [tuple(drawn.randint(1, 4) for _ in range(3)) for _ in range(drawn.randint(1, 14))]


def oracle(points):
    """Those that no other one equals or betters everywhere and betters somewhere, said case by case."""

    def beats(a, b):
        no_worse = a[0] <= b[0] and a[1] <= b[1] and a[2] >= b[2]
        return no_worse and (a[0] < b[0] or a[1] < b[1] or a[2] > b[2])

    return [not any(beats(other, one) for other in points) for one in points]


@pytest.mark.parametrize("points", list(cases()))
def test_the_front_comes_first_and_each_part_is_in_order_of_bytes(points):
    records = [record(f"s{number}", question(take(*point))) for number, point in enumerate(points)]
    (board,) = boards(records, give_letters(records, {}))
    unbeaten = {f"s{number}" for number, free in enumerate(oracle(points)) if free}
    front, others = board.entries[: board.front], board.entries[board.front :]
    assert {one.student for one in front} == unbeaten
    assert {one.student for one in others} == {f"s{number}" for number in range(len(points))} - unbeaten
    for part in (front, others):
        assert [one.bytes for one in part] == sorted(one.bytes for one in part)


def test_letters_tell_neither_names_nor_the_order_of_the_files_and_stay():
    students = [f"student {number:02d}" for number in range(30)]
    records = [record(student, question(take(1, 1, 1))) for student in students]
    letters = give_letters(records, {})
    assert sorted(letters.values(), key=lambda one: (len(one), one)) == [
        *map(chr, range(65, 91)),
        "AA",
        "AB",
        "AC",
        "AD",
    ]
    assert give_letters(records[::-1], {}) == letters
    assert [letters[student] for student in students] != sorted(letters.values(), key=lambda one: (len(one), one))
    renamed = [{**one, "key": f"another {one['key']}"} for one in records]
    assert give_letters(renamed, {}) != letters, "who knows the names alone cannot work it out"
    assert give_letters(renamed, letters) == letters
    more = give_letters([*records, record("a late one", question(take(1, 1, 1)))], letters)
    assert {student: more[student] for student in students} == letters
    assert more["a late one"] == "AE"


def test_without_figures_there_is_no_board_and_one_that_was_there_goes(tmp_path):
    ordinary = [record("a", question(None)), record("b", question(None, "failed"))]
    written(tmp_path / "one", ordinary)
    assert not list((tmp_path / "one").glob("l*"))
    written(tmp_path / "two", [record("a", question(take(1, 2, 3)))])
    assert sorted(path.name for path in (tmp_path / "two").glob("l*")) == [
        "leaderboard.csv",
        "leaderboard.html",
        "letters.json",
    ]
    written(tmp_path / "two", [record("a", question(None))])
    assert [path.name for path in (tmp_path / "two").glob("l*")] == ["letters.json"]


def test_only_right_answers_with_sound_figures_are_entries(tmp_path):
    odd = [None, {}, "x", take("1", 2, 3), take(float("nan"), 1, 1), take(1, float("inf"), 1), take(1, 1, None)]
    odd += [take(-1, 1, 1), take(True, 1, 1), take(10**400, 1, 1)]
    records = [record(f"odd {number}", question(figures)) for number, figures in enumerate(odd)]
    records.append(record("wrong", question(take(1, 1, 100), "failed")))
    out = written(tmp_path, [*records, record("right", question(take(2**20, 1.5e9, 76.25)))])
    (row,) = rows_of(out)
    assert row == {
        "question": "q1",
        "entry": "A",
        "front": "yes",
        "bytes": str(2**20),
        "operations": "1500000000.0",
        "accuracy": "76.25",
    }
    assert "1.00 MiB</td><td class='number'>1.50 × 10⁹</td><td class='number'>76.2 %" in text_of(out)


def test_a_question_that_nobody_got_right_is_said(tmp_path):
    out = written(tmp_path, [record("a", question(take(1, 2, 3), "failed"))])
    assert "q1 · Train &lt;q1&gt;" in text_of(out)
    assert "No answer is right yet." in text_of(out)
    assert rows_of(out) == []


def test_a_class_is_named_only_where_that_is_asked_for(tmp_path):
    students = ["Zoë Meier", "ada.lovelace", "学生"]
    records = [record(student, question(take(3, 2, 50 + place))) for place, student in enumerate(students)]
    out = written(tmp_path, records)
    public = text_of(out) + (out / "leaderboard.csv").read_text(encoding="utf-8")
    public += "".join(base64.b64decode(code).decode() for code in re.findall(r"svg\+xml;base64,([\w+/=]+)", public))
    assert not [part for student in students for part in student.split() if part in public]
    letters = json.loads((out / "letters.json").read_text(encoding="utf-8"))
    for student in students:
        page = (out / "students" / f"{file_name(student)}.html").read_text(encoding="utf-8")
        assert f"On the leaderboard you are entry {letters[student]}." in page
    written(tmp_path, [], names=True)
    assert {row["student"]: row["entry"] for row in rows_of(out)} == letters
    assert all(f"<td>{letters[student]}</td><td>{student}</td>" in text_of(out) for student in students)
    written(tmp_path, [])
    assert "student" not in rows_of(out)[0]


class Page(HTMLParser):
    """The tags of a page, and the addresses that it loads or leads to."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.addresses = set(), []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href", "srcset", "data", "action")]


def test_hostile_names_stay_text_and_the_page_loads_nothing(tmp_path):
    out = written(tmp_path, [record(name, question(take(2, 3, 4))) for name in HOSTILE], names=True)
    page, text = Page(text_of(out)), text_of(out)
    assert not {"script", "link", "iframe", "object", "base"} & page.tags
    assert [address.partition(",")[0] for address in page.addresses] == ["data:image/svg+xml;base64"]
    assert "<td>&lt;script&gt;alert(1)&lt;/script&gt;</td>" in text
    assert not set("\x1b\N{RIGHT-TO-LEFT OVERRIDE}") & set(text)
    named = {row["student"] for row in rows_of(out)}
    assert "'=cmd()" in named
    assert not [name for name in named if name.startswith(("=", "+", "-", "@")) or "\x1b" in name]


def test_extreme_figures_can_be_drawn():
    extremes = [0, 1, 1e-9, 10, 12_345.5, 2**40, 1e29]
    for first in extremes:
        records = [record(f"s{n}", question(take(first, second, second % 101))) for n, second in enumerate(extremes)]
        (board,) = boards(records, give_letters(records, {}))
        _, alt = tradeoff_figure(board)
        assert alt.startswith("Operations over bytes of each entry")
    assert [format_operations(number) for number in (0, 999_999, 1.25e6, 2e9, 3e16)] == [
        "0",
        "999,999",
        "1.25 × 10⁶",
        "2.00 × 10⁹",
        "30.0 × 10¹⁵",
    ]


def test_what_lies_at_one_point_is_written_once():
    records = [record(f"s{number}", question(take(5, 5, 90))) for number in range(6)]
    records.append(record("beaten", question(take(9, 9, 80))))
    (board,) = boards(records, give_letters(records, {}))
    figure, alt = tradeoff_figure(board)
    texts = [text.get_text() for text in figure.axes[0].texts]
    letters = [one.letter for one in board.entries]
    assert texts == [f"{', '.join(letters[:3])} and 3 more, 90.0 %", f"{letters[-1]}, 80.0 %"]
    assert figure.axes[0].get_title(loc="left") == "6 of 7 are on the Pareto front (filled)"
    assert alt.endswith(f"Beaten: {letters[-1]}.")


def test_a_later_submission_joins_the_board_and_takes_nobodys_letter(tmp_path):
    first = [record("a", question(take(10, 10, 80))), record("b", question(take(20, 5, 80)))]
    out = written(tmp_path, first)
    before = {row["entry"]: row for row in rows_of(out)}
    written(tmp_path, [record("late", question(take(9, 9, 81)))])
    after = {row["entry"]: row for row in rows_of(out)}
    assert sorted(after) == ["A", "B", "C"]
    letters = json.loads((out / "letters.json").read_text(encoding="utf-8"))
    assert letters["late"] == "C"
    assert after[letters["a"]] == before[letters["a"]] | {"front": "no"}
    assert after[letters["b"]] == before[letters["b"]] | {"front": "yes"}


def test_who_loses_the_entry_is_no_longer_told_a_letter_and_gets_the_same_one_back(tmp_path):
    def told():
        return re.findall(
            r"you are entry (\w)", (out / "students" / f"{file_name('a')}.html").read_text(encoding="utf-8")
        )

    both = [record("a", question(take(10, 10, 80))), record("b", question(take(20, 5, 80)))]
    out = written(tmp_path, both)
    before = told()
    assert len(before) == 1
    written(tmp_path, [record("a", question(take(10, 10, 80), "failed"))])
    assert told() == []
    assert len(rows_of(out)) == 1
    written(tmp_path, both[:1])
    assert told() == before


@pytest.mark.parametrize("damage", ["{", "[]", '{"a": 1}', '{"a": "A", "b": "A"}', '{"a": "<b>"}'])
def test_letters_that_were_damaged_are_put_aside_and_given_anew(damage, tmp_path):
    out = written(tmp_path, [record("a", question(take(1, 1, 1))), record("b", question(take(1, 1, 1)))])
    given = json.loads((out / "letters.json").read_text(encoding="utf-8"))
    (out / "letters.json").write_text(damage)
    written(tmp_path, [])
    assert json.loads((out / "letters.json").read_text(encoding="utf-8")) == given
    assert (out / "letters.damaged").read_text() == damage


@pytest.mark.slow
@pytest.mark.usefixtures("warm")
def test_a_late_file_comes_onto_the_board_by_the_command(tiny, tmp_path, monkeypatch):
    part = grade._public_part

    def with_figures(paper, *rest):
        return part(paper, *rest) | ({"figures": take(1000, 2000, 75)} if paper.question.id == "q1" else {})

    monkeypatch.setattr(grade, "_public_part", with_figures)
    write_class(tmp_path / "class", {"early": submission(ANSWER)})
    late = write_class(tmp_path / "late", {"late": submission(ANSWER)})["late"]
    given = ["--set", SET, "--seed", str(SEED), "--solutions", str(tiny), "--trust"]
    assert main(["grade", str(tmp_path / "class"), *given]) == 0
    out = tmp_path / "class-results"
    assert [row["entry"] for row in rows_of(out)] == ["A"]
    assert main(["grade", str(late), *given, "--out", str(out), "--names"]) == 0
    assert [(row["entry"], row["student"], row["bytes"]) for row in rows_of(out)] == [
        ("A", "early", "1000"),
        ("B", "late", "1000"),
    ]
    assert "you are entry B." in (out / "students" / f"{file_name('late')}.html").read_text(encoding="utf-8")


def test_a_letter_that_somebody_has_is_given_to_nobody_else():
    records = [record(name, question(take(5, 5, 90))) for name in ("anna", "ben", "cleo")]
    letters = give_letters(records, {"anna": "B"})
    assert letters["anna"] == "B"
    assert sorted(letters.values()) == ["A", "B", "C"]
