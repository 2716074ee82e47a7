"""One file holds what a learner leaves behind; several processes write to it, some die, and files are damaged."""

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass

import pytest

from course_utils.capstone.kept import Choice, load
from course_utils.desk import bets
from course_utils.desk.bets import Bet
from course_utils.desk.ledger import Ledger, Row, record
from course_utils.errors import CourseError
from course_utils.grading.progress import Attempts, recall
from course_utils.settings import environment_for_child, settings
from course_utils.store import NAME, Section

# As they were written when each chapter, set and scenario had a file of its own.
BETS = {"07-peak": {"guess": 70.0, "cell": 50.0, "unit": "%", "truth": 43.3}}
ROW = dict.fromkeys(("chapter", "technique", "quantity", "scale", "device"), "x") | {"predicted": 100, "measured": 110}
RECORDS = {"q1": {"tries": 2, "passed": True, "points": 1.5, "hint": 1, "seen": False, "cell": "ab", "time": 1.7e9}}
CHOICE = {"scenario": "one", "recipe": {"batch": 4}, "layout": None, "rows": [["peak", 100, 90, None, "bytes"]]}
OLD = {"bets/07": BETS, "ledger/03_adamw": [ROW], "progress/00_start_here": RECORDS, "capstone/one": CHOICE}


pytestmark = pytest.mark.usefixtures("restart")


def path_of():
    return settings().home / NAME


def write_old_files():
    for name, value in OLD.items():
        path = settings().home / f"{name}.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(value, indent=1))


def everything():
    return bets.load_bets(), Ledger.load().rows, recall("00_start_here"), load()


def start(program, *arguments):
    command = [sys.executable, "-c", f"import os, sys\nfrom course_utils.store import Section\n{program}", *arguments]
    return subprocess.Popen(command, env=environment_for_child(COURSE_HOME=str(settings().home)))


def test_values_come_back_by_section_and_key_and_dataclasses_as_their_fields():
    @dataclass
    class Point:
        x: int

    assert Section("a").load() == {}
    assert not settings().home.exists(), "nobody wrote"
    Section("a").put("two", [Point(1), "\u2028", None])
    Section("a").put("one", {"deep": Point(2)})
    Section("b").put("one", 3)
    assert list(Section("a").load().items()) == [("one", {"deep": {"x": 2}}), ("two", [{"x": 1}, "\u2028", None])]
    assert (Section("b").get("one"), Section("b").get("two")) == (3, None)
    assert Section("b", str).update("one", lambda value: value + "!") == "3!"
    assert [path.name for path in settings().home.iterdir()] == [NAME]


def test_files_from_before_are_read_once_and_left():
    write_old_files()
    before = {path: path.read_bytes() for path in settings().home.rglob("*.json")}
    assert everything() == (
        {"07-peak": Bet(70.0, 50.0, "%", 43.3)},
        (Row(**ROW),),
        {"q1": Attempts(2, True, 1.5, 1)},
        (Choice(**CHOICE),),
    )
    assert {path: path.read_bytes() for path in settings().home.rglob("*.json")} == before
    Section("progress").forget(["00_start_here"])
    assert recall("00_start_here") == {}


def test_when_several_processes_write_at_once_nothing_is_lost():
    """The first of them also makes the file."""
    write_old_files()
    program = """for count in range(12):
        Section("ledger").update("shared", lambda rows: [*(rows or ()), f"{sys.argv[1]}-{count}"])
        Section("bets").put(f"{sys.argv[1]}-{count}", count)
    """
    started = [start(program, str(number)) for number in range(3)]
    assert [process.wait(timeout=100) for process in started] == [0] * 3
    names = sorted(f"{number}-{count}" for number in range(3) for count in range(12))
    assert sorted(Section("ledger").get("shared")) == names
    assert sorted(Section("bets").load()) == sorted([*names, "07"])


def test_a_process_that_dies_while_it_writes_changes_nothing():
    Section("a").put("key", "old")
    for death in ("os._exit(9)", "1 / 0"):
        assert start(f"Section('a').update('key', lambda _: {death})").wait(timeout=60) != 0
    assert Section("a").get("key") == "old"
    with pytest.raises(TypeError):
        Section("a").put("key", max)
    Section("a").put("other", "new")
    assert Section("a").load() == {"key": "old", "other": "new"}


@pytest.mark.parametrize("damage", [b"no database" * 500, b"SQLite format 3\0" + bytes(5000)], ids=["text", "zeros"])
def test_a_damaged_file_is_put_aside_and_a_new_one_begun(damage, caplog):
    settings().home.mkdir(parents=True)
    path_of().write_bytes(damage)
    Section("a").put("key", 1)
    assert path_of().with_suffix(".damaged").read_bytes() == damage
    assert "it is kept as course.damaged, and a new one is begun" in caplog.text
    assert len(caplog.messages) == 1
    assert Section("a").get("key") == 1


WRONG_ROWS = [{"unit": "ms"}, {"unit": []}, {"measured": 1.5}, {"measured": -1}, {"predicted": "1", "measured": None}]
DAMAGE = [
    *(("bets/07", text) for text in ("{", "[]", '{"07-a": {"guess": "many"}}', '{"07-a": {"guess": NaN, "cell": 1}}')),
    *(("ledger/03_adamw", text) for text in ('[{"chapter": "03"}]', '"text"')),
    *(("ledger/03_adamw", json.dumps([ROW | wrong])) for wrong in WRONG_ROWS),
    *(
        ("progress/00_start_here", f'{{"q1": {text}}}')
        for text in ("1", '{"tries": -1}', '{"points": NaN}', '{"x": 1}')
    ),
    *(("capstone/one", json.dumps(CHOICE | wrong)) for wrong in ({"rows": 3}, {"layout": "wide"})),
]


@pytest.mark.parametrize(("where", "text"), DAMAGE)
def test_what_is_damaged_is_put_aside_and_said_and_costs_nothing_else(where, text, caplog):
    write_old_files()
    whole, (section, key) = everything(), where.split("/")
    with closing(sqlite3.connect(path_of())) as store, store:
        store.execute("UPDATE kept SET value = ? WHERE section = ? AND key = ?", (text, section, key))
    places = [place.split("/")[0] for place in OLD]
    assert [len(now) < len(before) for now, before in zip(everything(), whole, strict=True)] == [
        place == section for place in places
    ]
    (line,) = caplog.messages
    assert line == f"{where} in {NAME} could not be read; it is kept as {section}.damaged."
    with closing(sqlite3.connect(path_of())) as store:
        assert store.execute("SELECT value FROM kept WHERE section LIKE '%.damaged'").fetchall() == [(text,)]


def test_where_the_file_cannot_be_used_a_line_says_so_and_the_value_still_stands(caplog):
    settings().home.write_text("a file stands where the folder should be")
    assert Section("a").update("key", lambda value: [value]) == [None]
    assert "what is new will be forgotten" in caplog.text
    assert Section("a").get("key") is None


def test_what_is_forgotten_is_copied_before_with_all_the_rest():
    section = Section("a")
    assert section.forget(["one"]) is None
    for name in ("one", "two"):
        section.put(name, 1)
    copies = [section.forget([name, "never"]) for name in ("one", "two")]
    assert [section.load(), len(set(copies))] == [{}, 2]
    os.replace(copies[0] / NAME, path_of())
    assert section.load() == {"one": 1, "two": 1}


def test_where_no_copy_can_be_made_nothing_is_forgotten():
    Section("a").put("one", 1)
    (settings().home / "copies").write_text("in the way")
    with pytest.raises(CourseError, match="nothing is forgotten"):
        Section("a").forget(["one"])
    assert Section("a").get("one") == 1


def test_each_damaged_store_is_put_aside_under_a_name_of_its_own():
    names = ("course.damaged", "course (old).damaged", "course (old 2).damaged")
    for count, _ in enumerate(names):
        record("03", "AdamW", "peak", predicted=1, measured=2)
        (settings().home / "course.db").write_bytes(b"%d is no database" % count * 500)
        assert Ledger.load().rows == ()
    assert [(settings().home / name).read_bytes()[:1] for name in names] == [b"0", b"1", b"2"]
