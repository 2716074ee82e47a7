import pytest
from hypothesis import given
from hypothesis import strategies as st

from course_utils.units import GiB, KiB, MiB, format_bytes, format_count, format_counted, format_seconds


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (KiB, "1.00 KiB"),
        (526_264_752, "502 MiB"),
        (1_254_315_528, "1.17 GiB"),
        (999 * MiB, "999 MiB"),
        (-5 * MiB, "-5.00 MiB"),
        (5_000 * GiB, "5,000 GiB"),
        (9.7 * MiB, "9.70 MiB"),
        (99.7 * MiB, "99.7 MiB"),
        (9.996 * MiB, "10.0 MiB"),
    ],
)
def test_bytes(count, text):
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (7e-6, "7.00 µs"),
        (0.042, "42.0 ms"),
        (1.5, "1.50 s"),
        (9.7, "9.70 s"),
        (59.94, "59.9 s"),
        (200, "3 min 20 s"),
        (0, "0.00 µs"),
        (-0.05, "-50.0 ms"),
        (-200, "-3 min 20 s"),
    ],
)
def test_seconds(seconds, text):
    assert format_seconds(seconds) == text


def test_count():
    assert format_count(131_566_188) == "131,566,188"


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 ranks"), (1, "1 rank"), (2.0, "2 ranks"), (2.5, "2.5 ranks"), (10_000, "10,000 ranks")]
)
def test_a_count_of_things(count, text):
    assert format_counted(count, "rank") == text


@given(st.integers(min_value=0, max_value=2**60))
def test_the_text_stays_within_half_a_percent(count):
    number, unit = format_bytes(count).split()
    read_back = float(number.replace(",", "")) * {"B": 1, "KiB": KiB, "MiB": MiB, "GiB": GiB}[unit]
    assert read_back == pytest.approx(count, rel=0.005)
