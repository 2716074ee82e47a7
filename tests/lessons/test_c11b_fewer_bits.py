"""Chapter 11b: recipes take what the ladder predicts, contenders keep the bytes they claim, and figures say what they draw."""

from dataclasses import replace

import pytest
import torch
from figures import title

from course_utils import data, memory, optim
from course_utils.lessons import c11b_fewer_bits as lesson
from course_utils.lessons import c11b_figures as figures
from course_utils.settings import SCALES
from course_utils.techniques.lora import LoRA

SCALE = replace(SCALES["smoke"], train_rows=64, eval_rows=32)
BASE = lesson.build_classifier(SCALE)
RECIPE = memory.Recipe(batch=8, sequence=SCALE.sequence)


def test_the_halves_share_no_function():
    first, second = (lesson.tokenized_functions(SCALES["smoke"], half) for half in ("first", "second"))
    assert len(first) == len(second) == SCALES["smoke"].train_rows // 2
    corpus = data.tokenize(data.load_functions(), data.tokenizer_for(data.load_functions(), 1_000), 32)["train"]
    for place in range(0, 20, 2):
        assert first[place // 2] == corpus[place]
        assert second[place // 2] == corpus[place + 1]


@pytest.mark.slow
def test_the_picture_and_the_plan_have_the_same_rungs_and_bytes():
    """`course plan` on a card that is too small for anything lists what falls lowest; tried, each takes just these bytes."""
    rungs = lesson.recipes_by_rung(BASE, RECIPE)
    assert {"micro-batch of 1", "gradient checkpointing", "8-bit AdamW", "LoRA of rank 16"} <= set(rungs)
    assert "chunked loss" not in rungs  # a classifier has no words
    rows = memory.plan(BASE.config, 2**12, RECIPE).rows
    assert {len(row.names) for row in rows} == {1}
    # The plan's 4-bit AdamW is torchao's, of which one kernel is enough.
    ours = [row for row in rows if row.names != ("4-bit AdamW",)][:2]
    tries = {row.names[0]: lesson.fine_tune_and_measure(BASE, rungs[row.names[0]], SCALE) for row in ours}
    for row in ours:
        tried = tries[row.names[0]]
        assert tried.predicted == row.peak
        assert tried.peak == pytest.approx(row.peak, rel=0.001)
    measured = [tried.peak for tried in tries.values()]
    assert measured == sorted(measured)


def test_a_recipe_that_is_tried_trains_a_copy():
    before = {name: p.clone() for name, p in BASE.named_parameters()}
    first, second = (lesson.fine_tune_and_measure(BASE, RECIPE, SCALE) for _ in range(2))
    assert first.loss == second.loss < lesson.held_out_loss(BASE, SCALE)
    assert all(torch.equal(p, before[name]) for name, p in BASE.named_parameters())


def test_adapters_sit_from_the_named_block_on():
    deep = lesson.build_classifier(replace(SCALE, layers=3))
    for first in range(3):
        adapted = lesson.add_adapters(deep, 2, ("lin1",), first)
        names = [name for name, module in adapted.named_modules() if isinstance(module, LoRA)]
        assert names == [f"distilbert.transformer.layer.{number}.ffn.lin1" for number in range(first, 3)]
        trainable = [name for name, p in adapted.named_parameters() if p.requires_grad]
        assert len(trainable) == 2 * (3 - first)


@pytest.mark.parametrize("rows", [4, 16])
def test_a_step_with_adapters_is_planned_to_the_byte_and_saves_what_the_layers_need(rows):
    recipe = replace(RECIPE, batch=rows, lora=2)
    recipes = {name: replace(recipe, lora_targets=layers) for name, layers in lesson.ADAPTER_PLACES.items()}
    steps = {name: lesson.measure_placement(BASE, recipe) for name, recipe in recipes.items()}
    for step in steps.values():
        assert step.predicted == pytest.approx(step.measured, rel=0.001)
    tensor, blocks = 4 * rows * SCALE.sequence * SCALE.width, SCALE.layers
    low = 4 * rows * SCALE.sequence * 2  # what A makes of the input, which the gradient of B needs
    mlp = blocks * (tensor * (1 + 4) + 2 * low)
    assert steps["all-linear"].saved - steps["q k v o"].saved == mlp
    assert steps["q k v o"].saved - steps["q v"].saved == blocks * 2 * low
    table = lesson.table_of_places({(rows, name): step for name, step in steps.items()})
    assert list(table.index.names) == ["rows", "adapters on"]


def test_adapters_merged_into_the_rounded_weights_give_the_same_losses():
    recipe = replace(RECIPE, lora=2, quantized="nf4")
    tuned = lesson.fine_tune(BASE, recipe, SCALE, 1e-3, seed=1)
    size, error, merged = lesson.merge_adapters(BASE, tuned)
    assert 0 < size < 1
    assert error > 0
    exact, _, rounded, untuned = (lesson.held_out_loss(model, SCALE) for model in merged.values())
    unmerged = lesson.held_out_loss(tuned, SCALE)
    assert exact == pytest.approx(unmerged, abs=1e-4)
    assert abs(rounded - unmerged) > abs(exact - unmerged)
    assert abs(untuned - unmerged) > abs(exact - unmerged)


def test_each_way_was_tuned_at_three_rates_and_the_best_is_taken():
    runs = lesson.fine_tuning_runs()
    for name, of_name in runs[runs["name"] != "start"].groupby("name"):
        assert set(of_name.groupby("lr").size()) == {3}
        assert of_name["lr"].nunique() == 3
        assert min(of_name["lr"]) < lesson.best_rate(name) < max(of_name["lr"]), f"{name}'s best rate is at the edge"
    assert lesson.best_rate("micro-batch of 1") == lesson.best_rate(lesson.BASELINE)
    ends = lesson.tuning_differences()
    assert ends[lesson.BASELINE] == [0, 0, 0]
    adapters = {name: values for name, values in ends.items() if "LoRA" in name}
    assert len(adapters) == 4
    assert all(min(values) > 0 for values in adapters.values())


def test_the_race_is_paired_by_seed():
    differences = lesson.race_differences(lesson.stored_runs())
    assert all(len(values) == len(lesson.RACE_SEEDS) for values in differences.values())
    below = {name for name, values in differences.items() if max(values) < 0}
    assert below == {"AdamW, 8 bits", "AdamW, 4 bits", "GaLore, a half"}  # the title of the chapter's figure


@pytest.mark.parametrize("name", lesson.low_states([(128, 128)]))
def test_each_moves_hidden_matrices_and_the_rest_and_keeps_the_bytes_it_claims(name):
    model = lesson.build_classifier(replace(SCALE, width=128, heads=4))
    shapes, others = lesson.hidden_shapes(model), optim.hidden_matrices(model)[1]
    low = lesson.low_states(shapes)[name]
    optimizer = low.contender.make(model, 0.01)
    parameters = [p for p in model.parameters() if p.requires_grad]
    before = [p.detach().clone() for p in parameters]
    for _ in range(2):
        for p in parameters:
            p.grad = torch.randn_like(p)
        optimizer.step()
    assert not any(map(torch.equal, before, parameters))
    states = {p: state for p, state in optimizer.state.items() if all(p is not other for other in others)}
    entries = (entry for state in states.values() for entry in state.items())
    tensors = [t for key, t in entries if isinstance(t, torch.Tensor) and "qmap" not in key]
    counters = 4 * len(states) if "LoRA" in name else 0
    assert sum(t.nbytes for t in tensors) == low.state_bytes(shapes) + counters


def test_equal_bytes_are_equal():
    shapes = lesson.hidden_shapes(lesson.build_classifier(SCALES["laptop"]))
    low = {name: low.state_bytes(shapes) for name, low in lesson.low_states(shapes).items()}
    assert 0.95 < low["GaLore, as 8 bits"] / low["AdamW, 8 bits"] <= 1
    weights = sum(a * b for a, b in shapes)
    adapters = 2 * low["LoRA, bytes as GaLore's"]  # with gradients and themselves
    assert 0.95 < adapters / (low["GaLore, a quarter"] + 4 * weights) <= 1


def test_each_raced_at_the_best_rate_of_its_sweep():
    runs = lesson.stored_runs()
    names = lesson.low_states([(128, 128)])
    raced = runs[runs["seed"].isin(lesson.RACE_SEEDS) & runs["name"].isin(names)]
    swept = runs[runs["seed"].isin(lesson.SWEEP_SEEDS)]
    for name, low in names.items():
        rates = set(raced[raced["name"] == name]["lr"])
        assert rates == {low.contender.lr}
        sweep = swept[swept["name"] == (name if not name.startswith("AdamW") else "AdamW")]
        means = sweep.fillna({"loss": torch.inf}).groupby("lr")["loss"].mean()
        assert means.idxmin() == low.contender.lr
        assert min(means.index) < low.contender.lr < max(means.index), f"the best rate of {name} is at the edge"
        assert len(raced[raced["name"] == name]) == len(lesson.RACE_SEEDS)


def test_figures_say_what_they_draw():
    base = lesson.FineTuning(4096, 4096, 1.0, 0.5)
    ends = {"start": [0.5, 0.7], "one": [0.25, 0.35]}
    _, alt = figures.choosing_figure(base, {"one": lesson.FineTuning(2048, 2048, 3.0, 0.75)}, ends)
    assert "one: 2.00 KiB; AdamW: 4.00 KiB. Seconds of an epoch, × AdamW's. one: 3.00; AdamW: 1.00." in alt
    assert "(not fine-tuned: 0.60). one: 0.25 to 0.35, mean 0.30." in alt


def test_bits_of_nf4_are_those_of_its_blocks():
    assert lesson.bits_of_nf4() == 4 + 8 / 64 + 32 / 64 / 256
    assert lesson.bits_of_nf4(double=False) == 4.5


@pytest.mark.parametrize("state", figures.STATE_SHARES)
def test_the_play_has_the_shares_of_the_optimizers(state):
    """A block of the play's default width has four square matrices and two that are four times as long."""
    shapes = 4 * [(2048, 2048)] + 2 * [(2048, 8192)]
    kinds = {"SGD": optim.SGD, "4 bits": lesson.AdamW4bit, "8 bits": optim.AdamW8bit, "16 bits": lesson.AdamW16bit}
    kinds |= {"32 bits": optim.AdamW, "GaLore, a quarter": lesson.GaLore}
    rank = {"rank": 512} if "GaLore" in state else {}
    state_bytes = sum(kinds[state].state_bytes(shape, **rank) for shape in shapes)
    assert figures.STATE_SHARES[state] == pytest.approx(state_bytes / (8 * 12 * 2048**2), abs=1e-3)
    _, alt = figures.play_methods(state=state)
    assert "1,207,959,552 weights in 32 bits, 1,207,959,552 trained" in alt


def test_the_play_trains_adapters_beside_four_bits():
    assert "14,155,776 trained" in figures.play_methods(weights="NF4", rank=16)[1]
    figure, alt = figures.play_methods(weights="NF4")
    assert "3,538,944 trained" in alt
    assert title(figure.axes[0]).endswith("; adapters of rank 4 on all-linear")
    assert "3,145,728 trained" in figures.play_methods(rank=16, targets="q v")[1]
