"""Each kind of question, put to right and wrong answers. The stream of gradients is the one that must miss nothing."""

from decimal import Decimal
from fractions import Fraction

import pytest
import torch
from adamw_answers import ADAMW, EAGER, FLAT, RIGHT, WRONG
from sample_question import FIELDS, define, grade_answer, patch, sentences

from course_utils import optim
from course_utils.grading.kinds import account, choice, design, function, stream
from course_utils.grading.question import Case


@pytest.fixture(scope="module")
def adamw():
    return stream(torch.optim.AdamW, **FIELDS)


# The public cases, and draws of hidden ones.
DRAWS = pytest.mark.parametrize("seed", [None, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])


@DRAWS
@pytest.mark.parametrize("name", WRONG)
def test_wrong_optimizers_are_rejected_on_any_draw(adamw, name, seed):
    result = grade_answer(adamw, define(patch(ADAMW, *WRONG[name])), seed)
    assert not result.passed
    assert all(verdict.sentence for verdict in result.verdicts if not verdict.passed)


@DRAWS
@pytest.mark.parametrize("name", RIGHT)
def test_right_optimizers_are_accepted_on_any_draw(adamw, name, seed):
    right = define(patch(ADAMW, *RIGHT[name]))
    assert sentences(adamw, right, seed) == []


@DRAWS
@pytest.mark.parametrize("source", [EAGER, FLAT], ids=["state from the start", "one flat vector"])
def test_right_optimizers_of_another_build_are_accepted(adamw, source, seed):
    assert sentences(adamw, define(source), seed) == []


def test_the_packages_own_optimizers_are_accepted(adamw):
    assert grade_answer(adamw, type("answer", (optim.AdamW,), {"__module__": "__main__"})).passed
    adam = stream(torch.optim.Adam, **FIELDS)
    assert grade_answer(adam, type("answer", (optim.Adam,), {"__module__": "__main__"})).passed
    assert not grade_answer(adam, type("answer", (optim.AdamW,), {"__module__": "__main__"})).passed


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("1e-2", "1.01e-2", "weight_decay` is `0.0101` but should be `0.01`."),
        ("1e-8", "1.01e-8", "eps` is `1.01e-08` but should be `1e-08`."),
        ("0.999", "0.9991", "betas` is `0.9, 0.9991` but should be `0.9, 0.999`."),
    ],
)
def test_a_default_that_is_off_by_a_little_is_said(adamw, old, new, sentence):
    verdict = grade_answer(adamw, define(patch(ADAMW, old, new))).verdicts[0]
    assert verdict.sentence == f"`hyper-parameters · {sentence}"


def test_touched_gradients_are_said(adamw):
    sentence = grade_answer(adamw, define(patch(ADAMW, *WRONG["clears p.grad"]))).verdicts[0].sentence
    assert sentence == "After step 1, `p.grad is left as it was` is False but should be True."


SGD = """
class answer(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-3, momentum=0, weight_decay=0, nesterov=False):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay, nesterov=nesterov))
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            lr, mu, decay = group["lr"], group["momentum"], group["weight_decay"]
            for p in [p for p in group["params"] if p.grad is not None]:
                g = p.grad + decay * p
                if mu:
                    b = self.state[p].get("b")
                    self.state[p]["b"] = b = g.clone() if b is None else b.mul_(mu).add_(g)
                    g = g + mu * b if group["nesterov"] else b
                p.sub_(lr * g)
"""
MOMENTUM = {"lr": (0.3, 0.1), "momentum": (0.9, 0.5), "weight_decay": (0.0, 0.1, 0.5), "nesterov": (False, True)}


@DRAWS
def test_a_buffer_that_is_the_gradient_itself_is_rejected_on_any_draw(seed):
    question = stream(torch.optim.SGD, hyper=MOMENTUM, **FIELDS)
    alias = patch(SGD, "p.grad + decay * p", "p.grad + decay * p if decay else p.grad", "g.clone() if", "g if")
    assert sentences(question, define(SGD), seed) == []
    result = grade_answer(question, define(alias), seed)
    assert [v.case for v in result.verdicts if not v.passed] == ["gradients in the memory of those before"]


def test_a_design_may_hold_tensors_of_one_number(adamw):
    rules = {"all": lambda values: None if values == {"a": 2.0, "b": [3, "c"]} else "is wrong"}
    question = design(rules, **{**FIELDS, "answer": "my_design"})
    answer = {"a": torch.tensor(2.0), "b": [torch.tensor(3), "c"]}
    assert grade_answer(question, answer).passed
    answer["b"].append(answer)
    assert not grade_answer(question, answer).passed


def test_a_designs_words_may_be_in_other_case_and_whole_numbers_floats():
    rules = {"all": lambda x: None if x == {"kind": "nf4", "n": 7} and type(x["n"]) is int else "is wrong"}
    question = design(rules, words=("kind", "n", "nf4"), **{**FIELDS, "answer": "my_design"})
    answers = {"kind": "nf4", "n": 7.0}, {"Kind": " NF4", "N": Fraction(7)}, {"kind": "nf4", "n": torch.tensor(7)}
    for answer in answers:
        assert grade_answer(question, answer).passed, answer
    assert not grade_answer(question, {"kind": "nf4", "n": 7.5}).passed
    assert not grade_answer(question, {"kind": "nf4", "n": 7, "N": 7}).passed


def test_a_function_may_give_several_values():
    def oracle(x, y):
        return x + y, {"product": x * y}

    question = function(oracle, public=lambda _: [Case("c", {"x": 2, "y": 3})], **FIELDS)
    assert grade_answer(question, define("def answer(x, y): return [x + y, {'product': x * y}]")).passed
    result = grade_answer(question, define("def answer(x, y): return x + y, {'product': x + y}"))
    assert result.verdicts[0].sentence.startswith("`result[1] · product` is 5 but should be 6")


BYTES = {"parameters": (526_264_752, "bytes"), "peak": (lambda: 2008.0, "MiB")}


def bytes_asked(**options):
    return account(BYTES, forgotten={"peak": {"gradients": 502.0}}, **FIELDS, **options)


def test_an_account_gives_each_number_its_share():
    right = {"parameters": 526_264_752, "peak": 2008.5}
    assert grade_answer(bytes_asked(), right).points == 3
    half = grade_answer(bytes_asked(), {**right, "peak": 1.0})
    assert half.points == 1.5
    assert not half.passed
    assert half.verdicts[1].sentence == "`peak` is 1, which is too small."
    assert grade_answer(bytes_asked(), {"parameters": Decimal(526_264_752), "peak": Fraction(4017, 2)}).passed
    assert grade_answer(bytes_asked(), {"Parameters": torch.tensor(526_264_752), "PEAK": 2008.5}).passed


@pytest.mark.parametrize(
    ("answer", "diagnosis"),
    [
        ({"parameters": 526_264_752 / 2**20 * 1e6}, "megabytes (10⁶ bytes) and mebibytes"),
        ({"parameters": 526_264_752 / 2**20}, "factor of 2²⁰"),
        ({"parameters": 526_264_752 / 1e6}, "factor of 10⁶"),
        ({"parameters": 526_264_752 / 1e9}, "factor of 10⁹"),
        ({"parameters": 526_264_752 * 8}, "bits and bytes"),
        ({"parameters": 526_264_752, "peak": 1506.0}, "`peak` leaves out the gradients."),
        ({"parameters": 1}, ""),
        ({"parameters": "526264752"}, ""),
        ({"parameters": float("nan")}, ""),
    ],
)
def test_known_slips_of_an_account_are_recognized(answer, diagnosis):
    result = grade_answer(bytes_asked(), answer)
    assert diagnosis in result.diagnosis
    assert bool(result.diagnosis) == bool(diagnosis)
    assert not any("526,264,752" in v.sentence or "2008" in v.sentence for v in result.verdicts)


@pytest.mark.parametrize("factor", [8, 1 / 8])
def test_a_factor_of_8_is_no_mix_up_of_bits_where_the_author_says_so(factor):
    answer = {"parameters": 526_264_752 * factor, "peak": 2008}
    assert not grade_answer(bytes_asked(bits=False), answer).diagnosis
    assert "bits and bytes" in grade_answer(bytes_asked(), answer).diagnosis
    mebibytes = {"parameters": 526_264_752 / 2**20, "peak": 2008}
    assert "factor of 2²⁰" in grade_answer(bytes_asked(bits=False), mebibytes).diagnosis


def test_a_unit_is_not_said_twice():
    units = {"parameters": (1.0, "bytes"), "days": (2.0, "days"), "size in GB": (3.0, "GB")}
    assert [case.name for case in account(units, **FIELDS).cases()] == ["parameters in bytes", "days", "size in GB"]


def test_an_account_tells_missing_numbers_stubs_and_other_types():
    assert grade_answer(bytes_asked(), {"peak": 2008}).verdicts[0].sentence == "`parameters` is missing."
    assert grade_answer(bytes_asked(), {"parameters": ..., "peak": ...}).unanswered
    half = grade_answer(bytes_asked(), {"parameters": 1000, "peak": ...})
    assert half.verdicts[1].sentence == "`peak` is still `...`; write your answer in its place."
    verdict = grade_answer(bytes_asked(), 5).verdicts[0]
    assert verdict.kind == "unsafe"
    assert verdict.sentence == "`answer` is not a dict; give one with the keys 'parameters', 'peak'."
    single = account({"bytes": (8, "bytes")}, **FIELDS)
    assert grade_answer(single, 8).passed
    assert grade_answer(single, {"bytes": 8}).passed
    assert grade_answer(single, ...).unanswered


def test_a_choice_needs_its_reason():
    question = choice(
        {"a": "Adam", "b": "SGD"},
        "b",
        reasons={"1": "speed", "2": "bytes"},
        reason="2",
        why_not={"a": "Adam keeps two numbers for each parameter."},
        **FIELDS,
    )
    assert grade_answer(question, ("b", "2")).passed
    assert grade_answer(question, ("b", 2)).passed
    assert grade_answer(question, ("B", "2 ")).passed
    assert grade_answer(question, ("A", "2")).diagnosis == "Adam keeps two numbers for each parameter."
    assert not grade_answer(question, ("b", "2", "1")).passed
    assert grade_answer(question, ("b", "1")).diagnosis == "The choice is right; the reason is another."
    assert grade_answer(question, ("a", "2")).diagnosis == "Adam keeps two numbers for each parameter."
    assert grade_answer(question, "b").diagnosis == (
        "The reason is missing: answer with a pair of strings, the choice and the reason."
    )
    assert grade_answer(question, ("c", "2")).diagnosis == (
        "The choice 'c' is not one of 'a', 'b': answer with a pair of these strings."
    )
    assert grade_answer(question, (..., ...)).unanswered
    assert not any("'b'" in verdict.sentence for verdict in grade_answer(question, ("a", "1")).verdicts)


def test_a_design_is_scored_rule_by_rule():
    rules = {
        "fits": lambda recipe: None if recipe["bytes"] <= 100 else f"needs {recipe['bytes']} bytes of 100",
        "trains": lambda recipe: None if recipe["steps"] >= 10 else "takes too few steps",
        "is cheap": lambda recipe: None if recipe["steps"] <= 20 else "takes too many steps",
    }
    question = design(rules, **FIELDS)
    assert grade_answer(question, {"bytes": 90, "steps": 15}).points == 3
    result = grade_answer(question, {"bytes": 190, "steps": 15})
    assert result.points == 2
    assert result.verdicts[0].sentence == "`answer` needs 190 bytes of 100."
    assert grade_answer(question, {}).points == 0


def test_what_is_right_stays_with_the_judge():
    """`run` is sent to the learner's process, so it must not contain the right values."""
    cloudpickle = pytest.importorskip("cloudpickle")
    for question, secret in (
        (bytes_asked(), b"526264752"),
        (choice({"a": "x"}, "the right key", reasons={}, reason="the right reason", **FIELDS), b"the right"),
        (function(lambda x: "the oracle", public=lambda _: [], **FIELDS), b"the oracle"),
        (design({"r": lambda recipe: "the rule"}, **FIELDS), b"the rule"),
    ):
        packed = cloudpickle.dumps(question.run)
        assert secret not in packed
        assert (526_264_752).to_bytes(4, "little") not in packed
