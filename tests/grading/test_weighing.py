"""Recipes as answers: right ones earn their worth, wrong ones hear which term broke which budget, contradictions are named."""

import re
from concurrent.futures import ThreadPoolExecutor
from math import isclose

import pytest

from course_utils.capstone.layout import Layout
from course_utils.capstone.scenarios import SCENARIOS
from course_utils.grading.judge import judge_answer
from course_utils.grading.run import run_cases
from course_utils.grading.weighing import weighed
from course_utils.memory.step.recipe import Recipe

FACTS = {"title": "-", "points": 6, "difficulty": 2, "minutes": 9, "hints": ("-", "-", "-"), "answer": "choice"}
QUESTIONS = {name: weighed(scenario, id="q1", **FACTS) for name, scenario in SCENARIOS.items()}
BYTES, SECONDS, BETWEEN = "fits", " s", "leave"
QUICKLY = {
    *("SGD at once, checkpointed", "LoRA in bf16"),
    *("plain AdamW", "only checkpointed", "bf16, checkpointed"),
}
"""The others take longer, or are of the same kind."""

SMALL = {"checkpointing": True, "chunked_loss": 1024, "keeps_outputs": False}


def laptop(**fields):
    return "laptop", {"sequence": 128, **fields}, None


def one_card(**fields):
    return "one card", {"device": "cuda", "sequence": 2048, **fields}, None


def machines(layout, **fields):
    defaults = {
        "device": "cuda",
        "sequence": 2048,
        "optimizer": "adamw-fused",
        "checkpointing": True,
        "keeps_outputs": False,
    }
    return "two machines", defaults | fields, layout


RIGHT = {  # how many of the five or six lines it earns
    "SGD at once, and only the loss": (
        laptop(optimizer="sgd", batch=8, in_backward=True, checkpointing=True, keeps_outputs=False),
        5,
    ),
    "SGD at once, checkpointed": (laptop(optimizer="sgd", batch=8, in_backward=True, checkpointing=True), 5),
    "bf16 and Adafactor": (laptop(optimizer="adafactor", precision="bf16", batch=2, accumulation=4), 4),
    "adapters": (laptop(lora=16, batch=1, accumulation=8), 4),
    "adapters, checkpointed": (laptop(lora=16, batch=8, checkpointing=True), 4),
    "Adafactor at once": (one_card(optimizer="adafactor", precision="bf16", batch=4, in_backward=True, **SMALL), 5),
    "GaLore at once": (one_card(galore=128, precision="bf16", batch=4, in_backward=True, **SMALL), 5),
    "LoRA in bf16": (one_card(lora=16, precision="bf16", batch=4, **SMALL), 3),
    "QLoRA": (one_card(lora=16, quantized="nf4", precision="bf16", batch=4, checkpointing=True), 3),
    "tensor within, stages between": (machines((1, 4, 2), precision="bf16-masters", batch=1, accumulation=64), 6),
    "the same with 8-bit states": (
        machines((1, 4, 2), optimizer="adamw8bit", precision="bf16-masters", batch=1, accumulation=64),
        6,
    ),
    "tensor within, ZeRO-1 between": (
        machines((2, 4, 1), precision="bf16", batch=1, accumulation=32, zero_stage=1, ranks=2),
        5,
    ),
    "ZeRO-3 in one micro-batch": (
        machines((8, 1, 1), precision="bf16", batch=8, zero_stage=3, ranks=8, chunked_loss=1024),
        5,
    ),
    "ZeRO-3 on the host": (
        machines((8, 1, 1), precision="autocast", batch=8, zero_stage=3, ranks=8, chunked_loss=1024, offload=True),
        6,
    ),
    "two by four": (machines((1, 2, 4), precision="bf16", batch=2, accumulation=32), 5),
}  # fmt: skip
WRONG = {  # the line that fails first, and the term at its instant
    "plain AdamW": (laptop(batch=8), BYTES, r"backward.*activations of 6"),
    "only checkpointed": (laptop(batch=8, checkpointing=True), BYTES, r"update.*optimizer state of 6"),
    "AdamW in small micro-batches": (laptop(batch=1, accumulation=8), BYTES, "optimizer state of 6"),
    "Adafactor at once": (
        laptop(optimizer="adafactor", batch=8, in_backward=True, checkpointing=True),
        BYTES, r"backward.*optimizer temporaries",
    ),
    "bf16, checkpointed": (
        laptop(optimizer="sgd", precision="bf16", batch=8, in_backward=True, checkpointing=True),
        SECONDS, r"takes 7.*computing in backward.*mm",
    ),
    "AdamW in bf16": (one_card(precision="bf16", batch=1, accumulation=4, **SMALL), BYTES, "optimizer state of 32"),
    "SGD keeps all gradients": (
        one_card(optimizer="sgd", precision="bf16", batch=1, accumulation=4, **SMALL),
        BYTES, "gradients of 32",
    ),
    "QLoRA without checkpoints": (
        one_card(lora=16, quantized="nf4", precision="bf16", batch=1, accumulation=4),
        BYTES, r"forward.*activations of 32",
    ),
    "QLoRA under autocast": (  # its products with weights of 4 bits are counted in float32
        one_card(lora=16, quantized="nf4", precision="autocast", batch=4, checkpointing=True),
        SECONDS, r"takes 6.*computing in backward.*mm",
    ),
    "activations on the host": (
        one_card(optimizer="adafactor", precision="bf16", batch=4, in_backward=True, offload_activations=True, chunked_loss=1024),
        SECONDS, r"takes 7.*computing in",
    ),
    "ZeRO-3, one example at a time": (
        machines((8, 1, 1), precision="autocast", batch=1, accumulation=8, zero_stage=3, ranks=8),
        BETWEEN, r"sends 1,697 GiB.*all-gather among data ranks",
    ),
    "ZeRO-3, larger micro-batches": (
        machines((8, 1, 1), precision="autocast", batch=2, accumulation=4, zero_stage=3, ranks=8),
        BYTES, r"backward.*optimizer state of 60",
    ),
    "groups of four": (
        machines((8, 1, 1), precision="bf16", batch=2, accumulation=4, zero_stage=3, ranks=8, replicas=2),
        BYTES, r"optimizer state of 60.*communication",
    ),
    "autocast on a mesh": (
        machines((1, 4, 2), precision="autocast", batch=1, accumulation=64),
        BYTES, "optimizer state of 30",
    ),
    "four micro-batches in four stages": (
        machines((1, 2, 4), precision="bf16", batch=16, accumulation=4, chunked_loss=1024),
        SECONDS, r"takes 41.*the pipeline's bubble",
    ),
}  # fmt: skip
CONTRADICTORY = {  # what is said of it
    "drops and keeps": (laptop(checkpointing=True, saved_on_disk=True, batch=8), "Checkpointing drops what"),
    "4 bits, trained": (one_card(quantized="nf4", batch=4), "cannot be trained themselves"),
    "nobody to share with": (machines((1, 4, 2), zero_stage=3, batch=64), "nothing to shard over"),
    "states that take no shards": (
        machines((8, 1, 1), optimizer="adamw8bit", zero_stage=3, ranks=8, batch=8),
        "takes no shards",
    ),
}  # fmt: skip


def as_params(cases):
    marks = {name: () if name in QUICKLY else pytest.mark.slow for name in cases}
    return [pytest.param(case, id=name, marks=marks[name]) for name, case in cases.items()]


def result(name, answer):
    question = QUESTIONS[name]
    cases = question.cases()
    return judge_answer(question, cases, run_cases(question, answer, cases))


def answer_of(fields, layout):
    return (Recipe(**fields), Layout(*layout)) if layout else Recipe(**fields)


@pytest.mark.parametrize("case", as_params(RIGHT))
def test_right_recipes_earn_a_share_for_every_budget_and_more_where_they_are_better(case):
    (name, fields, layout), worth = case
    graded = result(name, answer_of(fields, layout))
    assert [v.sentence for v in graded.verdicts if not v.passed and "better" not in v.case] == []
    assert isclose(graded.points, 6 * worth / len(graded.verdicts), abs_tol=0.01)


@pytest.mark.parametrize("case", as_params(WRONG))
def test_wrong_recipes_are_told_the_budget_and_the_term_at_its_instant(case):
    (name, fields, layout), line, pattern = case
    graded = result(name, answer_of(fields, layout))
    first = next(verdict for verdict in graded.verdicts if not verdict.passed)
    assert line in first.case
    assert "better" not in first.case
    assert re.search(pattern, first.sentence), first.sentence
    assert graded.points < 6 * 4 / len(graded.verdicts) + 0.01


@pytest.mark.parametrize("case", CONTRADICTORY.values(), ids=CONTRADICTORY)
def test_contradictions_are_named_and_earn_nothing(case):
    (name, fields, layout), message = case
    answer = (fields, Layout(*layout)) if layout else fields
    graded = result(name, answer)
    assert graded.points == 0
    assert message in graded.verdicts[0].sentence
    assert "is not looked at yet" in graded.verdicts[1].sentence


def test_threads_that_judge_at_once_say_what_one_alone_says():
    """Dry runs patch torch for the whole process, and `course grade` judges in several threads."""
    answers = [laptop(lora=rank, batch=8, checkpointing=True) for rank in (4, 5)]
    with ThreadPoolExecutor(2) as pool:
        points = list(pool.map(lambda answer: result("laptop", answer_of(*answer[1:])).points, answers))
    assert points == [4.8] * 2


@pytest.mark.parametrize(
    "answer",
    [
        *(None, 3, "sgd", [], {"frozen": 0, "batch": 8}, {"optimizer": {}}, {"teacher": "a" * 300, "batch": 8}),
        *({"batch": 10**5000}, {"batch": "8"}, {"batch": True}, [{}, {}, {}], [{"batch": 8}, {"data": 10**5000}]),
        *({"lr": 1}, {"batch": float("nan")}, [{"batch": 8}, None]),
    ],
    ids=lambda answer: str(type(answer)),
)
def test_whatever_else_is_given_is_told_in_a_sentence(answer):
    graded = result("laptop", answer)
    assert graded.points == 0
    assert graded.verdicts[0].sentence
