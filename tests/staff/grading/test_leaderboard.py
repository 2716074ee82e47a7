"""The class's leaderboard: the front is what a slower look says, nobody is named, nothing hostile gets through."""

import base64
import csv
import random
import re
from html.parser import HTMLParser

import sample_records
from sample_records import record

from course_staff.grading.leaderboard import boards
from course_staff.grading.record import file_name
from course_staff.grading.results import Results
from course_utils.viz.tradeoff import format_operations, tradeoff_figure

HOSTILE = ("=cmd()", "<script>alert(1)</script>", "$\\frac{1}{0}$", "a'b\"c`d`", "\x1b[31m\N{RIGHT-TO-LEFT OVERRIDE}")


def question(figures, state="passed"):
    fields = {} if figures is None else {"figures": figures}
    return sample_records.question(1, state, title="Train <q1>", points=2, **fields)


def take(bytes_, operations, accuracy):
    return {"bytes": bytes_, "operations": operations, "accuracy": accuracy}


def write_results(folder, records):
    """The results' folder after a run that graded these, beside what was there."""
    results = Results(folder, "03_adamw")
    earlier = results.earlier()
    graded = {result["student"]: result for result in records}
    for student, result in graded.items():
        results.save(student, result)
    results.finish([*{**earlier, **graded}.values()], [])
    return folder


def rows_of(folder):
    with (folder / "leaderboard.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def page_of(folder, student):
    return (folder / "students" / f"{file_name(student)}.html").read_text(encoding="utf-8")


def text_of(folder):
    return (folder / "leaderboard.html").read_text(encoding="utf-8")


def cases():
    """Classes of right answers, from a grid so small that many are equal in one thing or in all."""
    for seed in range(60):
        generator = random.Random(seed)
        yield [tuple(generator.randint(1, 4) for _ in range(3)) for _ in range(generator.randint(1, 14))]


def oracle(points):
    """Those that no other one equals or betters everywhere and betters somewhere, said case by case."""

    def beats(a, b):
        no_worse = a[0] <= b[0] and a[1] <= b[1] and a[2] >= b[2]
        return no_worse and (a[0] < b[0] or a[1] < b[1] or a[2] > b[2])

    return [not any(beats(other, point) for other in points) for point in points]


def test_the_front_comes_first_and_each_part_is_in_order_of_bytes():
    for points in cases():
        records = [record(f"s{number}", question(take(*point))) for number, point in enumerate(points)]
        (board,) = boards(records)
        unbeaten = {f"s{number}" for number, free in enumerate(oracle(points)) if free}
        front, others = board.entries[: board.front_size], board.entries[board.front_size :]
        assert {entry.student for entry in front} == unbeaten
        assert {entry.student for entry in others} == {f"s{number}" for number in range(len(points))} - unbeaten
        for part in (front, others):
            assert [entry.bytes for entry in part] == sorted(entry.bytes for entry in part)


def letters_of(records):
    (board,) = boards(records)
    return {entry.student: entry.letter for entry in board.entries}


def test_letters_tell_neither_names_nor_the_order_of_the_files():
    students = [f"student {number:02d}" for number in range(30)]
    records = [record(student, question(take(1, 1, 1))) for student in students]
    letters = letters_of(records)
    expected = [*map(chr, range(65, 91)), "AA", "AB", "AC", "AD"]
    assert sorted(letters.values(), key=lambda letter: (len(letter), letter)) == expected
    assert letters_of(records[::-1]) == letters
    assert [letters[student] for student in students] != expected
    renamed = [{**record, "key": f"another {record['key']}"} for record in records]
    assert letters_of(renamed) != letters, "who knows the names alone cannot work it out"


def test_without_figures_there_is_no_board_and_one_that_was_there_goes(tmp_path):
    ordinary = [record("a", question(None)), record("b", question(None, "failed"))]
    write_results(tmp_path / "one", ordinary)
    assert not list((tmp_path / "one").glob("l*"))
    write_results(tmp_path / "two", [record("a", question(take(1, 2, 3)))])
    assert sorted(path.name for path in (tmp_path / "two").glob("l*")) == ["leaderboard.csv", "leaderboard.html"]
    write_results(tmp_path / "two", [record("a", question(None))])
    assert not list((tmp_path / "two").glob("l*"))


def test_only_right_answers_with_sound_figures_are_entries(tmp_path):
    odd = [None, {}, "x", take("1", 2, 3), take(float("nan"), 1, 1), take(1, float("inf"), 1), take(1, 1, None)]
    odd += [take(-1, 1, 1), take(True, 1, 1), take(10**400, 1, 1)]
    records = [record(f"odd {number}", question(figures)) for number, figures in enumerate(odd)]
    records.append(record("wrong", question(take(1, 1, 100), "failed")))
    out = write_results(tmp_path, [*records, record("right", question(take(2**20, 1.5e9, 76.25)))])
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
    out = write_results(tmp_path, [record("a", question(take(1, 2, 3), "failed"))])
    assert "q1 · Train &lt;q1&gt;" in text_of(out)
    assert "No answer is right yet." in text_of(out)
    assert rows_of(out) == []


def test_nobody_is_named_and_each_students_page_marks_its_own_entry(tmp_path):
    students = ["Zoë Meier", "ada.lovelace", "学生"]
    records = [record(student, question(take(3, 2, 50 + place))) for place, student in enumerate(students)]
    out = write_results(tmp_path, [*records, record("wrong", question(take(1, 1, 1), "failed"))])
    public = text_of(out) + (out / "leaderboard.csv").read_text(encoding="utf-8")
    public += "".join(base64.b64decode(code).decode() for code in re.findall(r"svg\+xml;base64,([\w+/=]+)", public))
    assert not [part for student in students for part in student.split() if part in public]
    accuracy = {row["entry"]: row["accuracy"] for row in rows_of(out)}
    for place, student in enumerate(students):
        (letter,) = re.findall(r"On the leaderboard you are entry (\w)\.", page_of(out, student))
        assert accuracy[letter] == str(50 + place)
    assert "leaderboard" not in page_of(out, "wrong")
    write_results(tmp_path, [record(students[0], question(take(3, 2, 50), "failed"))])
    assert "leaderboard" not in page_of(out, students[0]), "who loses the entry is told of none"


class Page(HTMLParser):
    """The tags of a page, and the addresses that it loads or leads to."""

    def __init__(self, html):
        super().__init__()
        self.tags = set()
        self.addresses = []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.addresses += [value for name, value in attributes if name in ("src", "href", "srcset", "data", "action")]


def test_the_page_loads_nothing_and_holds_no_hostile_name(tmp_path):
    text = text_of(write_results(tmp_path, [record(name, question(take(2, 3, 4))) for name in HOSTILE]))
    page = Page(text)
    assert not {"script", "link", "iframe", "object", "base"} & page.tags
    assert [address.partition(",")[0] for address in page.addresses] == ["data:image/svg+xml;base64"]
    assert not set("\x1b\N{RIGHT-TO-LEFT OVERRIDE}") & set(text)


def test_extreme_figures_can_be_drawn():
    extremes = [0, 1, 1e-9, 10, 12_345.5, 2**40, 1e29]
    for first in extremes:
        records = [record(f"s{n}", question(take(first, second, second % 101))) for n, second in enumerate(extremes)]
        (board,) = boards(records)
        _, alt = tradeoff_figure(board)
        assert alt.startswith("On the Pareto front (filled): ")
    texts = {0: "0", 999_999: "999,999", 1.25e6: "1.25 × 10⁶", 2e9: "2.00 × 10⁹", 3e16: "30.0 × 10¹⁵"}
    assert {number: format_operations(number) for number in texts} == texts


def test_what_lies_at_one_point_is_written_once():
    records = [record(f"s{number}", question(take(5, 5, 90))) for number in range(6)]
    records.append(record("beaten", question(take(9, 9, 80))))
    (board,) = boards(records)
    figure, alt = tradeoff_figure(board)
    texts = [text.get_text() for text in figure.axes[0].texts]
    letters = [entry.letter for entry in board.entries]
    assert texts == [f"{', '.join(letters[:3])} and 3 more, 90.0 %", f"{letters[-1]}, 80.0 %"]
    assert alt.startswith("On the Pareto front (filled): 6 of 7.")
    assert f"; {letters[-1]}, 9 B, 9, 80.0 %." in alt
