"""Of the room: another's work earns nothing, and can neither be used nor found where an answer runs."""

import importlib
import pkgutil
import sys
from dataclasses import replace
from types import FunctionType

import pytest
from borrowed_answers import ANSWERS, PATCHED
from own_solutions import PATHS, solutions_of
from tiny_set import best_kind, notebook

from course_staff.grading.prepare import prepare
from course_staff.release.case_runner import outcomes
from course_utils.grading import judge
from course_utils.grading.foreign import ForeignError, disable
from course_utils.grading.loading import load_set, question_from
from course_utils.techniques import attention

AUTHORED = {path.stem: {authored.question.id: authored for authored in solutions_of(path.stem)} for path in PATHS}
RANKS = ("09_local_sgd", "10_fsdp_and_zero", "12_scaling_out")
"""In these, ranks start for every answer and every case."""
REPLACED = sorted(
    {name for by_id in AUTHORED.values() for authored in by_id.values() for name in authored.question.replaces}
)
QUESTIONS = [(name, q, sources) for name, by_question in ANSWERS.items() for q, sources in by_question.items()]
BORROWED = [(name, question, source) for name, question, sources in QUESTIONS for source in sources]


@pytest.fixture(autouse=True)
def tile_of_attention(monkeypatch):
    """One of the answers changes it in this process, where other tests follow."""
    monkeypatch.setattr(attention, "TILE", attention.TILE)


def slow_in(sets, values):
    return [pytest.param(*value, marks=pytest.mark.slow if value[0] in sets else ()) for value in values]


def numbered(value):
    return value if len(value) < 40 and "\n" not in value else ""


def _refuses(function):
    try:
        function()
    except ForeignError:
        return True
    except Exception:
        return False
    return False


@pytest.mark.parametrize("replaced", REPLACED)
def test_every_name_that_is_replaced_is_one_and_cannot_be_used(replaced):
    """A module has something in it, or below it, that refuses."""
    try:
        value = importlib.import_module(replaced)
    except ModuleNotFoundError:
        value = None
    if value is None:
        with disable([replaced]):
            assert _refuses(pkgutil.resolve_name(replaced))
        return
    with disable([replaced]):
        modules = [module for name, module in sys.modules.items() if f"{name}.".startswith(f"{replaced}.")]
        values = [value for module in modules for value in vars(module).values()]
        methods = [method for value in values if isinstance(value, type) for method in vars(value).values()]
        assert any(_refuses(function) for function in values + methods if isinstance(function, FunctionType))


@pytest.mark.parametrize(("name", "question", "source"), slow_in(RANKS, BORROWED), ids=numbered)
def test_what_another_has_written_is_foreign_in_a_check(name, question, source):
    entry = next(entry for entry in load_set(name)["questions"] if entry["id"] == question)
    question_read = question_from(entry)
    authored = AUTHORED[name][question]
    cases = question_read.cases()
    result = judge.judge_answer(question_read, cases, outcomes(authored, source, cases), entry)
    assert result.points == 0
    assert {verdict.kind for verdict in result.verdicts} == {"foreign"}
    assert all("which it should replace: write your own." in verdict.sentence for verdict in result.verdicts)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "question"), [(name, q) for name, q, _ in QUESTIONS if name not in RANKS])
def test_it_would_be_right_where_nothing_is_replaced(name, question):
    """Otherwise a refusal would prove nothing. The course's scales of 8-bit blocks are float32, and so they are no answer."""
    authored = AUTHORED[name][question]
    free = replace(authored, question=replace(authored.question, replaces=()))
    cases = free.question.cases()
    passing = [
        judge.judge_answer(free.question, cases, outcomes(free, source, cases)).passed
        for source in ANSWERS[name][question]
    ]
    assert any(passing) or (name, question) == ("05_8bit_adam", "q2")


def prepare_one(name, question):
    """The set called `name`, ready to be graded, with this question alone."""
    exercise_set = prepare(name)
    prepared = tuple(prepared for prepared in exercise_set.questions if prepared.question.id == question)
    return replace(exercise_set, questions=prepared)


def graded(grade_class, name, question, sources):
    """The record of the question for each of the sources, all in one class."""
    exercise_set = prepare_one(name, question)
    preamble = AUTHORED[name][question].preamble
    texts = {str(i): notebook(preamble, f"# EXERCISE {question}\n{source}") for i, source in enumerate(sources)}
    records = grade_class(texts, exercise_set, best_kind(), jobs=1)
    return [records[str(i)]["questions"][0] for i in range(len(sources))]


@pytest.mark.parametrize(
    ("name", "question", "sources"),
    slow_in({*ANSWERS} - {"03_adamw"}, QUESTIONS),
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.usefixtures("warm_lanes")
def test_what_another_has_written_is_foreign_to_an_instructor(name, question, sources, grade_class):
    for record in graded(grade_class, name, question, sources):
        assert record["points"] == 0, record
        assert {verdict["kind"] for verdict in record["public"]} == {"foreign"}, record


@pytest.mark.usefixtures("warm_lanes")
def test_who_patches_the_process_finds_nothing_to_borrow_there(grade_class):
    """What runs in it may say anything; what is right it cannot say without the class that knows it."""
    for name, record in zip(PATCHED, graded(grade_class, "03_adamw", "q2", PATCHED.values()), strict=True):
        kinds = {verdict["kind"] for verdict in record["public"]}
        assert record["points"] == 0, (name, record)
        other = {"the runner drives torch's class": "values"}
        assert kinds == {other.get(name, "foreign")}, (name, record)


OWN_USED = "reference = torch.optim.AdamW([torch.ones(1, requires_grad=True)])"
OWN_NAMED = "import bitsandbytes\nfrom transformers import Trainer, get_linear_schedule_with_warmup\nimport math"


@pytest.mark.parametrize(
    ("experiment", "question", "change"),
    [(OWN_USED, "q2", {}), (OWN_NAMED, "q5", {"return": "math.isfinite(1)\n    return"})],
    ids=["used", "imported"],
)
@pytest.mark.usefixtures("warm_lanes")
def test_an_experiment_with_the_librarys_own_costs_nothing(experiment, question, change, grade_class):
    """The answer below it is judged, also where the cell stops; and also where it rests on the same cell's other imports."""
    authored = AUTHORED["03_adamw"][question]
    solution = authored.solution
    for old, new in change.items():
        assert old in solution
        solution = solution.replace(old, new, 1)
    exercise_set = prepare_one("03_adamw", question)
    cells = [authored.preamble, experiment]
    text = notebook(*cells, f"# EXERCISE {question}\n{solution}")
    records = grade_class({"a": text}, exercise_set, best_kind(), jobs=1)
    [record] = records["a"]["questions"]
    assert record["points"] == record["max_points"], record


PEEKS = """import json, pathlib, course_utils.grading.loading as loading
def fullest(by_instant):
    return f"{len(list(loading.SETS.glob('*.json')))} sets", 0
"""


@pytest.mark.usefixtures("warm_lanes")
def test_the_set_is_not_where_the_answer_is(grade_class, safe_kind):
    """Its file also holds what the hidden oracles returned."""
    exercise_set = prepare_one("00_start_here", "q2")
    text = notebook(f"# EXERCISE q2\n{PEEKS}")
    [question] = grade_class({"a": text}, exercise_set, safe_kind, jobs=1)["a"]["questions"]
    assert question["public"][0]["sentence"].startswith("`result[0]` is `0 sets`"), question["public"]
    assert question["points"] == 0
