"""The benchmarks' clock: whom it lets run when; what it reads is not tested. And what they write into the document."""

import pytest

from benchmarks import document
from benchmarks.side_by_side import hand_over, take_turns


def test_ways_advance_step_by_step_in_turn_and_each_round_in_the_other_order():
    seen = []

    def way(name, steps):
        def run():
            for step in range(steps):
                hand_over()
                seen.append(f"{name}{step}")

        return run

    seconds = take_turns({"a": way("a", 2), "b": way("b", 3)}, rounds=1)
    assert seen == ["b0", "a0", "b1", "a1", "b2", "a0", "b0", "a1", "b1", "b2"]
    assert {name: len(times) for name, times in seconds.items()} == {"a": 1, "b": 1}


def test_handing_over_alone_goes_on():
    hand_over()


MARKED = "before\n<!-- written by benchmarks/a.py -->\nold\n<!-- end of what benchmarks/a.py writes -->\nafter\n"


def test_only_what_stands_between_the_marks_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(document, "DOCUMENT", tmp_path / "page.md")
    document.DOCUMENT.write_text(MARKED)
    document.write("a.py", "new")
    assert document.DOCUMENT.read_text() == MARKED.replace("\nold\n", "\n\nnew\n\n")


@pytest.mark.parametrize(
    "missing", ["<!-- written by benchmarks/a.py -->", "<!-- end of what benchmarks/a.py writes -->"]
)
def test_a_page_without_its_marks_is_left_as_it_is(missing, tmp_path, monkeypatch):
    monkeypatch.setattr(document, "DOCUMENT", tmp_path / "page.md")
    document.DOCUMENT.write_text(MARKED.replace(missing, ""))
    with pytest.raises(SystemExit, match="lacks the line"):
        document.write("a.py", "new")
    assert document.DOCUMENT.read_text() == MARKED.replace(missing, "")
