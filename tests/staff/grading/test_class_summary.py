"""A class in words: which mistakes are common, and which answers are to be looked at."""

from sample_records import question, record

from course_staff.grading import class_summary
from course_utils.grading.judge import OUTCOME_KINDS


def mistakes(*sentences):
    """The section of the commonest mistakes, where these are the named ones of one question, a submission each."""
    records = [record(f"s{number}", question(diagnosis=name)) for number, name in enumerate(sentences)]
    return class_summary.summary(records, "03_adamw", []).partition("\nMost common mistakes")[2]


def test_answers_that_ended_their_process_are_pointed_out():
    honest = [question(kind=kind) for kind in OUTCOME_KINDS if kind not in ("died", "unsafe")]
    odd = [question(4, kind="died"), question(5), question(6, kind="unsafe")]
    summary = class_summary.summary([record("honest", *honest), record("odd", *odd)], "03_adamw", [])
    _, heading, rows = summary.partition("\nAnswers to look at")
    assert heading
    assert rows.splitlines()[1] == "  odd: q4, q6"
    assert "honest" not in rows
    assert "Answers to look at" not in class_summary.summary([record("honest", *honest)], "03_adamw", [])


def test_the_commonest_mistakes_say_how_many_there_are_and_what_is_left_out():
    assert mistakes("", "") == ""
    assert "Each was made once" in mistakes("A.", "B.")
    assert mistakes("B.", "A.", "C.", "A.", "C.", "A.").splitlines() == [
        ": 2 of 3 were made more than once",
        "     3  q1: A.",
        "     2  q1: C.",
    ]
    twelve_twice = [f"{chr(65 + i)}." for i in range(12)] * 2
    assert mistakes(*twelve_twice).splitlines()[0] == ": 12 of 12 were made more than once, the first 10"
    assert [line[-2:] for line in mistakes(*twelve_twice).splitlines()[1:]] == [f"{chr(65 + i)}." for i in range(10)]
