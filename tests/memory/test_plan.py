"""What fits, what would make it fit, and how large it may be: against estimates and dry runs of the recipes that are named."""

import json
import pickle
import re
from collections import Counter
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from itertools import combinations

import pandas as pd
import pytest
import torch
import yaml
from datasets import Dataset
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_utils import data, hardware, memory, models
from course_utils.errors import CourseError
from course_utils.memory import Recipe, estimate, plan
from course_utils.memory.formulas.trial import attempt, run_whole
from course_utils.memory.plan import verdict
from course_utils.memory.plan.changes import CHANGES
from course_utils.memory.plan.emit import emit
from course_utils.memory.plan.explain import explain, why
from course_utils.memory.plan.guard import lengths_of
from course_utils.memory.plan.plan import most
from course_utils.memory.plan.verdict import DOES_NOT, FITS, TIGHT, needs, verdict_of
from course_utils.memory.step.model import source_of
from course_utils.memory.step.recipe import plain_recipe
from course_utils.memory.trace.log import Log
from course_utils.optim import hidden_matrices
from course_utils.units import GiB, MiB


def llama(width, blocks, vocabulary=8000):
    """Of any width, since nothing is computed: what a dry run costs is its operators, and they grow with the blocks."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": width // 4}
    sizes = {"hidden_size": width, "intermediate_size": 11 * width // 4, "vocab_size": vocabulary, **heads}
    return models.configuration("llama-7b", **sizes, num_hidden_layers=blocks, max_position_embeddings=4096)


LLAMA = llama(4096, 2)
RECIPE = Recipe("adamw-foreach", batch=4, sequence=2048, device="cuda")


def planned(share):
    """For a card with this share of what is needed."""
    needed = needs(Log.of(dry(LLAMA, RECIPE)), RECIPE.device)[1]
    return plan(LLAMA, int(share * needed), RECIPE, machine=hardware.machine("RTX 4090"), cards=(2, 16))


PLANNING = import_module("course_utils.memory.plan.plan")  # the function of this name stands before it


@pytest.fixture
def only(monkeypatch):
    """A function that leaves no changes but those of these names."""
    return lambda names: monkeypatch.setattr(PLANNING, "CHANGES", tuple(one for one in CHANGES if one.name in names))


@pytest.fixture(scope="module")
def tight():
    """With some of the milder changes; the others, and combinations, are in a slow test."""
    some = {"fused optimizer", "micro-batch of 1", "optimizer on the host", "8-bit AdamW"}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PLANNING, "CHANGES", tuple(change for change in CHANGES if change.name in some))
        return planned(0.81)


def dry(config, recipe):
    work = memory.Workload(config, recipe)
    return memory.dry_run(work.build, work.step, recipe.device, ranks=recipe.ranks)


@pytest.mark.parametrize(
    "recipe",
    [
        RECIPE,
        pytest.param(replace(RECIPE, precision="bf16-masters"), marks=pytest.mark.slow),
        pytest.param(replace(RECIPE, checkpointing=True, batch=1), marks=pytest.mark.slow),
        pytest.param(replace(RECIPE, zero_stage=3, ranks=4), marks=pytest.mark.slow),
    ],
    ids=["as usual", "an optimizer for each parameter", "checkpointing", "ZeRO-3"],
)
def test_a_trial_of_a_few_blocks_is_the_dry_run_of_all(recipe):
    deep, machine = llama(256, 5), hardware.machine("H100")
    tried = attempt(source_of(deep), recipe, machine)
    assert tried.peak == dry(deep, recipe).peak
    assert "3 of its 5 blocks" in tried.how
    if recipe.ranks == 1:
        work = memory.Workload(deep, recipe)
        seconds = memory.predict_seconds(work.build, work.step, machine, like="cuda").seconds
        assert tried.seconds == pytest.approx(seconds, rel=0.01)


@pytest.mark.slow
def test_how_long_a_segment_is_depends_on_all_blocks_so_all_are_run():
    recipe = replace(RECIPE, checkpointing=True, segments=3, batch=1)
    tried = attempt(source_of(llama(256, 5)), recipe)
    assert tried.how == "a dry run of just this step"
    assert tried.peak == dry(llama(256, 5), recipe).peak


@pytest.mark.parametrize(
    ("blocks", "change"),
    [
        (5, {}),
        *(
            pytest.param(1, change, marks=pytest.mark.slow)
            for change in (
                {"precision": "autocast", "ranks": 2, "zero_stage": 3},
                {"precision": "bf16", "checkpointing": True, "optimizer": "adamw8bit"},
                {"chunked_loss": 512, "precision": "bf16", "offload": True},
                {"device": "cpu", "optimizer": "adamw", "lora": 4},
            )
        ),
    ],
)
def test_many_micro_batches_follow_from_two(blocks, change):
    recipe = replace(RECIPE, batch=1, sequence=512, accumulation=4, **change)
    source, machine = source_of(llama(256, blocks)), hardware.machine("H100")
    whole, of_two = run_whole(source, recipe, machine), attempt(source, recipe, machine)
    assert (of_two.peak, of_two.host.peak, of_two.traffic) == (whole.peak, whole.host.peak, whole.traffic)
    assert of_two.log.reserved == pytest.approx(whole.log.reserved, rel=0.01)
    assert of_two.clock == pytest.approx(whole.clock)
    assert of_two.how.endswith("of 2 of its 4 micro-batches")
    assert attempt(source, recipe).log.totals.tolist() == of_two.log.totals.tolist()


@pytest.mark.slow
def test_the_largest_batch_of_many_micro_batches_fits_and_one_more_does_not():
    config, recipe = llama(256, 1), replace(RECIPE, batch=2, sequence=512, accumulation=3)
    enough = [needs(run_whole(source_of(config), replace(recipe, batch=b)).log, "cuda")[1] for b in (6, 7)]
    answer = plan(config, sum(enough) // 2, recipe, cards=())
    assert answer.largest["largest batch"] == 6


def assert_rows_are_true(answer, rows=slice(None)):
    """Against a dry run of each row's recipe."""
    assert answer.verdict == DOES_NOT
    assert answer.rows[rows]
    for row in answer.rows[rows]:
        assert row.peak == pytest.approx(dry(LLAMA, row.recipe).peak, rel=0.001), row.names
        assert row.saves == answer.trial.peak - row.peak
        assert row.verdict == FITS
        assert row.need[1] <= answer.memory


def assert_rows_are_in_order(answer):
    """None disturbs less than the one before, and none is more than another that fits."""
    levels = {change.name: change.level for change in CHANGES}
    assert [row.level for row in answer.rows] == [max(levels[name] for name in row.names) for row in answer.rows]
    disturb = [(row.level, sum(levels[name] for name in row.names)) for row in answer.rows]
    assert disturb == sorted(disturb)
    names = [set(row.names) for row in answer.rows]
    assert not any(one < other for one in names for other in names)


def assert_no_change_is_spare(answer):
    for row in answer.rows:
        for left_out in row.names if len(row.names) > 1 else ():
            fields = {}
            for change in CHANGES:
                fields |= change.apply(RECIPE) if change.name in set(row.names) - {left_out} else {}
            least = needs(attempt(source_of(LLAMA), replace(RECIPE, **fields)).log, "cuda")
            assert verdict_of(least, answer.memory) != FITS, (row.names, left_out)


def test_a_row_is_what_a_dry_run_says_of_its_recipe_and_is_said(tight):
    assert_rows_are_true(tight, slice(None, None, 4))
    assert {row.level for row in tight.rows} == {0, 1}
    assert_rows_are_in_order(tight)
    assert "What would make it fit, the least intrusive first:" in str(tight)
    answer = json.loads(json.dumps(tight.json()))
    assert (answer["verdict"], answer["recipe"]) == (DOES_NOT, plain_recipe(RECIPE))
    assert [tuple(row["names"]) for row in answer["rows"]] == [row.names for row in tight.rows]


@pytest.mark.slow
def test_with_all_changes_on_a_smaller_card_too():
    answer = planned(0.6)
    assert any(len(row.names) > 1 for row in answer.rows)
    assert_rows_are_true(answer)
    assert_rows_are_in_order(answer)
    assert_no_change_is_spare(answer)


@pytest.mark.slow
def test_three_rows_that_fit_do_not_hide_one_that_disturbs_less_than_two_of_them(only):
    """By two changes each fit one that costs time, and two by another optimizer; AdamW's averages of 8 bits take a third."""
    some = {"keep only the loss", "micro-batch of 1", "optimizer on the host", "8-bit AdamW", "Adafactor", "SGD"}
    only(some)
    gentle = replace(RECIPE, keeps_outputs=False, batch=1, accumulation=RECIPE.batch, optimizer="adamw8bit")
    answer = plan(LLAMA, needs(Log.of(dry(LLAMA, gentle)), "cuda")[1], RECIPE, cards=())
    assert [row.level for row in answer.rows] == [0, 1, 2, 2]
    assert answer.rows[1].recipe == gentle
    assert_rows_are_true(answer)


@pytest.mark.slow
def test_two_rows_do_not_hide_three_changes_that_disturb_less_than_one_of_them(only):
    """Two changes that each alter the training are in the rows of two; of three only one does."""
    three = {"gradient checkpointing", "update within backward", "Adafactor"}
    some = {*three, "optimizer on the host", "all in bfloat16"}
    only(some)
    config = llama(1024, 12, vocabulary=16000)
    recipe = replace(RECIPE, precision="autocast", batch=2, sequence=512, keeps_outputs=False)
    gentle = replace(recipe, checkpointing=True, in_backward=True, optimizer="adafactor")
    answer = plan(config, needs(Log.of(dry(config, gentle)), "cuda")[1], recipe, cards=())
    grave = [{"optimizer on the host", "all in bfloat16"}, {"Adafactor", "all in bfloat16"}]
    names = [set(row.names) for row in answer.rows]
    assert names.index(grave[0]) < names.index(three) < names.index(grave[1])


@pytest.mark.slow
def test_a_row_has_its_number_with_and_without_seconds(only):
    only({"Adafactor", "SGD", "LoRA of rank 16", "QLoRA of rank 16"})
    card = int(0.8 * needs(Log.of(dry(LLAMA, RECIPE)), "cuda")[1])
    timed, plain = (plan(LLAMA, card, RECIPE, machine=one, cards=()) for one in (hardware.machine("RTX 4090"), None))
    assert len(plain.rows) == 4
    assert [row.names for row in timed.rows] == [row.names for row in plain.rows]
    seconds = [row.seconds for row in timed.rows]
    assert seconds != sorted(seconds)


def test_what_disturbs_less_and_is_tight_is_named(only):
    gentle = {"keep only the loss", "micro-batch of 1"}
    both = replace(RECIPE, keeps_outputs=False, batch=1, accumulation=RECIPE.batch)
    of_both = needs(Log.of(dry(LLAMA, both)), "cuda")
    only(gentle | {"LoRA of rank 16"})
    answer = plan(LLAMA, of_both[1] - 1, RECIPE, cards=())
    assert {row.level for row in answer.rows} == {3}
    assert (set(answer.nearest.names), answer.nearest.need, answer.nearest.verdict) == (gentle, of_both, TIGHT)
    assert f"Nearest: {' + '.join(answer.nearest.names)}. It needs " in str(answer)
    assert json.loads(json.dumps(answer.json()))["nearest"]["need"] == list(of_both)
    assert plan(LLAMA, of_both[1], RECIPE, cards=()).nearest is None


def test_where_nothing_fits_the_changes_that_lower_the_peak_most_are_not_said_to_make_it_fit(only):
    only({"keep only the loss", "SGD", "fused attention"})
    answer = plan(LLAMA, 2**20, RECIPE, cards=())
    assert {row.verdict for row in answer.rows} == {DOES_NOT}
    peaks = [row.peak for row in answer.rows]
    assert peaks == sorted(peaks)
    assert peaks[-1] < answer.trial.peak
    assert "Nothing was found that is sure to fit.\n\nAlone these lower the peak most:" in str(answer)
    assert "What would make it fit" not in str(answer)
    assert "--row" not in str(answer)
    only(())
    assert "Nothing was found that is sure to fit." in str(plan(LLAMA, 2**20, RECIPE, cards=()))


@pytest.mark.slow
def test_five_changes_go_together_where_no_fewer_of_them_are_enough(only):
    """A fused optimizer, which is allowed too, is not among them: what costs next to nothing is taken if it helps."""
    needed_ones = {"micro-batch of 1", "chunked loss", "gradient checkpointing", "Adafactor", "keep only the loss"}
    some = tuple(change for change in CHANGES if change.name in needed_ones)
    config, recipe = llama(1024, 12, vocabulary=64000), replace(RECIPE, precision="autocast", batch=8, sequence=4096)

    def needed(changes):
        fields = {name: value for change in changes for name, value in change.apply(recipe).items()}
        return needs(attempt(source_of(config), replace(recipe, **fields)).log, "cuda")[1]

    card = needed(some)
    assert all(needed(fewer) > card for fewer in combinations(some, len(some) - 1))
    only(needed_ones | {"fused optimizer"})
    answer = plan(config, card, recipe, cards=())
    assert [set(row.names) for row in answer.rows] == [needed_ones]
    assert "Not every combination was tried" in str(answer)


@pytest.mark.parametrize(
    ("base", "rungs"),
    [
        (RECIPE, {"4-bit AdamW", "GaLore of rank 128", "SGD"}),
        pytest.param(replace(RECIPE, optimizer="adamw", galore=1024), {"Adafactor", "SGD"}, marks=pytest.mark.slow),
    ],
    ids=["AdamW", "GaLore"],
)
def test_other_optimizers_are_rungs_which_keep_less_each(base, rungs, only):
    only(rungs)
    small = replace(base, batch=1, sequence=64)  # so that the update binds
    answer = plan(LLAMA, needs(Log.of(dry(LLAMA, small)), "cuda")[0] - 1, small, cards=())
    assert_rows_are_true(answer)
    assert {row.names[0] for row in answer.rows} == rungs
    assert all(row.recipe.galore in (0, 128) for row in answer.rows)


def test_what_helps_nothing_is_said_and_true(tight):
    assert tight.helpless
    change = next(change for change in CHANGES if change.name == tight.helpless[0])
    assert dry(LLAMA, replace(RECIPE, **change.apply(RECIPE))).peak >= 0.999 * tight.trial.peak


def test_a_row_that_fits_without_a_lower_peak_says_what_falls(only):
    only({"activations on the host"})
    recipe = replace(RECIPE, precision="bf16", batch=1, sequence=1024)  # so that the update binds
    on_card, moved = (attempt(source_of(LLAMA), replace(recipe, offload_activations=it)).log for it in (False, True))
    assert on_card.peak == moved.peak
    assert on_card.reserved > moved.reserved
    answer = plan(LLAMA, needs(on_card, "cuda")[1] - 1, recipe, cards=())
    assert ["reserves beyond the peak" in row.costs for row in answer.rows] == [True]
    assert not answer.helpless


def seconds_by_dtype(recipe, card):
    """Of the operators of a step, by what they are called too."""
    work, counts = memory.Workload(LLAMA, recipe), Counter()
    for one in memory.predict_seconds(work.build, work.step, card, like="cuda").operators:
        for name in (one.work.dtype, (one.name, one.work.dtype)):
            counts[name] += card.seconds(one.work)
    return counts


@pytest.mark.slow
def test_what_takes_longer_with_adapters_is_of_float32(only):
    card = hardware.machine("H100")
    only({"LoRA of rank 16", "QLoRA of rank 16"})
    one = replace(RECIPE, precision="bf16", batch=1)
    whole, adapters = (seconds_by_dtype(replace(one, lora=rank), card) for rank in (0, 16))
    assert adapters["float32"] > whole["float32"]
    assert adapters["bfloat16"] < whole["bfloat16"], "the gradients of the weights are saved"
    of_4_bits = seconds_by_dtype(replace(one, lora=16, quantized="nf4"), card)
    assert {dtype for name, dtype in filter(lambda it: "attention" in it[0], of_4_bits)} == {"float32"}
    recipe = replace(one, accumulation=16)
    room = int(0.99 * needs(attempt(source_of(LLAMA), recipe).log, "cuda")[1])
    rows = {row.names[0]: row for row in plan(LLAMA, room, recipe, machine=card, cards=()).rows}
    lora, quantized = rows["LoRA of rank 16"], rows["QLoRA of rank 16"]
    assert lora.seconds > 0
    assert "adapters take each layer's input and output in float32" in lora.costs
    assert "attention and the output layer multiply in float32" in quantized.costs
    card = hardware.machine("RTX 4090")  # slower products, so the gradients weigh more
    (lora, *_) = plan(LLAMA, room, recipe, machine=card, cards=()).rows
    assert lora.seconds < 0
    assert "float32" not in lora.costs


@pytest.mark.slow
def test_adapters_that_take_longer_beside_another_change_are_explained_too(only):
    card = hardware.machine("H100")
    only({"micro-batch of 1", "LoRA of rank 16"})
    recipe = replace(RECIPE, precision="bf16", batch=16)
    cut = replace(recipe, batch=1, accumulation=16)
    alone, both = (attempt(source_of(LLAMA), replace(cut, lora=rank), card) for rank in (0, 16))
    assert both.seconds > alone.seconds
    (row,) = plan(LLAMA, needs(both.log, "cuda")[1], recipe, machine=card, cards=()).rows
    assert row.names == ("micro-batch of 1", "LoRA of rank 16")
    assert "adapters take each layer's input and output in float32" in row.costs


@pytest.mark.slow
def test_a_change_for_which_the_card_has_no_rate_is_named(only):
    """A T4 has a rate for float32 and none for bfloat16."""
    only({"micro-batch of 1", "autocast"})
    config = llama(256, 2)
    card = int(0.85 * needs(Log.of(dry(config, RECIPE)), "cuda")[1])
    answer = plan(config, card, RECIPE, machine=hardware.machine("T4"), cards=())
    assert [row.names for row in answer.rows] == [("micro-batch of 1",)]
    assert answer.unrated == tuple(answer.json()["no rate"]) == ("autocast",)
    assert "no rate for their matrix products: autocast." in str(answer)
    assert not plan(config, card, RECIPE, machine=hardware.machine("L4"), cards=()).unrated


def test_the_batch_of_a_row_is_cut_and_the_update_stays_the_same(tight):
    cut = [row.recipe for row in tight.rows if "micro-batch of 1" in row.names]
    assert cut
    assert all(recipe.batch * recipe.accumulation == RECIPE.batch for recipe in cut)


def test_the_fewest_cards_are_enough_and_fewer_are_not(tight):
    def fits(cards):
        tried = attempt(source_of(LLAMA), replace(RECIPE, zero_stage=3, ranks=cards))
        return verdict_of(needs(tried.log, RECIPE.device), tight.memory) == FITS

    assert tight.largest["fewest cards by ZeRO-3"] == next(cards for cards in (2, 16) if fits(cards))


def test_where_no_number_of_cards_is_enough_it_is_said(only):
    only(())
    card = needs(Log.of(dry(LLAMA, replace(RECIPE, zero_stage=3, ranks=4))), "cuda")[1] - 1
    answer = plan(LLAMA, card, RECIPE, cards=(2, 4))
    assert answer.json()["largest"]["fewest cards by ZeRO-3"] is None
    assert "ZeRO-3 alone would not make it fit, on up to 4 cards." in str(answer)
    assert "ZeRO-3 alone" not in str(plan(LLAMA, card, RECIPE, cards=()))


@pytest.mark.slow
def test_where_zero_3_does_not_go_with_the_recipe_nothing_is_said_of_cards(only):
    only(())
    quantized = replace(RECIPE, lora=4, quantized="nf4", precision="bf16", checkpointing=True)
    need = needs(attempt(source_of(LLAMA), quantized).log, "cuda")
    answer = plan(LLAMA, need[0] - 1, quantized, cards=(2, 4))
    assert (answer.verdict, "fewest cards by ZeRO-3" in answer.largest) == (DOES_NOT, False)
    assert "ZeRO-3" not in str(answer)
    fields = "batch=4, sequence=2048, precision=bf16, optimizer=adamw-foreach"
    assert f"Settings: {fields}, checkpointing, lora=4, quantized=nf4." in str(answer)


def test_where_no_batch_fits_it_is_said(only):
    only(())
    answer = plan(LLAMA, MiB, RECIPE, cards=())
    assert answer.largest == {"largest batch": 0, "longest sequence": 0}
    assert "largest batch: none fits; longest sequence: none fits" in str(answer)


def test_a_card_on_which_it_fits_by_the_label_alone_is_named(monkeypatch):
    low, high = needs(Log.of(dry(LLAMA, RECIPE)), "cuda")
    assert (verdict_of((low, high), 0.92 * high), verdict_of((low, high), 0.92 * low)) == (TIGHT, DOES_NOT)
    sizes = {"by the label": high, "tight by the label": low, "in any case": int(high / 0.92) + 1}
    cards = {name: replace(hardware.machine("H100"), name=name, memory=size) for name, size in sizes.items()}
    cards |= {"without": replace(cards["tight by the label"], name="without", flops={"float16": 1e12})}
    monkeypatch.setattr(verdict, "MACHINES", cards)
    answer = str(plan(LLAMA, 1000 * GiB, RECIPE))
    tight = "tight by the label, without (no float32)"
    assert f"Cards on which it fits: by the label and 1 with more memory; tight: {tight}." in answer
    assert f"With 8 % less: tight on by the label; does not fit on {tight}." in answer


def test_the_fewest_cards_are_those_found_one_after_the_other(only):
    only(())
    source, recipe, cards = source_of(llama(256, 1)), replace(RECIPE, batch=1, sequence=256), (2, 4, 8, 16)
    logs = {count: attempt(source, replace(recipe, zero_stage=3, ranks=count)).log for count in cards}
    most_needed = {count: needs(log, recipe.device)[1] for count, log in logs.items()}
    assert len(set(most_needed.values())) == len(cards)
    for size in (most_needed[8], most_needed[16] - 1):
        fewest = plan(source, size, recipe, cards=cards).largest["fewest cards by ZeRO-3"]
        assert fewest == next((count for count in cards if most_needed[count] <= size), None)


def test_the_largest_batch_fits_and_one_more_does_not(tight):
    batch, longest = tight.largest["largest batch"], tight.largest["longest sequence"]

    def fits(**sizes):
        return verdict_of(needs(Log.of(dry(LLAMA, replace(RECIPE, **sizes))), RECIPE.device), tight.memory) == FITS

    assert batch < RECIPE.batch
    assert fits(batch=batch)
    assert not fits(batch=batch + 1)
    assert fits(sequence=longest)
    assert not fits(sequence=longest + 1)


@pytest.mark.parametrize("largest", [0, 1, 7, 100, 999, 1000])
@pytest.mark.parametrize("start", [1, 8, 700])
def test_the_most_that_fits_is_found_from_anywhere(largest, start):
    assert most(lambda n: n <= largest, start, 1000) == (largest or None)


@pytest.mark.parametrize("start", [700, 900, 1024, 1040, 2048, 5000])
def test_the_most_that_fits_is_one_number_where_not_all_that_is_smaller_fits(start):
    def fits(number):
        return number <= 1100 and not 850 < number < 1000

    assert most(fits, start, 10_000) == 1100
    assert most(lambda number: number == 900, 900, 10_000) == 900, "what was asked for is known to fit"


@pytest.mark.slow
def test_a_function_has_the_positions_of_the_model_that_it_makes(only):
    only(())
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 48}
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 100}
    small = models.configuration("llama-7b", **heads, **sizes)
    recipe, before = Recipe(batch=1, sequence=32), torch.get_rng_state()
    answer = plan(lambda: models.from_configuration(small), 2**23, recipe)
    assert torch.equal(torch.get_rng_state(), before)
    assert answer.largest["longest sequence"] == 48
    with pytest.raises(CourseError, match="49 tokens is longer than the model's 48 positions"):
        plan(lambda: models.from_configuration(small), 2**23, replace(recipe, sequence=49))


def test_a_module_and_a_cpu_are_planned_for_too():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])

        def forward(self, x):
            return self.layers(x).square().mean()

    answer = plan(Own, 100 * MiB, Recipe(batch=16), batch=lambda b, s: torch.ones(b, 64))
    assert answer.verdict == FITS
    assert "reserves" not in str(answer)
    assert "Cards" not in str(answer)
    with pytest.raises(CourseError, match="holds nothing"):
        plan(Own, 0)


# Why, and what ran out


def test_why_memory_did_not_fall_names_the_instant_that_binds():
    small = Recipe("adamw-foreach", batch=1, sequence=32, device="cuda")
    text = why(estimate(LLAMA, small), estimate(LLAMA, replace(small, checkpointing=True)))
    assert "The peak did not fall, because it is in update" in text
    large = replace(small, batch=32, sequence=512)
    text = why(estimate(LLAMA, large), estimate(LLAMA, replace(large, checkpointing=True)))
    assert "did not fall" not in text
    assert "activations:" in text


MESSAGE = """Traceback (most recent call last):
  File "train.py", line 12, in <module>
    loss = model(**batch).loss
  File "lib/transformers/loss/loss_utils.py", line 36, in ForCausalLMLoss
    loss = fixed_cross_entropy(logits, labels)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked:.2f} MiB. GPU 0 has a total capacity of 1.00 GiB \
of which 4.10 MiB is free. Of the allocated memory 700.00 MiB is allocated by PyTorch, \
and 200.00 MiB is reserved by PyTorch but unallocated.
"""


def test_an_error_message_is_found_in_the_step(tmp_path):
    predicted = estimate(LLAMA, RECIPE)
    logits = 4 * 2048 * 8000 * 4
    (tmp_path / "oom.txt").write_text(MESSAGE.format(asked=logits / MiB))
    text = explain(tmp_path / "oom.txt", predicted)
    assert "It happened in the loss" in text
    assert "A tensor of that size is allocated in forward" in text
    assert "expandable_segments" in text
    assert f"peak is in {predicted.peak_instant.name}" in text


def test_a_snapshot_is_summed_by_the_line_that_asked(tmp_path):
    frames = [
        {"filename": "x/torch/nn.py", "line": 1, "name": "f"},
        {"filename": "me.py", "line": 7, "name": "forward"},
    ]
    block = {"state": "active_allocated", "size": 300, "frames": frames}
    blocks = [block, {**block, "size": 100}, {"state": "inactive", "size": 600}]
    snapshot = {"segments": [{"total_size": 1000, "blocks": blocks}]}
    (tmp_path / "snapshot.pickle").write_bytes(pickle.dumps(snapshot))
    text = explain(tmp_path / "snapshot.pickle")
    assert "allocated 400 B, reserved 1000 B" in text
    assert "400 B  me.py:7 forward" in text


class Harmful:
    def __reduce__(self):
        return print, ("it ran",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"all is well", "holds no CUDA out-of-memory message"),
        (pickle.dumps(Harmful()), "asks for builtins.print"),
        (pickle.dumps([1]), "is no memory snapshot"),
    ],
)
def test_a_file_that_says_nothing_is_a_sentence_and_runs_nothing(content, message, tmp_path, capsys):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(CourseError, match=message):
        explain(tmp_path / "file")
    assert capsys.readouterr().out == ""
    with pytest.raises(CourseError, match="There is no file"):
        explain(tmp_path / "another")


# The settings of libraries


def test_accelerate_reads_its_settings(tmp_path):
    from accelerate.commands.config.config_args import load_config_from_file

    for recipe in (RECIPE, replace(RECIPE, precision="autocast"), replace(RECIPE, zero_stage=3, ranks=4, offload=True)):
        (tmp_path / "config.yaml").write_text(emit("accelerate", "llama", recipe))
        config = load_config_from_file(str(tmp_path / "config.yaml"))
        assert config.num_processes == recipe.ranks
        assert str(config.mixed_precision) == ("bf16" if recipe.precision == "autocast" else "no")
        if recipe.zero_stage:
            assert config.fsdp_config["fsdp_version"] == 2
            assert config.fsdp_config["fsdp_offload_params"] is True


def test_trl_reads_its_settings(tmp_path):
    trl = pytest.importorskip("trl")
    adapters = Recipe("adamw8bit", lora=8, quantized="nf4", checkpointing=True, accumulation=4, device="cuda")
    for recipe in (RECIPE, adapters):
        (tmp_path / "config.yaml").write_text(emit("trl", "gpt2", recipe).replace("bf16: true", "bf16: false"))
        parser = trl.TrlParser((trl.SFTConfig, trl.ModelConfig))
        training, model = parser.parse_args_and_config(["--config", str(tmp_path / "config.yaml"), "--use_cpu", "true"])
        assert training.per_device_train_batch_size == recipe.batch
        assert training.gradient_accumulation_steps == recipe.accumulation
        assert training.max_length == recipe.sequence
        assert training.gradient_checkpointing == recipe.checkpointing
        assert (model.use_peft, model.load_in_4bit) == (bool(recipe.lora), bool(recipe.quantized))
        assert model.model_name_or_path == "gpt2"


def test_the_trainers_galore_narrows_the_linear_layers_of_the_blocks(tmp_path):
    trl = pytest.importorskip("trl")
    from transformers.trainer_optimizer import _parse_optim_args
    from transformers.trainer_utils import check_target_module_exists

    (tmp_path / "config.yaml").write_text(emit("trl", "llama", Recipe("adamw", galore=64)))
    parser = trl.TrlParser((trl.SFTConfig, trl.ModelConfig))
    arguments, _ = parser.parse_args_and_config(["--config", str(tmp_path / "config.yaml"), "--use_cpu", "true"])
    assert arguments.optim == "galore_adamw"
    assert _parse_optim_args(arguments.optim_args) == {"rank": "64", "update_proj_gap": "200", "scale": "0.25"}
    model = models.from_configuration(llama(64, 2))
    hidden = set(hidden_matrices(model)[0])
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            assert check_target_module_exists(arguments.optim_target_modules, name) == (module.weight in hidden), name


@pytest.mark.parametrize(
    "changes", [{"optimizer": "adamw4bit"}, {"optimizer": "adamw", "galore": 8}, {"optimizer": "adamw8bit"}]
)
def test_a_package_that_the_trainer_lacks_for_an_optimizer_is_named(changes, tmp_path):
    from transformers import Trainer, TrainingArguments

    text = emit("trl", "gpt2", replace(RECIPE, **changes))
    named = re.search(r"^# This optimizer needs one more package: pip install (\w+)$", text, re.MULTILINE)
    options = {"optim": yaml.safe_load(text)["optim"]}
    if named is None:
        Trainer.get_optimizer_cls_and_kwargs(TrainingArguments(str(tmp_path), use_cpu=True, **options))
    elif find_spec(named[1]) is None:
        with pytest.raises(ImportError, match=named[1]):
            Trainer.get_optimizer_cls_and_kwargs(
                TrainingArguments(str(tmp_path), use_cpu=True, optim_target_modules="all-linear", **options),
                nn.Linear(1, 1),
            )
    assert bool(named) is (changes["optimizer"] != "adamw8bit")


def test_where_trl_trains_otherwise_than_planned_its_file_says_so_and_it_is_true(tmp_path):
    """One step of TRL's own trainer: no tensor as large as the logits, and an embedding's averages in 32 bits."""
    trl = pytest.importorskip("trl", minversion="1.16")  # the version that the file names
    pytest.importorskip("bitsandbytes")
    words, tokens = 50_000, 64
    model = models.from_configuration(llama(16, 1, words))
    texts = Dataset.from_dict({"input_ids": [list(range(tokens))] * 2})
    options = {"use_cpu": True, "bf16": False, "report_to": "none", "max_steps": 1, "per_device_train_batch_size": 1}
    arguments = trl.SFTConfig(str(tmp_path), optim="adamw_bnb_8bit", max_length=tokens, save_strategy="no", **options)
    tokenizer = data.tokenizer_for(data.load_functions(), 500)
    trainer = trl.SFTTrainer(model, arguments, train_dataset=texts, processing_class=tokenizer)
    with Largest() as seen:
        trainer.train()
    assert 16 * words <= seen.numbers < (tokens - 1) * words, "the embedding's gradient is, and the logits are not"
    averages = {
        name: trainer.optimizer.state[p]["state1"].dtype for name, p in model.named_parameters() if p.numel() >= 4096
    }
    assert averages.pop("model.embed_tokens.weight") == torch.float32
    assert set(averages.values()) == {torch.uint8}

    recipe = replace(RECIPE, optimizer="adamw8bit")
    assert "never holds all logits: the plan counts them" in emit("trl", "gpt2", recipe)
    assert "other pieces than the plan's" in emit("trl", "gpt2", replace(recipe, chunked_loss=512))
    assert "averages of an embedding in 32 bits" in emit("trl", "gpt2", recipe)
    assert "averages of an embedding" not in emit("trl", "gpt2", replace(recipe, lora=8)), "it is not trained"


class Largest(TorchDispatchMode):
    """The numbers of the largest tensor that an operator returned."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        sizes = [each.numel() for each in tree_leaves(output) if isinstance(each, torch.Tensor)]
        self.numbers = max([self.numbers, *sizes])
        return output


@pytest.mark.parametrize("kind", ["accelerate", "trl"])
def test_a_teacher_is_a_remark_and_so_is_galore_where_the_optimizer_is_made_elsewhere(kind):
    text = emit(kind, "gpt2", Recipe("adamw", teacher="gpt2-medium", galore=64))
    assert "# No setting: the loss beside the teacher gpt2-medium is techniques.distillation_loss" in text
    assert ("# No setting: GaLore of rank 64 is optim.GaLore" in text) == (kind != "trl")


def test_what_a_library_has_no_setting_for_is_refused():
    with pytest.raises(CourseError, match="choose one of accelerate, trl, train, torchrun, slurm"):
        emit("abacus", "gpt2", RECIPE)
    with pytest.raises(CourseError, match="has no name for 'momentum'"):
        emit("trl", "gpt2", replace(RECIPE, optimizer="momentum"))
    with pytest.raises(CourseError, match="for 2 nodes choose torchrun or slurm"):
        emit("accelerate", "gpt2", replace(RECIPE, ranks=2), nodes=2)


# The worst batch


@pytest.mark.parametrize("kind", ["txt", "jsonl", "folder"])
def test_lengths_come_from_what_people_have(kind, tmp_path):
    if kind == "txt":
        path = tmp_path / "lengths.txt"
        path.write_text("3\n17\n5\n")
    elif kind == "jsonl":
        path = tmp_path / "data.jsonl"
        path.write_text('{"input_ids": [1, 2, 3]}\n{"length": 17}\n\n{"length": 5}\n')
    else:
        from datasets import Dataset

        path = tmp_path / "saved"
        Dataset.from_dict({"input_ids": [[1] * n for n in (3, 17, 5)]}).save_to_disk(path)
    assert sorted(lengths_of(path)) == [3, 5, 17]


def test_the_guard_runs_the_largest_batch_first():
    batches, seen = [{"x": torch.ones(2, n)} for n in (3, 9, 5)], []
    assert memory.guard(lambda batch: seen.append(batch["x"].shape[1]), batches) is batches[1]
    assert seen == [9]

    def run_out(batch):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.")

    with pytest.raises(CourseError, match="largest batch, of 18 elements, does not fit .*Tried to allocate 1 GiB"):
        memory.guard(run_out, batches)


def test_a_check_sets_each_term_beside_its_measured_bytes():
    predicted = estimate(llama(256, 2), Recipe("sgd", batch=2, sequence=64))
    table = memory.check(predicted)
    assert isinstance(table, pd.DataFrame)
    assert (table["differs"] == "").all()
    assert table.loc["peak", "measured"] == pytest.approx(predicted.peak, rel=0.005)

    def forgetful(model, optimizer, batches, leaked=[]):  # noqa: B006 what it forgets to let go of is the fault that is looked for
        leaked.append(model(**batches[0]).loss)
        leaked[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
        leaked.append(torch.ones(10 * MiB))

    table = memory.check(predicted, step=forgetful)
    assert "MiB" in table.loc["peak", "differs"]


def test_a_plan_shows_its_verdict_at_once_and_each_row_as_it_is_found(only):
    """What is shown on the way is what the answer then says."""
    only({"micro-batch of 1"})
    shown = []
    needed = needs(Log.of(dry(LLAMA, RECIPE)), RECIPE.device)[1]
    answer = plan(LLAMA, int(0.9 * needed), RECIPE, cards=(), show=shown.append)
    first, rows = shown[0], shown[1:]
    assert (first.verdict, first.need, first.rows, first.largest) == (answer.verdict, answer.need, (), {})
    assert str(first).splitlines()[:2] == str(answer).splitlines()[:2]
    fitting = [row for row in answer.rows if row.verdict == FITS]
    assert fitting
    assert all(row in rows for row in fitting)
