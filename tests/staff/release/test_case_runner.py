"""Every question against its author's own answers: the solution, the stub, each known mistake, each right variant."""

import pytest
from own_solutions import PATHS, solutions_of

from course_staff.release.case_runner import CaseRunner
from course_staff.release.source import apply_mistake
from course_utils.grading import Mistake
from course_utils.grading.loading import load_set, question_from
from course_utils.grading.run import is_untouched

SEED = 1
SEEDS = (SEED, pytest.param(20261121, marks=pytest.mark.slow))
LONG_SETS = ("09_local_sgd", "10_fsdp_and_zero", "12_scaling_out", "13_capstone")
"""In these, ranks start for every answer and every case, or recipes are weighed by dry runs."""
SETS = {
    path.stem: (solutions_of(path.stem), {entry["id"]: entry for entry in load_set(path.stem)["questions"]})
    for path in PATHS
}
QUESTIONS = [(name, authored) for name, (all_authored, _) in SETS.items() for authored in all_authored]
MISTAKES = [(name, authored, mistake) for name, authored in QUESTIONS for mistake in authored.question.mistakes]
VARIANTS = [(name, authored, variant) for name, authored in QUESTIONS for variant in authored.question.variants]


def called(value) -> str:
    """A name for pytest's list."""
    return value if isinstance(value, str) else getattr(value, "name", None) or value.question.id


def entry(name: str, authored) -> dict:
    return SETS[name][1][authored.question.id]


def result_of(name: str, authored, source: str, seed: int | None = None):
    """The result on the public cases, and with a seed on the hidden ones, too."""
    cases = authored.question.cases() + (authored.question.cases(seed) if seed is not None else [])
    return CaseRunner(authored, cases).result(source, entry(name, authored))


def for_all(names: str, values: list, is_slow=lambda name, authored: False):
    """A parametrization by tuples that begin with a set's name and a question."""
    ids = ["-".join(map(called, value)) for value in values]
    marks = [[pytest.mark.slow] if is_slow(*value[:2]) else [] for value in values]
    params = [pytest.param(*v, id=name, marks=slow) for v, name, slow in zip(values, ids, marks, strict=True)]
    return pytest.mark.parametrize(names, params)


def takes_long(name: str, authored) -> bool:
    """Whether a question is of `LONG_SETS`, whose notebooks judge their solutions when executed, or has its own time limit."""
    return name in LONG_SETS or authored.question.seconds is not None


@for_all("name, authored", QUESTIONS, takes_long)
@pytest.mark.parametrize("seed", [pytest.param(None, marks=pytest.mark.slow), *SEEDS])  # with a seed, public ones too
def test_the_solution_gets_full_marks(name, authored, seed):
    result = result_of(name, authored, authored.solution, seed)
    assert result.points == result.max_points, [verdict.sentence for verdict in result.verdicts if not verdict.passed]
    assert result.diagnosis == result.hint == ""


@for_all("name, authored", QUESTIONS, takes_long)
def test_the_stub_gets_nothing_and_a_friendly_sentence(name, authored):
    result = result_of(name, authored, authored.stub)
    assert result.points == 0
    assert is_untouched(f"\n{authored.stub}\n\n", authored.stub)
    for verdict in (verdict for verdict in result.verdicts if not verdict.passed):  # a bug need not show in every case
        assert verdict.sentence
        assert "Traceback" not in verdict.sentence
        if verdict.kind == "values":
            assert not verdict.sentence.startswith(f"`{authored.question.answer}` changed its input")
        else:
            assert "is as it was handed out" in verdict.sentence or "is still `...`" in verdict.sentence


@pytest.mark.slow
@for_all("name, authored, mistake", MISTAKES)
def test_a_known_mistake_is_named_when_hidden_cases_are_judged_too(name, authored, mistake):
    result = result_of(name, authored, apply_mistake(authored.solution, mistake), SEED)
    assert result.mistake == mistake.name


SUM, MESH = "Sum.apply(F.linear(hidden, self.w2))", '"d": 4, "t": 4, "p": 4, "k": 32'
DIFFERENTIABLE = "__import__('torch.distributed.nn').distributed.nn.functional.all_reduce(F.linear(hidden, self.w2))"
IN_PLACE = ("        return gradient\n", "        dist.all_reduce(gradient)\n        return gradient\n")
SUMMED_TWICE = "the sum is summed again in the backward pass"


@pytest.mark.parametrize(
    ("question", "patches", "sentence"),
    [
        pytest.param("q1", [IN_PLACE], SUMMED_TWICE, marks=pytest.mark.slow),
        pytest.param("q1", [(SUM, DIFFERENTIABLE), ("Copy.apply(x)", "x")], SUMMED_TWICE, marks=pytest.mark.slow),
        ("q7", [(MESH, '"d": 8, "t": 4, "p": 2, "k": 16')], "A larger k alone would make it fit"),
        ("q7", [(MESH, '"d": 8, "t": 2, "p": 4, "k": 16')], "a larger t · p"),
    ],
)
def test_what_is_told_by_the_values_alone_needs_no_known_mistake(question, patches, sentence):
    name = "12_scaling_out"
    authored = next(authored for authored in SETS[name][0] if authored.question.id == question)
    result = result_of(name, authored, apply_mistake(authored.solution, Mistake("", "", tuple(patches))))
    assert sentence in result.diagnosis
    assert not result.mistake


POPPED = (
    "    for start in range(0, len(batches), k):\n        group = batches[start : start + k]\n",
    "    while batches:\n        group = [batches.pop(0) for _ in range(min(k, len(batches)))]\n",
)


def test_a_pass_that_uses_its_batches_up_is_refused():
    name = "06_gradient_accumulation"
    authored = next(authored for authored in SETS[name][0] if authored.question.id == "q1")
    popped = apply_mistake(authored.solution, Mistake("", "", (POPPED,)))
    result = result_of(name, authored, popped)
    assert {verdict.sentence for verdict in result.verdicts} == {
        "`batches are left as they were` is False but should be True."
    }


@for_all("name, authored, variant", VARIANTS, takes_long)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_right_answer_in_another_style_gets_full_marks(name, authored, variant, seed):
    result = result_of(name, authored, variant.source, seed)
    assert result.passed, [verdict.sentence for verdict in result.verdicts if not verdict.passed]


@for_all("name, authored", QUESTIONS)
def test_what_is_to_be_written_has_five_mistakes_and_two_variants(name, authored):
    """A choice has as many wrong answers as it has; everything else is written by the learner."""
    assert len(authored.question.mistakes) >= (3 if authored.question.answer == "my_answer" else 5)
    if authored.question.answer not in ("my_answer", "my_bytes"):
        assert len(authored.question.variants) >= 2


@for_all("name, authored", QUESTIONS)
def test_cases_have_names_of_their_own_and_hidden_ones_follow_the_seed(name, authored):
    question = authored.question
    names = [case.name for case in question.cases()]
    assert len(set(names)) == len(names)
    if question.hidden:
        cases, same_seed, other_seed = (str(question.cases(seed)) for seed in (1, 1, 2))
        assert cases == same_seed != other_seed


@for_all("name, authored", QUESTIONS)
def test_the_released_question_judges_as_the_authored_one(name, authored):
    public = question_from(entry(name, authored))
    assert (public.hidden, public.mistakes, public.variants) == (None, (), ())
    assert str(public.cases()) == str(authored.question.cases())
    assert public.hints == authored.question.hints
