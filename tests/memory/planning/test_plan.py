"""Whether a step fits, what makes it fit, and how large it may be, compared with dry runs of the recipes in the answer."""

import json
from collections import Counter
from dataclasses import replace
from itertools import combinations
from unittest.mock import Mock

import pytest
import torch
from llamas import LLAMA, RECIPE, dry, llama, need_of
from torch import nn

from course_utils import hardware, memory, models
from course_utils.errors import CourseError
from course_utils.memory import Recipe, plan
from course_utils.memory.formulas.trial import run_step, try_recipe
from course_utils.memory.planning import search
from course_utils.memory.planning.changes import CHANGES, apply_all
from course_utils.memory.planning.need import DOES_NOT_FIT, FITS, TIGHT, Need, fits
from course_utils.memory.step.model import source_of
from course_utils.memory.step.recipe import plain_recipe
from course_utils.units import GiB, MiB

ALMOST = 0.81  # of what is need_of: it fits with milder changes


def plan_for(share):
    """The plan for a card with this share of the bytes that are needed."""
    return plan(LLAMA, int(share * need_of().high), RECIPE, machine=hardware.machine("RTX 4090"), cards=(2, 16))


@pytest.fixture
def only(monkeypatch):
    """A function that leaves only the changes of these names."""
    return lambda names: monkeypatch.setattr(search, "CHANGES", tuple(c for c in CHANGES if c.name in names))


@pytest.fixture(scope="module")
def tight():
    """A few of the milder changes; the others, and combinations, are in a slow test."""
    some = {"fused optimizer", "micro-batch of 1", "optimizer on the host", "8-bit AdamW"}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(search, "CHANGES", tuple(change for change in CHANGES if change.name in some))
        return plan_for(ALMOST)


@pytest.mark.slow
def test_the_largest_batch_of_many_micro_batches_fits_and_one_more_does_not():
    config, recipe = llama(256, 1), replace(RECIPE, batch=2, sequence=512, accumulation=3)
    enough = [Need.from_log(run_step(source_of(config), replace(recipe, batch=b)).log, "cuda").high for b in (6, 7)]
    answer = plan(config, sum(enough) // 2, recipe, cards=())
    assert answer.largest["largest batch"] == 6


def assert_rows_are_true(answer, rows=slice(None)):
    """Each row's figures are those of a dry run of its recipe."""
    assert answer.verdict == DOES_NOT_FIT
    assert answer.rows[rows]
    for row in answer.rows[rows]:
        assert row.peak == pytest.approx(dry(LLAMA, row.recipe).peak, rel=0.001), row.names
        assert row.saves == answer.trial.peak - row.peak, row.names
        assert row.verdict == FITS, row.names
        assert row.need.high <= answer.memory, row.names


def assert_rows_are_in_order(answer):
    """No row disturbs less than the one before, and none includes the changes of another that fits."""
    levels = {change.name: change.level for change in CHANGES}
    assert [row.level for row in answer.rows] == [max(levels[name] for name in row.names) for row in answer.rows]
    disturb = [(row.level, sum(levels[name] for name in row.names)) for row in answer.rows]
    assert disturb == sorted(disturb)
    names = [set(row.names) for row in answer.rows]
    assert not any(fewer < other for fewer in names for other in names)


def assert_no_change_is_spare(answer):
    for row in answer.rows:
        for left_out in row.names if len(row.names) > 1 else ():
            fewer = [change for change in CHANGES if change.name in set(row.names) - {left_out}]
            tried = try_recipe(source_of(LLAMA), apply_all(RECIPE, fewer))
            assert not fits(tried.log, "cuda", answer.memory), (row.names, left_out)


def test_each_row_equals_a_dry_run_of_its_recipe(tight):
    assert_rows_are_true(tight, slice(None, None, 4))
    assert {row.level for row in tight.rows} == {0, 1}
    assert_rows_are_in_order(tight)
    assert "What would make it fit, the least intrusive first:" in str(tight)
    answer = json.loads(json.dumps(tight.json()))
    assert (answer["verdict"], answer["recipe"]) == (DOES_NOT_FIT, plain_recipe(RECIPE))
    assert [tuple(row["names"]) for row in answer["rows"]] == [row.names for row in tight.rows]


@pytest.mark.slow
def test_with_all_changes_on_a_smaller_card_too():
    answer = plan_for(0.6)
    assert any(len(row.names) > 1 for row in answer.rows)
    assert_rows_are_true(answer)
    assert_rows_are_in_order(answer)
    assert_no_change_is_spare(answer)


@pytest.mark.slow
def test_three_rows_do_not_hide_one_that_disturbs_less_than_two_of_them(only):
    """With two changes, one row that costs time fits, and two with another optimizer; 8-bit AdamW needs a third change."""
    some = {"keep only the loss", "micro-batch of 1", "optimizer on the host", "8-bit AdamW", "Adafactor", "SGD"}
    only(some)
    gentle = replace(RECIPE, keeps_outputs=False, batch=1, accumulation=RECIPE.batch, optimizer="adamw8bit")
    answer = plan(LLAMA, need_of(gentle).high, RECIPE, cards=())
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
    answer = plan(config, need_of(gentle, config).high, recipe, cards=())
    grave = [{"optimizer on the host", "all in bfloat16"}, {"Adafactor", "all in bfloat16"}]
    names = [set(row.names) for row in answer.rows]
    assert names.index(grave[0]) < names.index(three) < names.index(grave[1])


@pytest.mark.slow
def test_a_row_has_its_number_with_and_without_seconds(only):
    only({"Adafactor", "SGD", "LoRA of rank 16", "QLoRA of rank 16"})
    card = int(0.8 * need_of().high)
    timed = plan(LLAMA, card, RECIPE, machine=hardware.machine("RTX 4090"), cards=())
    plain = plan(LLAMA, card, RECIPE, cards=())
    assert len(plain.rows) == 4
    assert [row.names for row in timed.rows] == [row.names for row in plain.rows]
    seconds = [row.seconds for row in timed.rows]
    assert seconds != sorted(seconds)


def test_what_disturbs_less_and_is_tight_is_named(only):
    gentle = {"keep only the loss", "micro-batch of 1"}
    need = need_of(replace(RECIPE, keeps_outputs=False, batch=1, accumulation=RECIPE.batch))
    only(gentle | {"LoRA of rank 16"})
    answer = plan(LLAMA, need.high - 1, RECIPE, cards=())
    assert {row.level for row in answer.rows} == {3}
    assert (set(answer.nearest.names), answer.nearest.need, answer.nearest.verdict) == (gentle, need, TIGHT)
    assert f"Nearest: {' + '.join(answer.nearest.names)}. It needs " in str(answer)
    assert json.loads(json.dumps(answer.json()))["nearest"]["need"] == list(need)
    assert plan(LLAMA, need.high, RECIPE, cards=()).nearest is None


def test_where_nothing_fits_rows_are_those_that_lower_the_peak_most(only):
    only({"keep only the loss", "SGD", "fused attention"})
    answer = plan(LLAMA, 2**20, RECIPE, cards=())
    assert {row.verdict for row in answer.rows} == {DOES_NOT_FIT}
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

    def most_with(changes):
        return Need.from_log(try_recipe(source_of(config), apply_all(recipe, changes)).log, "cuda").high

    card = most_with(some)
    assert all(most_with(fewer) > card for fewer in combinations(some, len(some) - 1))
    only(needed_ones | {"fused optimizer"})
    answer = plan(config, card, recipe, cards=())
    assert [set(row.names) for row in answer.rows] == [needed_ones]
    assert "Not every combination was tried" in str(answer)


@pytest.mark.parametrize(
    ("base", "names"),
    [
        (RECIPE, {"4-bit AdamW", "GaLore of rank 128", "SGD"}),
        pytest.param(replace(RECIPE, optimizer="adamw", galore=1024), {"Adafactor", "SGD"}, marks=pytest.mark.slow),
    ],
    ids=["AdamW", "GaLore"],
)
def test_other_optimizers_are_changes_which_keep_less_each(base, names, only):
    only(names)
    small = replace(base, batch=1, sequence=64)  # so that the update binds
    answer = plan(LLAMA, need_of(small).low - 1, small, cards=())
    assert_rows_are_true(answer)
    assert {row.names[0] for row in answer.rows} == names
    assert all(row.recipe.galore in (0, 128) for row in answer.rows)


def test_useless_changes_are_listed(tight):
    assert tight.useless
    change = next(change for change in CHANGES if change.name == tight.useless[0])
    assert dry(LLAMA, replace(RECIPE, **change.apply(RECIPE))).peak >= 0.999 * tight.trial.peak


def test_a_row_that_fits_without_a_lower_peak_says_what_falls(only):
    only({"activations on the host"})
    recipe = replace(RECIPE, precision="bf16", batch=1, sequence=1024)  # so that the update binds
    on_card = try_recipe(source_of(LLAMA), recipe).log
    on_host = try_recipe(source_of(LLAMA), replace(recipe, offload_activations=True)).log
    assert on_card.peak == on_host.peak
    assert on_card.reserved > on_host.reserved
    answer = plan(LLAMA, Need.from_log(on_card, "cuda").high - 1, recipe, cards=())
    assert ["reserves beyond the peak" in row.costs for row in answer.rows] == [True]
    assert not answer.useless


def seconds_by_dtype(recipe, card):
    """The seconds of a step's operators by dtype, and by name and dtype."""
    workload, counts = memory.Workload(LLAMA, recipe), Counter()
    for operator in memory.predict_seconds(workload.build, workload.step, card, device="cuda").operators:
        for name in (operator.work.dtype, (operator.name, operator.work.dtype)):
            counts[name] += card.seconds(operator.work)
    return counts


@pytest.mark.slow
def test_what_takes_longer_with_adapters_is_of_float32(only):
    card = hardware.machine("H100")
    only({"LoRA of rank 16", "QLoRA of rank 16"})
    single = replace(RECIPE, precision="bf16", batch=1)
    without, adapters = (seconds_by_dtype(replace(single, lora=rank), card) for rank in (0, 16))
    assert adapters["float32"] > without["float32"]
    assert adapters["bfloat16"] < without["bfloat16"], "the gradients of the weights are saved"
    of_4_bits = seconds_by_dtype(replace(single, lora=16, quantized="nf4"), card)
    assert {dtype for name, dtype in filter(lambda it: "attention" in it[0], of_4_bits)} == {"float32"}
    recipe = replace(single, accumulation=16)
    room = int(0.99 * Need.from_log(try_recipe(source_of(LLAMA), recipe).log, "cuda").high)
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
    without, adapters = (try_recipe(source_of(LLAMA), replace(cut, lora=rank), card) for rank in (0, 16))
    assert adapters.seconds > without.seconds
    (row,) = plan(LLAMA, Need.from_log(adapters.log, "cuda").high, recipe, machine=card, cards=()).rows
    assert row.names == ("micro-batch of 1", "LoRA of rank 16")
    assert "adapters take each layer's input and output in float32" in row.costs


@pytest.mark.slow
def test_a_change_for_which_the_card_has_no_rate_is_named(only):
    """A T4 has a rate for float32 and none for bfloat16."""
    only({"micro-batch of 1", "autocast"})
    config = llama(256, 2)
    card = int(0.85 * need_of(config=config).high)
    answer = plan(config, card, RECIPE, machine=hardware.machine("T4"), cards=())
    assert [row.names for row in answer.rows] == [("micro-batch of 1",)]
    assert answer.unrated == tuple(answer.json()["no rate"]) == ("autocast",)
    assert "no rate for their matrix products: autocast." in str(answer)
    assert not plan(config, card, RECIPE, machine=hardware.machine("L4"), cards=()).unrated


def test_the_batch_of_a_row_is_cut_and_the_update_stays_the_same(tight):
    cut = [row.recipe for row in tight.rows if "micro-batch of 1" in row.names]
    assert cut
    assert all(recipe.batch * recipe.accumulation == RECIPE.batch for recipe in cut)


def test_where_no_number_of_cards_is_enough_it_is_said(only):
    only(())
    card = need_of(replace(RECIPE, zero_stage=3, ranks=4)).high - 1
    answer = plan(LLAMA, card, RECIPE, cards=(2, 4))
    assert answer.json()["largest"]["fewest cards by ZeRO-3"] is None
    assert "ZeRO-3 alone would not make it fit, on up to 4 cards." in str(answer)
    assert "ZeRO-3 alone" not in str(plan(LLAMA, card, RECIPE, cards=()))


@pytest.mark.slow
def test_where_zero_3_does_not_go_with_the_recipe_nothing_is_said_of_cards(only):
    only(())
    quantized = replace(RECIPE, lora=4, quantized="nf4", precision="bf16", checkpointing=True)
    need = Need.from_log(try_recipe(source_of(LLAMA), quantized).log, "cuda")
    answer = plan(LLAMA, need.low - 1, quantized, cards=(2, 4))
    assert (answer.verdict, "fewest cards by ZeRO-3" in answer.largest) == (DOES_NOT_FIT, False)
    assert "ZeRO-3" not in str(answer)
    fields = "batch=4, sequence=2048, precision=bf16, optimizer=adamw-foreach"
    assert f"Settings: {fields}, checkpointing, lora=4, quantized=nf4." in str(answer)


def test_where_no_batch_fits_it_is_said(only):
    only(())
    answer = plan(LLAMA, MiB, RECIPE, cards=())
    assert answer.largest == {"largest batch": 0, "longest sequence": 0}
    assert "largest batch: none fits; longest sequence: none fits" in str(answer)


def test_a_card_on_which_it_fits_by_the_label_alone_is_named(monkeypatch):
    low, high = need_of()
    assert (need_of().verdict(0.92 * high), need_of().verdict(0.92 * low)) == (TIGHT, DOES_NOT_FIT)
    sizes = {"by the label": high, "tight by the label": low, "in any case": int(high / 0.92) + 1}
    cards = {name: replace(hardware.machine("H100"), name=name, memory=size) for name, size in sizes.items()}
    cards |= {"without": replace(cards["tight by the label"], name="without", flop_rates={"float16": 1e12})}
    monkeypatch.setattr("course_utils.memory.planning.need.MACHINES", cards)
    answer = str(plan(LLAMA, 1000 * GiB, RECIPE))
    tight = "tight by the label, without (no float32)"
    assert f"Cards on which it fits: by the label and 1 with more memory; tight: {tight}." in answer
    assert f"With 8 % less: tight on by the label; does not fit on {tight}." in answer


def test_the_fewest_cards_are_those_found_one_after_the_other(only):
    only(())
    source, recipe, cards = source_of(llama(256, 1)), replace(RECIPE, batch=1, sequence=256), (2, 4, 8, 16)
    logs = {count: try_recipe(source, replace(recipe, zero_stage=3, ranks=count)).log for count in cards}
    most_needed = {count: Need.from_log(log, recipe.device).high for count, log in logs.items()}
    assert len(set(most_needed.values())) == len(cards)
    for size in (most_needed[8], most_needed[16] - 1):
        fewest = plan(source, size, recipe, cards=cards).largest["fewest cards by ZeRO-3"]
        assert fewest == next((count for count in cards if most_needed[count] <= size), None)


def test_the_largest_batch_fits_and_one_more_does_not(tight):
    batch, longest = tight.largest["largest batch"], tight.largest["longest sequence"]

    def most_of(**sizes):
        return need_of(replace(RECIPE, **sizes)).high

    assert batch < RECIPE.batch
    assert most_of(batch=batch) <= tight.memory < most_of(batch=batch + 1)
    assert most_of(sequence=longest) <= tight.memory < most_of(sequence=longest + 1)


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
    class OwnModel(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])

        def forward(self, x):
            return self.layers(x).square().mean()

    answer = plan(OwnModel, 100 * MiB, Recipe(batch=16), batch=lambda b, s: torch.ones(b, 64))
    assert answer.verdict == FITS
    assert "reserves" not in str(answer)
    assert "Cards" not in str(answer)
    with pytest.raises(CourseError, match="holds nothing"):
        plan(OwnModel, 0)


def test_a_plan_shows_its_verdict_at_once_and_each_row_as_it_is_found(only):
    """The messages on the way agree with the answer."""
    only({"micro-batch of 1"})
    progress = Mock()
    answer = plan(LLAMA, int(0.9 * need_of().high), RECIPE, cards=(), progress=progress)
    (first,) = progress.show_verdict.call_args.args
    rows = [call.args[0] for call in progress.show_row.call_args_list]
    assert (first.verdict, first.need, first.rows, first.largest) == (answer.verdict, answer.need, (), {})
    assert str(first).splitlines()[:2] == str(answer).splitlines()[:2]
    fitting = [row for row in answer.rows if row.verdict == FITS]
    assert fitting
    assert all(row in rows for row in fitting)
