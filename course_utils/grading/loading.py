"""The released sets: all that a learner's machine has of each question."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NotRequired, TypedDict

from course_utils.errors import CourseError, suggest
from course_utils.grading.question import Question

SETS = Path(__file__).parent / "sets"
"""The folder of the released sets, in a checkout and in an installed package alike."""


class MistakeEntry(TypedDict):
    """A known mistake as a learner's machine knows it, which has none of its code."""

    sentence: str
    hint: int  # the index of the hint that follows the sentence
    prints: dict[str, dict]  # the fingerprint of its values by public case, of those that tell mistakes apart
    fails: NotRequired[list[str]]  # all public cases that it fails; absent where a question has parts


class SetEntry(TypedDict):
    """A question of a released set; fields without a comment are those of `Question`."""

    id: str
    title: str
    points: int
    difficulty: int
    minutes: int
    answer: str
    parts: bool
    reveal: bool
    hints: list[str]
    counted: list[str]
    tolerance: dict[str, float]
    code: str  # of the cell that defines the question
    stub: str  # the answer's cell as it is handed out
    has_hidden: bool  # whether it has hidden cases
    cases: list[str]  # the names of the public ones
    mistakes: dict[str, MistakeEntry]
    oracle: NotRequired[str]  # what a hidden oracle returned on the public cases, see `oracles.pack`


def load_set(name: str) -> dict:
    """The released set called `name`, such as `03_adamw`; its `questions` are a list of `SetEntry`.

    Raises `CourseError`, listing the sets, if there is none of that name.
    """
    path = SETS / f"{name}.json"
    if not path.is_file():
        sets = f"the sets are: {', '.join(set_names()) or 'none yet'}."
        raise CourseError(f"There is no exercise set {name!r}; {suggest(name, set_names(), sets)}")
    return json.loads(path.read_text(encoding="utf-8"))


def set_names() -> list[str]:
    """The names of the released sets."""
    return sorted(path.stem for path in SETS.glob("*.json"))


def question_from(entry: SetEntry) -> Question:
    """The question of a set's entry, without hidden cases, mistakes and variants.

    If the oracle is hidden, the question has expected values of its public cases only.
    """
    from course_utils.grading.oracles import Replayer, with_answers  # imports torch, which a list of sets does without

    hidden = {"oracle": Replayer(entry["oracle"])} if "oracle" in entry else {}
    question = replace(run_question(entry["code"], entry["id"], hidden)["question"], hidden=None)
    return with_answers(question) if hidden else question


def run_question(code: str, name: str, hidden: Mapping[str, object] | None = None) -> dict:
    """The names that a question's cell defines, `question` among them; raises `CourseError` if it defines none.

    `hidden` are names that the cell uses and does not define.
    """
    names: dict = {"__name__": f"question_{name}", **(hidden or {})}
    exec(compile(code, f"<question {name}>", "exec"), names)
    question = names.get("question")
    if not isinstance(question, Question) or question.id != name:
        raise CourseError(f"The cell of {name} must define `question`, a Question whose id is {name!r}.")
    return names
