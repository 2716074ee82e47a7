"""Estimates of the loops `trainer` and `trl`, compared with the allocator's record of Trainer and SFTTrainer."""

import gc
from dataclasses import replace
from itertools import accumulate

import peft
import pytest
import torch
from small_models import GPT2, LLAMA
from torch.profiler import ProfilerActivity, profile, record_function
from transformers import AutoModelForCausalLM, Trainer, TrainerCallback
from transformers import TrainingArguments as Arguments

from course_utils.memory import Recipe, estimate
from course_utils.memory.step.recipe import LOOPS
from course_utils.memory.trace.allocator import quiet

TRAINERS = Recipe(**LOOPS["trainer"], batch=4)


class _Marks(TrainerCallback):
    """A callback that marks each update as a range in the profiler's record."""

    def on_step_begin(self, args, state, control, **others):
        self.range = record_function(f"step {state.global_step}")
        self.range.__enter__()

    def on_step_end(self, args, state, control, **others):
        self.range.__exit__(None, None, None)


def _examples(recipe: Recipe, count: int) -> list[dict]:
    return [dict.fromkeys(("input_ids", "labels"), torch.randint(1, 5000, (recipe.sequence,))) for _ in range(count)]


def _arguments(recipe: Recipe, folder, kind: type = Arguments, **others):
    return kind(
        str(folder),
        use_cpu=True,
        max_steps=3,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        logging_strategy="no",
        dataloader_pin_memory=False,
        per_device_train_batch_size=recipe.batch,
        gradient_accumulation_steps=recipe.accumulation,
        label_smoothing_factor=recipe.label_smoothing,
        eval_strategy="steps" if recipe.eval_batch else "no",
        eval_steps=1,
        per_device_eval_batch_size=recipe.eval_batch or 8,
        **others,
    )


def _peaks(make) -> tuple[int, int]:
    """The allocator's peaks of a trainer by `make()`: in the second update, and between it and the third."""
    gc.collect()
    profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with quiet():
        profiler.start()
    make().train()
    with quiet():
        profiler.stop()
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    changes = [event for event in events if event.name() == "[memory]"]
    times, totals = [change.start_ns() for change in changes], list(accumulate(change.nbytes() for change in changes))
    second, third = (next(event for event in events if event.name() == f"step {n}") for n in (1, 2))
    end = second.start_ns() + second.duration_ns()
    update = max(total for t, total in zip(times, totals, strict=True) if second.start_ns() <= t <= end)
    return update, max(total for t, total in zip(times, totals, strict=True) if end <= t <= third.start_ns())


def _compare(config, recipe: Recipe, make) -> None:
    """In an evaluation the loader holds a few batches more than in a step."""
    update, evaluation = _peaks(make)
    peaks = {name: sum(by_kind.values()) for name, by_kind in estimate(config, recipe).by_instant().items()}
    if recipe.eval_batch:
        assert peaks.pop("evaluation") == pytest.approx(evaluation, rel=1e-3)
    assert max(peaks.values()) == pytest.approx(update, rel=2.5e-4)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("config", [LLAMA, GPT2], ids=lambda config: config.model_type)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"checkpointing": True},
        {"accumulation": 2},
        {"precision": "autocast"},
        {"label_smoothing": 0.1},
        {"label_smoothing": 0.1, "precision": "autocast"},
        {"eval_batch": 16},
        {"eval_batch": 4, "eval_logits": 32},
        {"eval_batch": 4, "eval_logits": 32, "precision": "autocast"},
        {"lora": 8},
    ],
    ids=str,
)
def test_the_loop_is_trainers(tmp_path, config, fields):
    recipe = replace(TRAINERS, **fields)
    rows, held_out = _examples(recipe, 12 * recipe.accumulation), _examples(recipe, recipe.eval_logits or 32)

    def make():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config)
        if recipe.lora:
            model = peft.get_peft_model(model, peft.LoraConfig(r=8, target_modules="all-linear"))
        others = {"compute_metrics": lambda prediction: {}} if recipe.eval_logits else {}
        options = {"bf16": recipe.precision == "autocast", "gradient_checkpointing": recipe.checkpointing}
        arguments = _arguments(recipe, tmp_path, **options)
        return Trainer(model, arguments, train_dataset=rows, eval_dataset=held_out, callbacks=[_Marks()], **others)

    _compare(config, recipe, make)


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("fields", [{}, {"lora": 8}, {"label_smoothing": 0.1}], ids=str)
def test_the_loop_is_trls(tmp_path, fields):
    trl = pytest.importorskip("trl")
    from datasets import Dataset

    recipe = replace(Recipe(**LOOPS["trl"], batch=2), sequence=64, **fields)

    def make():
        torch.manual_seed(0)
        adapters = {"peft_config": peft.LoraConfig(r=8, target_modules="all-linear")} if recipe.lora else {}
        options = {"max_length": 64, "dataset_kwargs": {"skip_prepare_dataset": True}}
        arguments = _arguments(recipe, tmp_path, trl.SFTConfig, **options)
        rows = Dataset.from_list([{name: ids.tolist() for name, ids in row.items()} for row in _examples(recipe, 8)])
        model = AutoModelForCausalLM.from_config(LLAMA)
        return trl.SFTTrainer(
            model, arguments, train_dataset=rows, processing_class=_tokenizer(), callbacks=[_Marks()], **adapters
        )

    _compare(LLAMA, recipe, make)


def _tokenizer():
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1}, unk_token="<pad>"))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>")
