"""The words of a recipe for what people do, each held against the library that does it."""

import gc
import pickle
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from itertools import accumulate

import cloudpickle
import peft
import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, GPT2Config, LlamaConfig, Trainer, TrainerCallback
from transformers import TrainingArguments as Arguments

from course_utils import memory
from course_utils.errors import CourseError
from course_utils.memory import Recipe, Workload, dry_run, estimate, measure
from course_utils.memory.formulas.trial import run_whole
from course_utils.memory.planning.changes import CHANGES
from course_utils.memory.step import losses
from course_utils.memory.step.model import source_of
from course_utils.memory.step.recipe import LOOPS
from course_utils.memory.trace.allocator import quiet

LLAMA = LlamaConfig(
    vocab_size=5000,
    hidden_size=128,
    intermediate_size=344,
    num_hidden_layers=4,
    num_attention_heads=4,
    max_position_embeddings=512,
    architectures=["LlamaForCausalLM"],
)
GPT2 = GPT2Config(
    vocab_size=5000, n_embd=128, n_layer=4, n_head=4, n_positions=256, bos_token_id=0, eos_token_id=0,
    architectures=["GPT2LMHeadModel"],
)  # fmt: skip
SMALL = Recipe(batch=4, sequence=64)
TRAINERS = Recipe(**LOOPS["trainer"], batch=4)
QLORA = Recipe(batch=2, sequence=32, precision="bf16", lora=4, quantized="nf4")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lora_targets": ("q_proj",)}, "add lora=16"),
        ({"lora_targets": "q_proj", "lora": 4}, "are no names"),
        ({"modules_to_save": ("lm_head",)}, "add lora=16"),
        ({"zero_grad": "before"}, "before-backward"),
        ({"zero_grad": "never", "in_backward": True}, "take zero_grad='after-update'"),
        ({"zero_grad": "never", "offload": True, "device": "cuda"}, "take zero_grad='after-update'"),
        ({"label_smoothing": 1.0}, "below 1"),
        ({"label_smoothing": 0.1, "chunked_loss": 64}, "whole logits"),
        ({"eval_logits": 8}, "add eval_batch=8"),
        ({"eval_batch": -1}, "number of examples"),
        ({"trl_loss": True, "chunked_loss": 64}, "TRL's loss"),
        ({"upcast": False, "quantized": "nf4", "lora": 4, "precision": "fp16"}, "fp16's scaler"),
    ],
)
def test_a_recipe_that_contradicts_itself_says_what_to_change(fields, message):
    with pytest.raises(CourseError, match=message):
        Recipe(**fields)


def test_a_layer_that_is_not_there_is_refused_with_one_that_is():
    with pytest.raises(CourseError, match="'q_prj'; did you mean q_proj"):
        estimate(LLAMA, replace(SMALL, lora=4, lora_targets=("q_prj",)))
    with pytest.raises(CourseError, match="label_smoothing needs labels"):
        Workload(
            lambda: torch.nn.Linear(4, 1), replace(SMALL, label_smoothing=0.1), lambda b, s: torch.randn(b, 4)
        )._apply(torch.nn.Linear(4, 1), torch.randn(2, 4))


@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": "all-linear"},
        pytest.param({"target_modules": ["q_proj", "v_proj"]}, marks=pytest.mark.slow),
        {"target_modules": ["q_proj", "v_proj"], "modules_to_save": ["lm_head", "embed_tokens"]},
    ],
    ids=["all", "two", "two and saved"],
)
def test_adapters_are_pefts_own(options):
    targets = options["target_modules"]
    recipe = replace(SMALL, lora=4, lora_targets=tuple(targets) if isinstance(targets, list) else (targets,))
    recipe = replace(recipe, modules_to_save=tuple(options.get("modules_to_save", ())))
    theirs = peft.get_peft_model(AutoModelForCausalLM.from_config(LLAMA), peft.LoraConfig(r=4, **options))
    assert _parameters(Workload(LLAMA, recipe).make_model()) == _parameters(theirs)


def test_dropout_before_adapters_keeps_what_it_keeps_in_peft():
    recipe = replace(SMALL, lora=4, lora_dropout=0.1)
    options = {"target_modules": "all-linear", "lora_dropout": 0.1}
    theirs = peft.get_peft_model(AutoModelForCausalLM.from_config(LLAMA), peft.LoraConfig(r=4, **options)).train()
    ours = run_whole(source_of(LLAMA), recipe).log.peak
    assert ours == run_whole(source_of(theirs), replace(recipe, lora=0, lora_dropout=0.0)).log.peak
    assert ours > run_whole(source_of(LLAMA), replace(recipe, lora_dropout=0.0)).log.peak


@pytest.mark.slow
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("upcast", [True, False])
def test_qlora_is_as_its_libraries_prepare_it(tmp_path, double, upcast):
    AutoModelForCausalLM.from_config(deepcopy(LLAMA), dtype=torch.bfloat16).save_pretrained(tmp_path)
    of_4_bits = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=double,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=of_4_bits, dtype=torch.bfloat16)
    if upcast:
        theirs = peft.prepare_model_for_kbit_training(theirs, False)
    theirs = peft.get_peft_model(theirs, peft.LoraConfig(r=4, target_modules="all-linear"))
    for parameter in theirs.parameters():
        if parameter.requires_grad and not upcast:  # trl/trainer/sft_trainer.py
            parameter.data = parameter.data.to(torch.bfloat16)
    recipe = replace(QLORA, double_quantization=double, upcast=upcast)
    work = Workload(LLAMA, recipe)
    assert _parameters(work.make_model()) == _parameters(theirs)
    assert dry_run(work.build, work.step).peak == pytest.approx(measure(work.build, work.step, timed=0).peak, rel=1e-4)


def _parameters(model) -> dict:
    """Of each its dtype, its bytes, those of its scales, and whether it is trained."""
    gradients = {}
    for name, parameter in model.named_parameters():
        state = getattr(parameter, "quant_state", None)
        second = getattr(state, "state2", None)
        scales = [state.absmax, *([second.absmax] if second else [])] if state else []
        gradients[name] = parameter.dtype, parameter.nbytes, [one.nbytes for one in scales], parameter.requires_grad
    return gradients


WAYS = [
    {"zero_grad": "before-backward"},
    {"zero_grad": "never"},
    {"zero_grad": "never", "accumulation": 2},
    {"zero_grad": "never", "precision": "bf16-masters"},
    {"use_cache": False},
    {"label_smoothing": 0.1},
    {"eval_batch": 16},
    {"eval_batch": 4, "eval_logits": 16},
    {"lora": 4, "lora_targets": ("q_proj",), "modules_to_save": ("lm_head",)},
    {"trl_loss": True},
    {"trl_loss": True, "label_smoothing": 0.1},
    {"trl_loss": True, "eval_batch": 4, "eval_logits": 16},
]


@pytest.mark.slow
@pytest.mark.parametrize("fields", WAYS, ids=str)
def test_each_word_takes_what_the_allocator_says(fields):
    recipe = replace(SMALL, **fields)
    work = Workload(LLAMA, recipe)
    assert estimate(LLAMA, recipe).peak == pytest.approx(measure(work.build, work.step, timed=0).peak, rel=1e-4)


def test_rungs_undo_what_a_recipe_keeps():
    by_name = {change.name: change for change in CHANGES}
    never = replace(SMALL, zero_grad="never")
    assert by_name["gradients dropped after the update"].apply(never) == {"zero_grad": "after-update"}
    assert not by_name["gradients dropped after the update"].apply(SMALL)
    assert by_name["update within backward"].apply(replace(never, clipping=True)).keys() == {
        "in_backward",
        "clipping",
        "zero_grad",
    }


@pytest.mark.slow
def test_trls_loss_of_many_tokens_is_that_of_few_whose_labels_have_values(monkeypatch):
    recipe = Recipe(**LOOPS["trl"] | {"sequence": 64}, batch=2, device="cuda")
    work = Workload(LLAMA, recipe)
    peak = dry_run(work.build, work.step, "cuda").peak
    assert estimate(LLAMA, replace(recipe, batch=200)).peak > peak
    monkeypatch.setattr(losses, "EveryLabel", nullcontext)
    assert dry_run(work.build, work.step, "cuda").peak == pytest.approx(peak, abs=4096)


@pytest.mark.slow
def test_adapters_on_two_layers_take_less_than_on_all_and_only_where_they_are():
    by_name, usual = {change.name: change for change in CHANGES}, replace(SMALL, device="cuda")
    two = by_name["LoRA of rank 16 on q_proj and v_proj"]
    fewer, all_layers = (replace(usual, **change.apply(usual)) for change in (two, by_name["LoRA of rank 16"]))
    assert estimate(LLAMA, fewer).peak < estimate(LLAMA, all_layers).peak
    with pytest.raises(CourseError, match="No module of this model is called 'q_proj'"):
        estimate(GPT2, fewer)


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "bytes_each"), [(8, 1), (32, 4)])
def test_paged_states_wait_on_the_host(bits, bytes_each):
    recipe = Recipe(f"paged_adamw_{bits}bit", batch=1, sequence=16, device="cuda")
    work = Workload(LLAMA, recipe)
    usage = dry_run(work.build, work.step, "cuda", warm=work.prime)
    sizes = [parameter.numel() for parameter in work.make_model().parameters()]
    large, small = sum(n for n in sizes if n >= 1e5), sum(n for n in sizes if n < 1e5)
    assert usage.host.peak == pytest.approx(2 * large * bytes_each, rel=0.02)
    assert usage.split["optimizer state"] == pytest.approx(2 * small * bytes_each, rel=0.1)


class _Marks(TrainerCallback):
    """Each update is a range in the profiler's record."""

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
    """The allocator's, in the second update of `make()`, a trainer, and between it and the third."""
    gc.collect()
    profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    with quiet():
        profiler.start()
    make().train()
    with quiet():
        profiler.stop()
    events = sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    changes = [event for event in events if event.name() == "[memory]"]
    times, totals = [one.start_ns() for one in changes], list(accumulate(one.nbytes() for one in changes))
    second, third = (next(event for event in events if event.name() == f"step {n}") for n in (1, 2))
    end = second.start_ns() + second.duration_ns()
    update = max(total for t, total in zip(times, totals, strict=True) if second.start_ns() <= t <= end)
    return update, max(total for t, total in zip(times, totals, strict=True) if end <= t <= third.start_ns())


def _compare(config, recipe: Recipe, make) -> None:
    """Evaluation has a few batches more waiting in its loader than a step."""
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
        arguments = _arguments(
            recipe, tmp_path, bf16=recipe.precision == "autocast", gradient_checkpointing=recipe.checkpointing
        )
        return Trainer(model, arguments, train_dataset=rows, eval_dataset=held_out, callbacks=[_Marks()], **others)

    _compare(config, recipe, make)


def test_trls_defaults_are_those_of_its_configuration():
    sft = pytest.importorskip("trl").SFTConfig
    usual, model = sft.__dataclass_fields__, pytest.importorskip("trl").ModelConfig.__dataclass_fields__
    loop = LOOPS["trl"]
    assert loop["checkpointing"] is usual["gradient_checkpointing"].default
    assert loop["sequence"] == usual["max_length"].default
    assert loop["double_quantization"] is model["use_bnb_nested_quant"].default
    assert usual["bf16"].default is None  # which is True, unless fp16 is
    assert loop["precision"] == "autocast"
    for loop in (LOOPS["trl"], LOOPS["trainer"]):
        assert loop["clipping"] is (usual["max_grad_norm"].default == 1.0)
        assert loop["use_cache"] is usual["use_cache"].default
        assert loop["optimizer"] == "adamw-fused"
        assert Arguments("x").optim == "adamw_torch_fused"


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
        arguments = _arguments(
            recipe, tmp_path, trl.SFTConfig, max_length=64, dataset_kwargs={"skip_prepare_dataset": True}
        )
        rows = Dataset.from_list([{name: ids.tolist() for name, ids in row.items()} for row in _examples(recipe, 8)])
        model = AutoModelForCausalLM.from_config(LLAMA)
        return trl.SFTTrainer(
            model, arguments, train_dataset=rows, processing_class=_tokenizer(), callbacks=[_Marks()], **adapters
        )

    _compare(LLAMA, recipe, make)


def _tokenizer():
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1}, unk_token="<pad>"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")


def test_the_package_goes_to_other_ranks_with_a_function_that_names_it():
    assert pickle.loads(cloudpickle.dumps(memory)) is memory
