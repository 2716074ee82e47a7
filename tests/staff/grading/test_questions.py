"""Of the repository: what single questions of `solutions/` count, measure and say in their own cells."""

import re
import sys
from dataclasses import dataclass
from functools import cache

import cloudpickle
import pytest
import torch
from own_solutions import solutions_of
from scaler_answers import SCALER, WRONG_SCALERS
from torch import nn
from torch.utils._pytree import tree_iter
from trainings import loop

from course_staff.release.case_runner import outcomes
from course_staff.release.source import AuthoredQuestion, apply_mistake
from course_utils.grading import Mistake, Question
from course_utils.grading.judge import QuestionResult, judge_answer, points
from course_utils.grading.loading import load_set, question_from, run_question, set_names
from course_utils.grading.run import run_cases
from course_utils.memory import Meter
from course_utils.memory.trace.log import KINDS
from course_utils.memory.trace.phases import announce_phases

MIB = 2**20


@cache
def authored_question(name: str, question: str) -> AuthoredQuestion:
    return next(candidate for candidate in solutions_of(name) if candidate.question.id == question)


def judged(author: AuthoredQuestion, source: str, seed: int | None = None, only: str = "") -> QuestionResult:
    """The result on the public cases, or on a seed's hidden ones, whose names begin with `only`."""
    cases = [case for case in author.question.cases(seed) if case.name.startswith(only)]
    return judge_answer(author.question, cases, outcomes(author, source, cases))


# 08_mixed_precision, q3: a loss scaler


def scaler(*change: str) -> str:
    return apply_mistake(SCALER, Mistake("", "", (change,) if change else ()))


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_a_scaler_of_another_style_is_right_on_any_draw(seed):
    assert judged(authored_question("08_mixed_precision", "q3"), scaler(), seed=seed).passed


@pytest.mark.parametrize("name", WRONG_SCALERS)
def test_wrong_scalers_are_rejected_on_any_draw(name):
    question = authored_question("08_mixed_precision", "q3")
    wrong = scaler(*WRONG_SCALERS[name])
    assert not any(judged(question, wrong, seed=seed).passed for seed in (None, 1, 2))


def test_the_step_at_which_a_scaler_decides_wrongly_is_said():
    late_scaler = scaler(*WRONG_SCALERS["grows one step late"])
    verdict = judged(authored_question("08_mixed_precision", "q3"), late_scaler).verdicts[0]
    assert verdict.sentence.startswith("After step 3, `scale after it` is ")


# 10_fsdp_and_zero, q3: a wrapper of modules


def wrapper(*changes: tuple[str, str]) -> str:
    return apply_mistake(authored_question("10_fsdp_and_zero", "q3").solution, Mistake("", "", changes))


REDUCE = "        dist.reduce_scatter(shard, shards)\n"
BROADCAST = "        dist.broadcast(flat, 0)\n"


# What a thread of gloo does for a moment, and what a thread of an answer's own must not do for good.
@pytest.mark.parametrize(("seconds", "right"), [(0.3, True), (60, False)])
def test_a_thread_may_hold_what_was_sent_a_moment_longer(seconds, right):
    definition = f"import threading, time\ndef hold(tensors): time.sleep({seconds})\n"
    thread = f"{REDUCE}        threading.Thread(target=hold, args=(shards,), daemon=True).start()\n"
    assert (
        judged(authored_question("10_fsdp_and_zero", "q3"), definition + wrapper((REDUCE, thread)), only="sizes").passed
        is right
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            (BROADCAST, f"{BROADCAST}        self.whole = lambda: flat\n"),
            "elements kept between steps` is 171 where at most 57",
        ),
        (
            (REDUCE, f"{REDUCE}        dist.all_reduce(shard.clone())\n"),
            "bytes sent for a forward and backward` is 1,368 where",
        ),
        ((BROADCAST, BROADCAST.replace("0)", "1)")), "parameters to begin with · shard[0]` is"),
    ],
    ids=["in a closure", "an all-reduce more", "another rank's weights"],
)
def test_what_a_wrapper_keeps_sends_and_begins_with_is_said(change, sentence):
    result = judged(authored_question("10_fsdp_and_zero", "q3"), wrapper(change), only="ranks that begin")
    assert result.verdicts[0].sentence.startswith("`training · rank 0 · ")
    assert sentence in result.verdicts[0].sentence


def test_a_wrapper_may_send_as_it_likes_before_the_first_step():
    """What is counted is a forward and backward alone: also a collective that the ledger does not know."""
    scattered = (
        BROADCAST,
        "        copies = [flat.clone() for _ in range(ranks)] if dist.get_rank() == 0 else None\n"
        "        dist.scatter(flat, copies, 0)\n",
    )
    assert judged(authored_question("10_fsdp_and_zero", "q3"), wrapper(scattered), only="sizes").passed


# 13_capstone, q4: a training within limits

BIAS = "classifier.bias"


def training(bytes: str = "20 * MiB", operations: str = "10**10", target: str = "0.0") -> dict:
    """The names of the question's cell with other limits."""
    code, limits = authored_question("13_capstone", "q4").code, "10 * MiB, 200 * 10**9, 0.6"
    assert code.count(limits) == 1
    return run_question(code.replace(limits, f"{bytes}, {operations}, {target}"), "q4")


def judge_training(question: Question, train=loop) -> QuestionResult:
    cases = question.cases()
    return judge_answer(question, cases, run_cases(question, train, cases))


def test_an_endless_training_ends_at_twice_its_operations():
    def endless(model, ids, labels):
        loop(model, ids, labels, steps=10**9, size=1)

    result = judge_training(training(operations="10**8")["question"], endless)
    assert "2 times the 0.1 billion that are allowed, and the training was stopped there" in result.verdicts[0].sentence


def test_a_broken_limit_says_by_how_much():
    assert judge_training(training()["question"]).passed
    sentence = judge_training(training(bytes="10 * MiB")["question"]).verdicts[0].sentence
    assert sentence.startswith("`bytes` is ")
    assert "where 10.0 MiB is allowed" in sentence
    assert sentence.endswith("% too much.")


def test_the_judge_says_how_far_the_target_is():
    sentence = judge_training(training(target="0.9")["question"]).verdicts[0].sentence
    assert sentence.startswith("`weights` reach ")
    assert sentence.endswith("on files never seen; the target is 90%.")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({BIAS: None}, "lack `classifier.bias`"),
        ({"lora": torch.ones(2)}, "have `lora` beside"),
        ({BIAS: torch.ones(6)}, "of the shape (6,)"),
        ({BIAS: torch.ones(5, dtype=torch.int64)}, "in another form"),
        ({BIAS: 3}, "in another form"),
        ({BIAS: torch.full((5,), torch.nan)}, "NaN or infinity"),
    ],
)
def test_weights_that_are_none_of_this_model_are_distinguished(change, sentence):
    names = training()
    model = names["fresh_model"](7)
    weights = {**{name: p.detach() for name, p in model.named_parameters()}, **change}
    assert sentence in names["misfit"]({name: value for name, value in weights.items() if value is not None}, model)
    assert names["misfit"]([1], model) == "are no weights by name"


def test_no_measurement_passes_that_no_training_can_have():
    question = training()["question"]
    (case,) = question.cases()
    right = question.expected(case.inputs)
    assert "the measurement was lost" in right["bytes"].broken(0)
    assert "the measurement was lost" in right["operations"].broken(0)
    assert "no whole number" in right["bytes"].broken(1.5)


def test_figures_are_bytes_operations_and_percent():
    question = training()["question"]
    cases = question.cases()
    (outcome,) = run_cases(question, loop, cases)
    figures = question.figures(question.expected(cases[0].inputs), outcome.values)
    assert figures["bytes"] == outcome.values["bytes"]
    assert figures["operations"] == outcome.values["operations"]
    assert 0 <= figures["accuracy"] <= 100


def test_a_training_has_a_time_limit_of_its_own_that_follows_that_of_all():
    question = authored_question("13_capstone", "q4").question
    assert (question.case_seconds(), question.case_seconds(10)) == (120, 60)


def test_what_goes_to_the_learners_process_holds_nothing_held_out():
    question = training()["question"]
    question.cases()
    assert len(cloudpickle.dumps(question.for_learners())) < 10_000


# 06_gradient_accumulation, q10, and 07_gradient_checkpointing, q8: the fault behind a measured timeline


@dataclass(frozen=True)
class Row:
    """What is in use after a line: its number, 0 for the beginning, its phase, and bytes by kind."""

    line: int
    phase: str
    kinds: dict[str, int]

    @property
    def bytes(self) -> int:
        return sum(self.kinds.values())


def measure_by_line(source: str, names: dict) -> list[Row]:
    """A row for the beginning and for each line that is run, in order; a line that opens a block has none."""
    lines, rows, line_number, phase = source.splitlines(), [], [0], ["forward"]
    models = [value for value in names.values() if isinstance(value, nn.Module)]
    optimizers = [value for value in names.values() if isinstance(value, torch.optim.Optimizer)]
    tensors = [value for value in tree_iter(list(names.values())) if isinstance(value, torch.Tensor)]
    meter = Meter(models, optimizers, tensors=tensors, look_inside=False)

    def in_use() -> dict[str, int]:
        usage = meter.usage()
        if usage.events:
            return {kind: int(usage.timeline.iloc[-1][kind]) for kind in KINDS}
        return {kind: sum(piece.bytes for piece in usage.pieces if piece.kind == kind) for kind in KINDS}

    def trace(frame, event, _):
        if frame.f_code.co_filename != "<the step>":
            return None
        if event in ("line", "return"):
            if not (line_number[0] and lines[line_number[0] - 1].endswith(":")):
                rows.append(Row(line_number[0], phase[0], in_use()))
            line_number[0] = frame.f_lineno
        return trace

    def begin(name: str | None) -> None:
        phase[0] = name or phase[0]

    code = compile(source, "<the step>", "exec")
    before = sys.gettrace()
    with announce_phases(begin, models, optimizers), meter:
        sys.settrace(trace)
        try:
            exec(code, {**names, "__name__": "step"})
        finally:
            sys.settrace(before)
    return rows


@pytest.mark.parametrize(
    ("name", "question"), [("06_gradient_accumulation", "q10"), ("07_gradient_checkpointing", "q8")]
)
def test_a_timeline_and_its_fault_are_what_is_measured(name, question):
    authored = authored_question(name, question)
    step, names, (old, new) = (authored.names[name] for name in ("STEP", "names", "FAULT"))
    assert step.count(old) == 1
    faulty, sound = measure_by_line(step.replace(old, new), names()), measure_by_line(step, names())
    cells = re.findall(r"^\| (\d*) +\|.*\| ([\d.]+) \|$", authored.statement, re.MULTILINE)
    assert cells == [(str(row.line or ""), f"{row.bytes / MIB:.2f}") for row in faulty]
    row, right = next((a, b) for a, b in zip(faulty, sound, strict=True) if a.bytes != b.bytes)
    kind = max(KINDS, key=lambda kind: abs(row.kinds[kind] - right.kinds[kind]))
    assert authored.names["RIGHT"] == {"phase": row.phase, "kind": kind, "line": row.line}


def test_each_part_of_a_fault_earns_its_share_and_a_wrong_one_is_explained():
    question = authored_question("07_gradient_checkpointing", "q8").question
    cases = question.cases()
    answer = {"phase": "forward", "kind": "inputs", "line": 2}
    result = judge_answer(question, cases, run_cases(question, answer, cases))
    assert [verdict.passed for verdict in result.verdicts] == [True, False, True]
    assert result.diagnosis == "The batch is 2 MiB from the beginning to the end."


@pytest.mark.parametrize("name", set_names())
def test_points_come_about_as_the_guide_says(name):
    for entry in load_set(name)["questions"]:
        kind = re.search(r"^question = (\w+)\(", entry["code"], re.MULTILINE)
        in_parts = kind is not None and kind[1] in ("account", "design", "kills", "weighed")
        assert entry["parts"] == (in_parts or "\n    parts=True,\n" in entry["code"]), entry["id"]
        assert not (entry["parts"] and entry["has_hidden"]) or kind[1] == "kills", "a guide that says so would be wrong"
        question = question_from(entry)
        if question.share is None:
            count = len(entry["cases"])
            one_wrong = round(question.points * (count - 1) / count, 2) if entry["parts"] else 0
            assert points(question, [], [False, *[True] * (count - 1)]) == one_wrong
