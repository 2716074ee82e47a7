"""The released sets: all that a learner's machine has of each question."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from course_utils.errors import CourseError, suggest
from course_utils.grading.question import Question

SETS = Path(__file__).parent / "sets"
"""The folder of the released sets, in a checkout and in an installed package alike."""


def load_set(name: str) -> dict:
    """The released set called `name`, such as `03_adamw`: `{"name": …, "questions": [entry, …]}`.

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


def question_from(entry: dict) -> Question:
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
