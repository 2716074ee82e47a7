"""Rows of predictions and measurements: kept, shown as a table, and refused where they are no figures."""

import json

import pytest

from course_utils.desk.ledger import Ledger, record
from course_utils.errors import CourseError
from course_utils.settings import settings


def test_rows_are_kept_by_chapter_and_replaced_by_key():
    record("03_adamw", "AdamW", "optimizer state", predicted=100, measured=110)
    record("00_start_here", "AdamW", "peak of a step", predicted=5, measured=4)
    ledger = record("03_adamw", "AdamW", "optimizer state", predicted=100, measured=105)
    assert [row.measured for row in ledger.rows] == [105]
    everything = Ledger.load()
    assert [row.chapter for row in everything.rows] == ["00_start_here", "03_adamw"]
    assert [row.not_attributed for row in everything.rows] == [-1, 5]
    assert [row.error for row in everything.rows] == pytest.approx([-0.25, 5 / 105])


def test_the_table_shows_people_units():
    ledger = record("03", "AdamW", "optimizer state", predicted=526_264_752, measured=526_264_752)
    for text in (str(ledger), ledger._repr_html_()):
        assert "502 MiB" in text
        assert "+0.0%" in text


def test_bytes_and_seconds_stand_in_one_table():
    record("03", "AdamW", "a step", predicted=2**20, measured=2**21)
    ledger = record("03", "AdamW", "a step", predicted=0.2, measured=0.15, unit="seconds")
    table = ledger.table()
    assert table["predicted"].tolist() == ["1.00 MiB", "200 ms"]
    assert table["not attributed"].tolist() == ["1.00 MiB", "-50.0 ms"]
    assert [row.error for row in ledger.rows] == pytest.approx([0.5, -1 / 3])
    assert Ledger.load().rows == ledger.rows


def test_the_same_row_is_kept_for_each_device_and_files_without_a_unit_are_in_bytes():
    path = settings().home / "ledger" / "03.json"
    path.parent.mkdir(parents=True)
    old = {"chapter": "03", "technique": "AdamW", "quantity": "peak", "predicted": 5, "measured": 6, "scale": "smoke"}
    path.write_text(json.dumps([old | {"device": "cuda"}]))
    record("03", "AdamW", "peak", predicted=1, measured=2)
    rows = Ledger.load().rows
    assert [(row.device, row.unit, row.measured) for row in rows] == [("cuda", "bytes", 6), ("cpu", "bytes", 2)]


def test_an_empty_ledger_says_how_to_fill_it():
    assert "make run" in str(Ledger.load())
    assert "make run" in Ledger.load()._repr_html_()


@pytest.mark.parametrize(
    ("predicted", "measured"), [(0, 5), (5, -1), (float("nan"), 5), (float("inf"), 5), (0.4, 5), (5, None)]
)
def test_figures_that_are_no_bytes_are_refused_and_earlier_rows_stay(predicted, measured):
    ledger = record("03", "SGD", "peak", predicted=1, measured=2)
    with pytest.raises(CourseError, match="two positive numbers"):
        record("03", "AdamW", "peak", predicted=predicted, measured=measured)
    assert Ledger.load().rows == ledger.rows


def test_a_fraction_of_a_byte_is_rounded():
    (row,) = record("03", "AdamW", "peak, mean", predicted=12.7, measured=12.2).rows
    assert (row.predicted, row.measured) == (13, 12)


def test_a_chapter_is_a_plain_name_and_a_unit_one_of_two():
    for name in ("notebooks/03", "", 3):
        with pytest.raises(CourseError, match="not a chapter's name"):
            record(name, "AdamW", "peak", predicted=1, measured=1)
    for unit in ("ms", "", None):
        with pytest.raises(CourseError, match="in bytes or in seconds"):
            record("03", "AdamW", "a step", predicted=1, measured=1, unit=unit)
