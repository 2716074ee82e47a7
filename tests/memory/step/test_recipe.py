"""The fields of a recipe, each compared with the library that does what it says."""

import pickle
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace

import cloudpickle
import peft
import pytest
import torch
from llamas import dry
from small_models import GPT2, LLAMA
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from transformers import TrainingArguments as Arguments

from course_utils import memory
from course_utils.errors import CourseError
from course_utils.memory import Recipe, Workload, dry_run, estimate, measure
from course_utils.memory.formulas.trial import run_step
from course_utils.memory.planning.changes import CHANGES
from course_utils.memory.step import losses
from course_utils.memory.step.model import source_of
from course_utils.memory.step.recipe import LOOPS

SMALL = Recipe(batch=4, sequence=64)
QLORA = Recipe(batch=2, sequence=32, precision="bf16", lora=4, quantized="nf4")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"optimizer": "adam"}, "No optimizer is called 'adam'"),
        ({"precision": "fp8"}, "No precision is called 'fp8'"),
        ({"batch": 0}, "batch must be a whole number from 1 on"),
        ({"checkpointing": 1}, "checkpointing must be True or False"),
        ({"lora": -1}, "lora=-1 is no rank"),
        ({"chunked_loss": True}, "chunked_loss=True is no number of tokens"),
        ({"chunked_loss": 64, "precision": "fp16"}, "float16 loses the small ones"),
        ({"context_parallel": 2}, "is of all ranks; give ranks=2"),
        ({"context_parallel": 2, "ranks": 2, "packed": True}, "attention is the ring's"),
        ({"segments": 2}, "add checkpointing=True"),
        ({"zero_stage": 1}, "nothing to shard over"),
        ({"offload": True}, "take device='cuda'"),
        ({"checkpointing": True, "saved_on_disk": True}, "choose one of them"),
        ({"in_backward": True, "clipping": True}, "An update within backward"),
        ({"quantized": "nf4"}, "cannot be trained themselves"),
        ({"galore": True}, "galore=True is no rank"),
        ({"galore": 8, "optimizer": "adafactor"}, "take optimizer='adamw', or leave galore out"),
        ({"galore": 8, "optimizer": torch.optim.AdamW}, "take optimizer='adamw'"),
        ({"galore": 8, "zero_stage": 1, "ranks": 2}, "leave galore or zero_stage out"),
        ({"galore": 8, "precision": "bf16-masters"}, "GaLore has no masters"),
        ({"galore": 8, "lora": 4}, "leave galore or lora out"),
        ({"teacher": None}, "teacher=None is no text"),
        ({"teacher": "gpt2-small", "chunked_loss": 8}, "A teacher's logits are compared with whole ones"),
        ({"teacher": "gpt2-small", "zero_stage": 2, "ranks": 2}, "take zero_stage=0 or 1"),
        ({"teacher": "gpt2-small", "context_parallel": 2, "ranks": 2}, "no context_parallel, or leave teacher out"),
        ({"replicas": 2}, "groups of equally many ranks"),
        ({"zero_stage": 3, "ranks": 2, "precision": "fp16"}, "With a zero_stage"),
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


def test_label_smoothing_needs_labels():
    recipe = replace(SMALL, label_smoothing=0.1)
    workload = Workload(lambda: torch.nn.Linear(4, 1), recipe, lambda b, s: torch.randn(b, 4))
    with pytest.raises(CourseError, match="label_smoothing needs labels"):
        workload.step(*workload.build())


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
    ours = run_step(source_of(LLAMA), recipe).log.peak
    assert ours == run_step(source_of(theirs), replace(recipe, lora=0, lora_dropout=0.0)).log.peak
    assert ours > run_step(source_of(LLAMA), replace(recipe, lora_dropout=0.0)).log.peak


@pytest.mark.slow
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("upcast", [True, False])
def test_qlora_is_as_its_libraries_prepare_it(tmp_path, double, upcast):
    AutoModelForCausalLM.from_config(deepcopy(LLAMA), dtype=torch.bfloat16).save_pretrained(tmp_path)
    options = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": double}
    of_4_bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16, **options)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=of_4_bits, dtype=torch.bfloat16)
    if upcast:
        theirs = peft.prepare_model_for_kbit_training(theirs, False)
    theirs = peft.get_peft_model(theirs, peft.LoraConfig(r=4, target_modules="all-linear"))
    for parameter in theirs.parameters():
        if parameter.requires_grad and not upcast:  # trl/trainer/sft_trainer.py
            parameter.data = parameter.data.to(torch.bfloat16)
    recipe = replace(QLORA, double_quantization=double, upcast=upcast)
    workload = Workload(LLAMA, recipe)
    assert _parameters(workload.make_model()) == _parameters(theirs)
    measured = measure(workload.build, workload.step, timed=0)
    assert dry_run(workload.build, workload.step).peak == pytest.approx(measured.peak, rel=1e-4)


def _parameters(model) -> dict:
    """For each parameter its dtype, its bytes, the bytes of its scales, and whether it is trained."""
    gradients = {}
    for name, parameter in model.named_parameters():
        state = getattr(parameter, "quant_state", None)
        second = getattr(state, "state2", None)
        scales = [state.absmax, *([second.absmax] if second else [])] if state else []
        gradients[name] = parameter.dtype, parameter.nbytes, [scale.nbytes for scale in scales], parameter.requires_grad
    return gradients


FIELDS = [
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
@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_each_word_takes_what_the_allocator_says(fields):
    recipe = replace(SMALL, **fields)
    workload = Workload(LLAMA, recipe)
    assert estimate(LLAMA, recipe).peak == pytest.approx(measure(workload.build, workload.step, timed=0).peak, rel=1e-4)


def test_changes_undo_what_a_recipe_keeps():
    by_name = {change.name: change for change in CHANGES}
    never = replace(SMALL, zero_grad="never")
    assert by_name["gradients dropped after the update"].apply(never) == {"zero_grad": "after-update"}
    assert not by_name["gradients dropped after the update"].apply(SMALL)
    fields = by_name["update within backward"].apply(replace(never, clipping=True))
    assert fields.keys() == {"in_backward", "clipping", "zero_grad"}


@pytest.mark.slow
def test_trls_loss_of_many_tokens_is_that_of_few_whose_labels_have_values(monkeypatch):
    recipe = Recipe(**LOOPS["trl"] | {"sequence": 64}, batch=2, device="cuda")
    peak = dry(LLAMA, recipe).peak
    assert estimate(LLAMA, replace(recipe, batch=200)).peak > peak
    monkeypatch.setattr(losses, "EveryLabel", nullcontext)
    assert dry(LLAMA, recipe).peak == pytest.approx(peak, abs=4096)


@pytest.mark.slow
def test_adapters_on_two_layers_take_less_than_on_all_and_only_where_they_are():
    by_name, recipe = {change.name: change for change in CHANGES}, replace(SMALL, device="cuda")
    two = by_name["LoRA of rank 16 on q_proj and v_proj"]
    fewer, all_layers = (replace(recipe, **change.apply(recipe)) for change in (two, by_name["LoRA of rank 16"]))
    assert estimate(LLAMA, fewer).peak < estimate(LLAMA, all_layers).peak
    with pytest.raises(CourseError, match="No module of this model is called 'q_proj'"):
        estimate(GPT2, fewer)


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "bytes_each"), [(8, 1), (32, 4)])
def test_paged_states_wait_on_the_host(bits, bytes_each):
    recipe = Recipe(f"paged_adamw_{bits}bit", batch=1, sequence=16, device="cuda")
    workload = Workload(LLAMA, recipe)
    usage = dry_run(workload.build, workload.step, "cuda", prime=workload.prime)
    sizes = [parameter.numel() for parameter in workload.make_model().parameters()]
    large, small = sum(n for n in sizes if n >= 1e5), sum(n for n in sizes if n < 1e5)
    assert usage.host.peak == pytest.approx(2 * large * bytes_each, rel=0.02)
    assert usage.split["optimizer state"] == pytest.approx(2 * small * bytes_each, rel=0.1)


def test_trls_defaults_are_those_of_its_configuration():
    sft = pytest.importorskip("trl").SFTConfig
    fields, model = sft.__dataclass_fields__, pytest.importorskip("trl").ModelConfig.__dataclass_fields__
    loop = LOOPS["trl"]
    assert loop["checkpointing"] is fields["gradient_checkpointing"].default
    assert loop["sequence"] == fields["max_length"].default
    assert loop["double_quantization"] is model["use_bnb_nested_quant"].default
    assert fields["bf16"].default is None  # which is True, unless fp16 is
    assert loop["precision"] == "autocast"
    for loop in (LOOPS["trl"], LOOPS["trainer"]):
        assert loop["clipping"] is (fields["max_grad_norm"].default == 1.0)
        assert loop["use_cache"] is fields["use_cache"].default
        assert loop["optimizer"] == "adamw-fused"
        assert Arguments("x").optim == "adamw_torch_fused"


def test_the_package_goes_to_other_ranks_with_a_function_that_names_it():
    assert pickle.loads(cloudpickle.dumps(memory)) is memory
