"""Cards read from names and sizes, and the machine for which seconds are predicted."""

import pytest

from course_utils.cli.planning.card import read_card
from course_utils.errors import CourseError
from course_utils.units import GiB, MiB


@pytest.mark.parametrize(
    ("memory", "machine", "expected"),
    [
        ("24GB", None, (24 * GiB, None)),
        (" 1.5 gib ", None, (3 * GiB // 2, None)),
        ("16000MiB", "h100", (16000 * MiB, "H100")),
        ("rtx3090", None, (24 * GiB, "RTX 3090")),
        ("T4", "L4", (16 * GiB, "L4")),
    ],
)
def test_a_card_has_bytes_and_perhaps_a_machine(memory, machine, expected):
    assert read_card(memory, machine) == expected


@pytest.mark.parametrize(
    ("memory", "machine", "message"),
    [
        ("much", None, "is neither a memory size"),
        ("1.2.3GB", None, "is neither a memory size"),
        ("h100 80gb", None, "did you mean H100?"),
        ("24", None, "did you mean 24GB?"),
        ("8GB", "abacus", "No card is called 'abacus'"),
    ],
)
def test_a_card_that_is_none_is_refused_in_a_sentence(memory, machine, message):
    with pytest.raises(CourseError, match=message):
        read_card(memory, machine)
