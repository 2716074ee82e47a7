"""What a process is asked and how its reply is read, whatever that is."""

import math
import sys
from contextlib import nullcontext

import pytest
import torch
from tiny_set import SET

from course_staff.grading import asking, encoding, sandbox
from course_staff.grading.prepare import prepare
from course_staff.grading.submission import Cell, ParsedCell


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is known of it")
def test_an_answer_is_starved_that_computed_for_less_than_half_of_its_time(tiny_solutions, lanes, monkeypatch):
    """An answer that sleeps is measured. For one that loops the test says how much it computed, because machines are busy."""
    answer, prepared = "import time\ndef scale(x, factor):\n    {}", prepare(SET, tiny_solutions).questions[0]
    seen = []
    for body, computed in (("time.sleep(9)", None), ("while True: pass", 0.0), ("while True: pass", 9.0)):
        if computed is not None:
            monkeypatch.setattr(sandbox.limits, "seconds_computed", lambda *_, took=computed: took)
        cells = [(Cell(1, answer.format(body)), True)]
        replies = asking.ask(cells, prepared.pickled, prepared.public.inputs[:1], 1.0, lanes[0])
        seen.append((replies.outcomes[0].kind, replies.starved))
    assert seen == [("timeout", True), ("timeout", True), ("timeout", False)]


def test_code_that_keeps_the_parser_busy_is_given_up_and_costs_only_itself(safe_kind, monkeypatch):
    """A name of many combining letters is put in order by a sort whose time grows with the square of their number."""
    monkeypatch.setattr(asking, "PARSE_SECONDS", 1.0)
    letters = "a" + "\u0301\u0323" * 100_000
    lane = sandbox.Lane(safe_kind)
    try:
        assert asking.parse_in_sandbox([f"{letters} = 1", "f = 1"], lane) == [ParsedCell(), ParsedCell()]
        name = frozenset({"f"})
        assert asking.parse_in_sandbox(["f = 1"], lane) == [ParsedCell(is_valid=True, defines=name, binds=name)]
    finally:
        lane.close()


class Speaker:
    """A lane and the process of its question in one, which says these messages."""

    excess, timed_out, starved = "", False, False

    def __init__(self, messages):
        self.messages = messages

    def open_process(self):
        return nullcontext(self)

    def time_limit(self, seconds):
        return nullcontext()

    def ask(self, *_):
        return next(self.messages)


@pytest.mark.parametrize(
    "forged",
    [
        torch.zeros(2),
        {"notes": [[math.inf, "x"]], "outcome": None},
        {"notes": torch.zeros(2, 2, 2), "outcome": None},
        {"notes": [], "outcome": torch.zeros(2)},
        {"notes": [], "outcome": {"kind": torch.zeros(2), "values": {}, "text": "", "line": "", "mutated": []}},
    ],
    ids=str,
)
@pytest.mark.parametrize("opening", [None, {"notes": [], "outcome": None}], ids=["at once", "for a case"])
def test_a_forged_message_is_no_fault_of_the_grader(forged, opening):
    messages = map(encoding.dump, [forged] if opening is None else [opening, forged])
    (outcome,) = asking.ask([], b"", [b""], 1.0, Speaker(messages)).outcomes
    assert outcome.kind == "unsafe"
