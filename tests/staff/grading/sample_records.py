"""Records as a grading leaves them, with what a test says of them."""

import json


def question(number: int = 1, state: str = "failed", diagnosis: str = "", kind: str = "values", **fields) -> dict:
    """A question's part of a record, with one public case; `fields` stands in for anything in it."""
    passed = state == "passed"
    sentences = dict.fromkeys(("sentence", "brief"), "" if passed else "It is so.")
    defaults = {"id": f"q{number}", "title": "T", "points": 0, "max_points": 2, "in_parts": False, "state": state}
    defaults |= {"diagnosis": diagnosis, "public_diagnosis": {"diagnosis": "", "hint": ""}}
    defaults |= {
        "public": [{"case": "c", "passed": passed, "kind": kind, **sentences}],
        "hidden": [],
        "not_run": 0,
        "notes": [],
    }
    return {**defaults, **fields}


def record(student: str, *questions: dict, **fields) -> dict:
    """A student's record; `fields` stands in for anything in it."""
    defaults = {"student": student, "set": "03_adamw", "key": student, "file": student, "seed": 3, "notes": []}
    return {**defaults, "points": 0, "max_points": 2 * len(questions), "questions": list(questions), **fields}


VALID = record("gone", points=3, max_points=3)
BROKEN = {
    "empty": "",
    "half": '{"student": "honest 1", "set": ',
    "a list": "[]",
    "deep": "[" * 10**5,
    "a list for a student": json.dumps({**VALID, "student": []}),
    "a number for a student": json.dumps({**VALID, "student": 5}),
    "no points": json.dumps({name: VALID[name] for name in ("student", "set", "key", "file", "seed")}),
    "points in words": json.dumps({**VALID, "points": "3"}),
    "no notes": json.dumps({**VALID, "notes": 5}),
    "an older version": json.dumps({**VALID, "questions": [{"id": "q1"}]}),
    "failed for no reason": json.dumps({**VALID, "questions": [question(public=[])]}),
}
