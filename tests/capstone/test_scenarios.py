"""The capstone's scenarios: what a card has, sends and takes, against real ranks, whole dry runs and counts edge by edge."""

from dataclasses import replace
from functools import partial

import pytest

from course_utils import hardware, models
from course_utils.capstone import scenarios
from course_utils.capstone.layout import Layout, Sent, sent_by
from course_utils.capstone.scenarios import SCENARIOS, Weighed, levels_of, weigh
from course_utils.distributed import launch
from course_utils.errors import CourseError
from course_utils.hardware import LINKS, Cluster, all_reduce_seconds
from course_utils.lessons import c12_scaling_out as chapter_12
from course_utils.lessons.c12_on_paper import Mesh, MeshStep
from course_utils.lessons.c12_on_paper import llama as chapter_12_llama
from course_utils.memory.formulas.trial import try_recipe
from course_utils.memory.planning.changes import CHANGES
from course_utils.memory.step.model import source_of
from course_utils.memory.step.recipe import Recipe
from course_utils.memory.step.workload import Workload, call
from course_utils.memory.trace.dry_run import dry_run
from course_utils.memory.trace.log import Log

SIZES = {"hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 4, "num_key_value_heads": 4}
LLAMA = models.configuration("llama", **SIZES, vocab_size=200, num_hidden_layers=6)
A100 = hardware.machine("A100-80GB")
CLUSTER = Cluster(A100, LINKS["NVLink 3"], LINKS["100 Gb/s"], 4)
PLAIN = Recipe("adamw-fused", batch=2, sequence=32, device="cuda")


# What a card has.


def test_a_card_s_part_of_the_width_has_as_many_numbers_as_a_rank_that_really_cuts_the_model():
    work = chapter_12.TrainingTask(LLAMA, micro_batches=2, examples=2, tokens=16)
    on_ranks = launch(partial(chapter_12.measure_tensor_on_rank, work, chapter_12.split_by_hand), 2)
    part = Layout(tensor=2).part_of(source_of(LLAMA)).make()
    assert [seen.elements for seen in on_ranks] == [sum(p.numel() for p in part.parameters())] * 2


def test_a_stage_has_its_blocks_and_what_does_not_divide_is_named():
    assert Layout(pipeline=3).part_of(source_of(LLAMA)).config.num_hidden_layers == 2
    with pytest.raises(CourseError, match="4 heads do not divide over 3 tensor ranks"):
        Layout(tensor=3).part_of(source_of(LLAMA))
    with pytest.raises(CourseError, match="6 blocks do not divide over 4 stages"):
        Layout(pipeline=4).part_of(source_of(LLAMA))
    with pytest.raises(CourseError, match="data"):
        Layout(data=0)


# Micro-batches in flight.


def test_a_stage_keeps_what_forward_saved_of_every_micro_batch_in_flight():
    source, recipe = source_of(LLAMA), replace(PLAIN, accumulation=4, keeps_outputs=False, sequence=128)
    work = Workload(source, recipe)

    def forward_first(model, optimizer, batches):
        losses = [source.loss(call(model, batch), batch) for batch in batches]
        for loss in losses:
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    truth = Log.from_usage(dry_run(work.build, forward_first, "cuda")).peak
    single = try_recipe(source, recipe).peak
    predicted = scenarios.in_flight(try_recipe(source, recipe), 4).peak
    assert truth > 2 * single
    assert predicted == pytest.approx(truth, rel=0.05)  # but for the output layer, which a first stage has not


# What a card sends.


def leaving_by_edges(ranks, stride, cards, machine=4):
    """Edges of rings of so many ranks, `stride` from each other, that leave the first machine."""
    rings = {
        tuple(range(first, first + ranks * stride, stride))
        for start in range(0, cards, ranks * stride)
        for first in range(start, start + stride)
    }
    edges = (edge for ring in rings for edge in zip(ring, ring[1:] + ring[:1], strict=True))
    return sum(a // machine == 0 and b // machine != 0 for a, b in edges)


@pytest.mark.parametrize(("ranks", "stride"), [(8, 1), (4, 1), (2, 1), (4, 2), (2, 4), (2, 2)])
def test_bytes_leave_a_machine_by_every_ring_s_edge_between_machines(ranks, stride):
    trial = replace(try_recipe(source_of(LLAMA), PLAIN), traffic={"all-gather": (1000, 7)})
    layout = Layout(data=ranks, tensor=stride, pipeline=8 // (ranks * stride))
    sent = next(sent_by(layout, CLUSTER, replace(PLAIN, ranks=ranks), 64, 8, trial))
    assert sent.leaving == 1000 * leaving_by_edges(ranks, stride, 8)


def test_tensor_ranks_send_what_their_all_reduces_do_and_stages_their_boundaries():
    trial, recipe = try_recipe(source_of(LLAMA), PLAIN), replace(PLAIN, accumulation=6, precision="bf16")
    message = 2 * 32 * 64 * 2
    tensor, pipeline = sent_by(Layout(1, 4, 2), CLUSTER, recipe, 64, 4, trial)
    assert tensor.seconds == pytest.approx(6 * 4 * 4 * all_reduce_seconds(message, 4, CLUSTER.intra_node))
    assert (tensor.leaving, pipeline.bytes, pipeline.leaving) == (0, 2 * 6 * message, 4 * 6 * message)
    recomputed = next(iter(sent_by(Layout(1, 4, 2), CLUSTER, replace(recipe, checkpointing=True), 64, 4, trial)))
    assert recomputed.bytes == 1.5 * tensor.bytes


def seconds_of(trial, layout, recipe, sent):
    """The parts of an update's seconds, which neither the scenario nor the bytes enter."""
    return Weighed(None, recipe, layout, None, (0, 0), trial, sent).parts


@pytest.mark.parametrize(("tensor", "pipeline", "k"), [(2, 4, 4), (4, 2, 2), (2, 4, 1)])
def test_stages_wait_and_are_empty_as_long_as_chapter_12_says(tensor, pipeline, k):
    sizes = {"width": 64, "blocks": 8, "inner": 192, "heads": 4, "kv_heads": 4, "vocabulary": 200, "context": 32}
    mesh = MeshStep(chapter_12_llama(**sizes), 32 * 2 * k, CLUSTER, Mesh(1, tensor, pipeline), k)
    recipe = replace(PLAIN, precision="bf16", accumulation=k)
    trial = replace(try_recipe(source_of(LLAMA), PLAIN), clock={("forward", "x"): mesh.seconds["computing"]})
    sent = tuple(sent_by(Layout(1, tensor, pipeline), CLUSTER, recipe, 64, 8 // pipeline, trial))
    parts = seconds_of(trial, Layout(1, tensor, pipeline), recipe, sent)
    assert parts["all-reduce among tensor ranks"] == pytest.approx(mesh.seconds["tensor communication"])
    assert parts["activations from stage to stage"] == pytest.approx(mesh.seconds["pipeline communication"])
    assert parts["the pipeline's bubble"] == pytest.approx(mesh.seconds["bubble"])


def test_autocast_sends_from_stage_to_stage_in_float32():
    trial = try_recipe(source_of(LLAMA), PLAIN)
    recipes = (replace(PLAIN, precision=precision) for precision in ("bf16", "autocast"))
    half, mixed = (list(sent_by(Layout(1, 2, 4), CLUSTER, recipe, 64, 2, trial)) for recipe in recipes)
    assert mixed[0].bytes == half[0].bytes
    assert mixed[1].bytes == 2 * half[1].bytes


def test_what_comes_after_the_update_hides_behind_nothing_and_an_all_reduce_behind_the_last_backward_only():
    clock = {("forward", "x"): 5.0, ("backward", "x"): 10.0}
    trial = replace(try_recipe(source_of(LLAMA), PLAIN), clock=clock)
    sent = (
        Sent("all-reduce", 1, 7.0, 0, "last backward"),
        Sent("broadcast", 1, 1.0, 0),
        Sent("all-gather", 1, 14.0, 0, "all"),
    )
    parts = seconds_of(trial, Layout(8), replace(PLAIN, accumulation=2), sent)
    assert parts["all-reduce, as far as it is not hidden"] == 7.0 - 10.0 / 2
    assert parts["broadcast"] == 1.0
    assert parts["all-gather, as far as it is not hidden"] == 0.0
    traffic = dict.fromkeys(("all-reduce", "broadcast", "all-gather", "reduce-scatter"), (100, 1))
    messages = sent_by(Layout(8), CLUSTER, replace(PLAIN, ranks=8), 64, 8, replace(trial, traffic=traffic))
    assert [message.hides for message in messages] == ["last backward", "", "all", "all"]


def test_replicas_in_a_machine_of_their_own_send_only_gradients_between_machines():
    groups = replace(PLAIN, ranks=8, zero_stage=3, replicas=2, precision="bf16")
    traffic = dict.fromkeys(("all-reduce", "all-gather", "reduce-scatter"), (100, 1))
    trial = replace(try_recipe(source_of(LLAMA), PLAIN), traffic=traffic)
    sent = list(sent_by(Layout(8), CLUSTER, groups, 64, 8, trial))
    assert {message.reason.split()[0] for message in sent if message.leaving} == {"all-reduce"}
    assert {message.reason.split()[0] for message in sent if not message.leaving} == {"all-gather", "reduce-scatter"}


# The ladder's levels.


@pytest.mark.parametrize(
    "change", [change for change in CHANGES if isinstance(change.fields, dict)], ids=lambda change: change.name
)
def test_a_rung_s_fields_have_its_level(change):
    fields = {"ranks": 2} if change.fields.get("zero_stage") else {}
    fields |= {"device": "cuda"} if any("offload" in name for name in change.fields) else {}
    levels = levels_of(Recipe(**{**fields, **change.fields}))
    assert max(levels.values(), default=0) == change.level


@pytest.mark.parametrize(
    ("field", "value", "level"),
    [
        *(("teacher", "adamw-tiny", 3), ("lora", 4, 3), ("galore", 64, 2), ("optimizer", "momentum", 2)),
        *(("optimizer", "adafactor-transformers", 2), ("precision", "fp16", 1), ("precision", "bf16-masters", 1)),
    ],
)
def test_what_is_no_rung_has_the_level_of_its_kind(field, value, level):
    assert levels_of(Recipe(**{field: value})) == {field: level}


# What is refused.


@pytest.mark.parametrize(
    ("name", "recipe", "layout", "message"),
    [
        ("laptop", Recipe(batch=4), None, "An update here has 8 examples of 128 tokens"),
        ("laptop", Recipe(batch=8, sequence=64), None, "are 8 of 64"),
        ("laptop", Recipe(batch=8, device="cuda"), None, "device='cpu'"),
        ("laptop", Recipe(lambda p: None), None, "function"),
        ("laptop", Recipe(batch=8, frozen=("distilbert.embeddings",)), None, "frozen"),
        ("laptop", Recipe(batch=8, saved_on_disk=True), None, "No disk"),
        ("laptop", Recipe(batch=8, lora=10**12), None, "up to 1,024"),
        ("laptop", Recipe(batch=8, chunked_loss=1), None, "at least 256"),
        ("laptop", Recipe(batch=8, teacher="distilbert-base-cased"), None, "No teacher"),
        ("laptop", Recipe(batch=4, ranks=2), Layout(2), "this scenario 1 card"),
        ("two machines", Recipe(device="cuda", batch=64, sequence=2048), Layout(8), "ranks=1"),
        ("two machines", Recipe(device="cuda", batch=8, sequence=2048, ranks=8), None, "this scenario 8 cards"),
        ("two machines", Recipe(device="cuda", batch=32, sequence=2048, ranks=2, lora=8), Layout(2, 4), "whole weights"),
        ("two machines", Recipe(device="cuda", batch=16, sequence=2048, ranks=4, zero_stage=3), Layout(4, 1, 2), "ZeRO-2 and 3"),
        ("two machines", Recipe(device="cuda", batch=64, sequence=2048), Layout(1, 8), "52 heads"),
    ],
)  # fmt: skip
def test_what_is_another_update_is_refused_before_anything_is_run(name, recipe, layout, message, monkeypatch):
    monkeypatch.setattr(scenarios, "try_recipe", None)
    with pytest.raises(CourseError, match=message):
        weigh(SCENARIOS[name], recipe, layout)
