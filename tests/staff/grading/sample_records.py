"""Records as a grading leaves them, with what a test says of them."""

import json


def question(number: int = 1, state: str = "failed", diagnosis: str = "", kind: str = "values", **more) -> dict:
    """A question's part of a record, with one public case; `more` stands in for anything in it."""
    passed = state == "passed"
    words = dict.fromkeys(("sentence", "brief"), "" if passed else "It is so.")
    whole = {"id": f"q{number}", "title": "T", "points": 0, "of": 2, "parts": False, "state": state}
    whole |= {"diagnosis": diagnosis, "shown": {"diagnosis": "", "hint": ""}}
    whole |= {
        "public": [{"case": "c", "passed": passed, "kind": kind, **words}],
        "hidden": [],
        "not_run": 0,
        "notes": [],
    }
    return {**whole, **more}


def record(student: str, *questions: dict, **more) -> dict:
    """A student's record; `more` stands in for anything in it."""
    whole = {"student": student, "set": "03_adamw", "key": student, "file": student, "seed": 3, "notes": []}
    return {**whole, "points": 0, "of": 2 * len(questions), "questions": list(questions), **more}


WHOLE = record("gone", points=3, of=3)
BROKEN = {
    "empty": "",
    "half": '{"student": "honest 1", "set": ',
    "a list": "[]",
    "deep": "[" * 10**5,
    "a list for a student": json.dumps({**WHOLE, "student": []}),
    "a number for a student": json.dumps({**WHOLE, "student": 5}),
    "no points": json.dumps({name: WHOLE[name] for name in ("student", "set", "key", "file", "seed")}),
    "points in words": json.dumps({**WHOLE, "points": "3"}),
    "no notes": json.dumps({**WHOLE, "notes": 5}),
    "an older version": json.dumps({**WHOLE, "questions": [{"id": "q1"}]}),
    "failed for no reason": json.dumps({**WHOLE, "questions": [question(public=[])]}),
}
