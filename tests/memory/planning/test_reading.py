"""Readings of files of six tools, of scripts, of launch lines and of names on the Hub."""

import json
from dataclasses import MISSING, fields, replace
from pathlib import Path
from urllib.error import HTTPError, URLError

import pytest
from datasets import Dataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import BertConfig, BertForSequenceClassification, BertForTokenClassification

from course_utils.cli import main
from course_utils.errors import CourseError
from course_utils.memory import Recipe
from course_utils.memory.formulas.trial import run_step
from course_utils.memory.planning.emit import NO_SETTING, emit
from course_utils.memory.planning.reading import hub
from course_utils.memory.planning.reading.lengths import lengths_of
from course_utils.memory.planning.reading.read import read
from course_utils.memory.planning.reading.tools import PEFT_VERSION, tables
from course_utils.memory.step.model import source_of
from course_utils.memory.step.recipe import LOOPS, OPTIMIZERS

MODEL = "model_name_or_path: gpt2-small\n"


@pytest.fixture(autouse=True)
def _isolate(tmp_path, monkeypatch):
    """Runs each test in a folder of its own, without a cache, the Hub or Accelerate's file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def write(name, text):
    Path(name).write_text(text, encoding="utf-8")
    return name


def values(reading, *names):
    return [reading.fields.get(name) for name in names]


@pytest.mark.slow
def test_the_tools_defaults_are_those_of_the_installed_dataclasses():
    from peft import LoraConfig
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as PUBLISHED
    from transformers import BitsAndBytesConfig, TrainingArguments
    from trl import ModelConfig, SFTConfig

    def default(kind, key):
        (field,) = (field for field in fields(kind) if field.name == key)
        value = field.default if field.default is not MISSING else field.default_factory()
        return getattr(value, "value", value)

    trainer, sft = (tables().tools[key].defaults for key in ("trainer", "trl"))
    elsewhere = {"dtype", "use_peft", "lora_r", "lora_dropout", "load_in_4bit", "use_bnb_nested_quant"}
    for key, value in trainer.items():
        if key not in elsewhere:
            assert (default(TrainingArguments, key) or False) == (value or False), key
    assert default(LoraConfig, "r") == trainer["lora_r"]
    assert default(LoraConfig, "lora_dropout") == trainer["lora_dropout"]
    assert BitsAndBytesConfig(load_in_4bit=True).bnb_4bit_use_double_quant == trainer["use_bnb_nested_quant"]
    arguments = SFTConfig(output_dir="out", use_cpu=True)
    for key, value in sft.items():
        installed = default(ModelConfig, key) if key in elsewhere else getattr(arguments, key)
        assert getattr(installed, "value", installed) == (True if key == "use_cpu" else value), key
    for family, names in tables().targets.items():
        assert tuple(PUBLISHED[family]) == names


@pytest.mark.slow
def test_the_versions_that_are_named_are_those_that_are_installed():
    from importlib.metadata import version

    tools = {"transformers": "trainer", "trl": "trl", "accelerate": "accelerate"}
    names = {package: tables().tools[key].name for package, key in tools.items()} | {"peft": PEFT_VERSION}
    for package, name in names.items():
        assert name.split()[1] == ".".join(version(package).split(".")[:2])


def test_a_file_of_trl_is_read_with_its_lines_and_trls_defaults():
    write("trl.yaml", f"{MODEL}per_device_train_batch_size: 2\n\nmax_length: 512\npacking: true\n")
    reading = read(["trl.yaml"])
    assert reading.model == "gpt2-small"
    names = ("batch", "sequence", "packed", "checkpointing", "precision", "trl_loss", "use_cache")
    assert values(reading, *names) == [2, 512, True, True, "autocast", True, False]
    assert reading.provenance["sequence"] == "trl.yaml:4"
    assert reading.provenance["checkpointing"] == "default of TRL 1.16"
    assert reading.effect == ""
    assert reading.tool.loop == "trl"
    assert "  batch=2 " in "\n".join(reading.table())
    assert Recipe(**reading.override({}).fields).batch == 2


@pytest.mark.parametrize(("dtype", "effect"), [("", "at least"), ("dtype: bfloat16\n", "")])
def test_weights_that_trl_loads_in_float32_beside_4_bits_take_more_than_planned(dtype, effect):
    """By TRL's default the other weights are in float32, so that embeddings and norms are twice as large."""
    lines = "model_name_or_path: llama-3-8b\nmax_length: 64\nuse_peft: true\nlora_r: 8\nload_in_4bit: true\n"
    assert read([write("trl.yaml", lines + dtype)]).effect == effect


def test_flags_of_the_command_win_and_make_known_what_a_script_computes():
    write(
        "sft.py",
        "import sys\nargs = SFTConfig(per_device_train_batch_size=int(sys.argv[1]))\nSFTTrainer('gpt2-small', args=args)\n",
    )
    reading = read(["sft.py"])
    assert reading.effect == "unknown"
    assert "sft.py:2 computes per_device_train_batch_size" in reading.unmodeled["batch"].reason
    merged = reading.override({"batch": 3})
    assert merged.fields["batch"] == 3
    assert merged.provenance["batch"] == "--batch"
    assert merged.effect == ""


def test_the_json_of_training_arguments_says_all_but_model_and_length():
    arguments = {"output_dir": "out", "per_device_train_batch_size": 4, "bf16": True, "optim": "adamw_bnb_8bit"}
    write("args.json", json.dumps(arguments, indent="\t"))
    with pytest.raises(CourseError, match="Which model is it"):
        read(["args.json"])
    reading = read(["llama-3.1-8b", "args.json"])
    assert values(reading, "batch", "optimizer", "clipping", "checkpointing") == [4, "adamw8bit", True, False]
    assert reading.provenance["batch"] == "args.json:3"
    assert "--sequence" in reading.unmodeled["sequence"].reason
    # Transformers 5 loads weights in the dtype in which they are published.
    assert reading.fields["precision"] == "bf16"
    assert "sequence" not in reading.override({"sequence": 64}).unmodeled


def test_another_head_than_the_one_that_is_planned_is_said():
    write("train.py", "TrainingArguments('o')\nx(max_length=1)\nAutoModel.from_pretrained('bert-base')\n")
    assert "no head, and a BertForMaskedLM is planned" in read(["train.py"]).unmodeled["class"].reason
    write("train.py", "TrainingArguments('o')\nx(max_length=1)\nAutoModelForMaskedLM.from_pretrained('bert-base')\n")
    reading = read(["train.py"])
    assert ("class" in reading.unmodeled, reading.head) == (False, None)


@pytest.mark.parametrize(
    ("name", "kind", "blocks"),
    [
        ("AutoModelForSequenceClassification", BertForSequenceClassification, 2),
        pytest.param("transformers.BertForTokenClassification", BertForTokenClassification, 5, marks=pytest.mark.slow),
    ],
)
def test_a_script_s_own_head_is_the_one_that_is_planned(name, kind, blocks, capsys):
    sizes = {"hidden_size": 32, "num_hidden_layers": blocks, "num_attention_heads": 2, "intermediate_size": 48}
    config = BertConfig(**sizes, vocab_size=100, num_labels=7)
    recipe = Recipe(**{**LOOPS["trainer"], "batch": 4, "sequence": 16, "device": "cuda"})
    peak = run_step(source_of(kind(config)), recipe).peak
    config.architectures = ["BertForMaskedLM"]
    config.save_pretrained("tiny")
    model = f"{name}.from_pretrained('tiny', num_labels=7)"
    arguments = "TrainingArguments('o', per_device_train_batch_size=4)"
    write("train.py", f"model = {model}\ntok.tokenizer(max_length=16)\n{arguments}\n")
    assert main(["plan", "train.py", "--why", "batch=4", "batch=8", "--json"]) == 0
    instants = json.loads(capsys.readouterr().out)["before"].values()
    assert max(sum(kinds.values()) for kinds in instants) == peak


def test_a_script_that_says_its_task_is_told_that_peft_trains_the_classifier_too():
    lines = ["TrainingArguments('o')", "tokenizer(max_length=8)", "LoraConfig(r=4, task_type=TaskType.SEQ_CLS)"]
    write("train.py", "\n".join([*lines, "AutoModelForSequenceClassification.from_pretrained('bert-base')"]))
    assert "--modules-to-save" in read(["train.py"]).unmodeled["modules_to_save"].reason
    assert "modules_to_save" not in read(["train.py"]).override({"modules_to_save": ("classifier",)}).unmodeled


def test_null_is_no_length_at_all_and_no_clipping():
    write("trl.yaml", f"{MODEL}max_length: null\nmax_grad_norm: null\n")
    reading = read(["trl.yaml"])
    assert ("sequence" in reading.fields, reading.fields["clipping"]) == (False, False)
    assert "no bound; say it with --sequence" in reading.unmodeled["sequence"].reason


@pytest.mark.parametrize(
    ("file", "text", "line"),
    [
        (
            "full.yaml",
            "model_name_or_path: llama-3-8b\nstage: sft\ndo_train: true\nfinetuning_type: full\nbf16: true\n",
            "llamafactory-cli train full.yaml",
        ),
        ("ax.yml", "base_model: llama-3-8b\nbf16: false\nfp16: false\nsequence_len: 64\n", "axolotl train ax.yml"),
    ],
)
def test_a_file_says_the_same_by_itself_and_in_its_launch_line(file, text, line):
    write(file, text)
    assert read([], line.split()).fields == read([file]).fields


def test_what_a_line_adds_to_a_file_counts_wherever_the_file_s_key_does():
    write("ax.yml", "base_model: llama-3-8b\nmicro_batch_size: 2\nval_set_size: 0.1\nsequence_len: 64\n")
    reading = read([], ["axolotl", "train", "ax.yml", "--micro-batch-size", "4"])
    assert values(reading, "batch", "eval_batch") == [4, 4]


def test_a_script_s_misspelled_argument_is_refused_and_its_trainer_s_are_read():
    write("train.py", "SFTConfig(output_dir='x', per_device_train_batchsize=4)\n")
    with pytest.raises(CourseError, match="did you mean per_device_train_batch_size"):
        read(["gpt2-small", "train.py"])
    write("train.py", "a = SFTConfig('x')\nSFTTrainer(model='gpt2-small', args=a, max_seq_length=64, packing=True)\n")
    assert values(read(["train.py"]), "sequence", "packed") == [64, True]


def test_four_bits_and_adapters_need_use_peft():
    reading = read([write("a.yaml", f"{MODEL}load_in_4bit: true\n")])
    assert (reading.effect, "use_peft" in reading.unmodeled["quantized"].reason) == ("unknown", True)
    reading = read([write("a.yaml", f"{MODEL}lora_r: 4\n")])
    assert ("lora" in reading.fields, "use_peft: true" in reading.remarks[-1]) == (False, True)


def test_dropout_of_adapters_is_trl_s_own_where_its_file_is_silent():
    reading = read([write("a.yaml", f"{MODEL}use_peft: true\n")])
    assert (reading.fields["lora_dropout"], reading.provenance["lora_dropout"]) == (0.05, "default of TRL 1.16")
    write("train.py", "SFTConfig(output_dir='x')\nLoraConfig(r=4, lora_dropout=0.1)\n")
    assert read(["gpt2-small", "train.py"]).fields["lora_dropout"] == 0.1


def test_gpt2_in_a_file_is_the_published_one():
    assert read([write("a.yaml", "model_name_or_path: gpt2\nmax_length: 64\n")]).model == "gpt2-small"


def test_what_a_parser_of_its_own_takes_is_read_from_the_line_or_its_default():
    write(
        "train.py",
        "p = argparse.ArgumentParser()\n"
        "p.add_argument('--size', type=int, default=16)\n"
        "p.add_argument('--half', action='store_true')\n"
        "o = p.parse_args()\n"
        "TrainingArguments('x', per_device_train_batch_size=o.size, bf16=o.half)\n",
    )
    for line, batch, precision in (("", 16, "fp32"), ("--size 64 --half", 64, "autocast")):
        reading = read(["gpt2-small"], f"python train.py {line}".split()) if line else read(["gpt2-small", "train.py"])
        assert values(reading, "batch", "precision") == [batch, precision]
    assert read(["gpt2-small"], ["uv", "run", "train.py", "--size", "4"]).fields["batch"] == 4


def test_arguments_by_two_stars_are_said_wherever_they_stand():
    write("train.py", "SFTConfig(output_dir='x')\nLoraConfig(**options)\n")
    assert "train.py:2" in read(["gpt2-small", "train.py"]).unmodeled["**"].reason


def test_ranks_by_a_flag_decide_what_depends_on_them():
    write("ds.json", json.dumps({"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2}}))
    write("t.yaml", f"{MODEL}bf16: true\n")
    assert values(read(["t.yaml", "ds.json"], ranks=4), "precision", "zero_stage") == ["autocast", 2]
    with pytest.raises(CourseError, match="ds.json:1 shares the work out over ranks; say over how many with --ranks"):
        read(["gpt2-small", "ds.json"]).override({})


def test_a_pickle_is_refused_with_the_line_that_writes_its_json():
    Path("training_args.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(CourseError, match=r"pickle.*torch\.load\('training_args\.bin'.*to_json_string"):
        read(["training_args.bin"])


SCRIPT = """
import torch
raise SystemExit("nobody runs this")
BATCH = 2 * 4
model = AutoModelForCausalLM.from_pretrained(
    "mistralai/Mistral-7B-v0.1", dtype=torch.bfloat16,
    quantization_config=BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_use_double_quant=True))
model = get_peft_model(prepare_model_for_kbit_training(model), LoraConfig(r=4, target_modules=["q_proj", "o_proj"]))
common = {"gradient_accumulation_steps": 3, "optim": "paged_adamw_8bit"}
args = TrainingArguments(output_dir="out", per_device_train_batch_size=BATCH, eval_strategy="steps", **common)
tokens = tokenizer(texts, truncation=True, max_length=256)
Trainer(model=model, args=args, compute_metrics=accuracy).train()
"""


def test_a_script_is_read_by_its_syntax_tree_and_not_run():
    reading = read([write("train.py", SCRIPT)])
    assert reading.model == "mistralai/Mistral-7B-v0.1"
    assert reading.tool.loop == "trainer"
    of_loop = values(reading, "batch", "accumulation", "sequence", "optimizer", "eval_batch")
    assert of_loop == [8, 3, 256, "paged_adamw_8bit", 8]
    of_adapters = values(reading, "lora", "lora_targets", "quantized", "double_quantization", "upcast")
    assert of_adapters == [4, ("q_proj", "o_proj"), "nf4", True, True]
    assert reading.provenance["batch"] == "train.py:10"
    assert reading.provenance["upcast"] == "train.py:8"
    assert reading.unmodeled["eval_logits"].effect == "at least"
    assert any("counted on the host" in remark for remark in reading.remarks)


@pytest.mark.parametrize(
    ("line", "key", "effect"),
    [
        (
            "from unsloth import FastLanguageModel; FastLanguageModel.from_pretrained('gpt2-small')",
            "FastLanguageModel",
            "unknown",
        ),
        ("for p in model.parameters(): p.requires_grad = False", "frozen", "unknown"),
        ("model.resize_token_embeddings(40000)", "resize_token_embeddings", "at least"),
        ("DPOTrainer(model)", "DPOTrainer", "at least"),
        ("TrainingArguments('out', use_liger_kernel=True)", "use_liger_kernel", "unknown"),
        ("TrainingArguments('out', **other())", "**", "unknown"),
    ],
)
def test_what_a_script_does_beside_is_named(line, key, effect):
    reading = read(["gpt2-small", write("train.py", f"args = TrainingArguments('out')\nx(max_length=1)\n{line}\n")])
    assert reading.unmodeled[key].effect == effect


@pytest.mark.parametrize(
    ("line", "ranks", "stage"),
    [
        ("accelerate launch --num_processes 4 --multi_gpu train.py --per_device_train_batch_size 2", 4, None),
        ("accelerate launch --config_file fsdp.yaml train.py --per_device_train_batch_size=2", 8, 3),
        ("torchrun --nproc-per-node 4 --nnodes=2 train.py --per-device-train-batch-size 2", 8, None),
        ("A=1 python -m torch.distributed.run --nproc_per_node=2 train.py --per_device_train_batch_size 2", 2, None),
        ("deepspeed --num_gpus 2 train.py --deepspeed ds.json --per_device_train_batch_size 2", 2, 2),
        ("python3 train.py --per_device_train_batch_size 2", 1, None),
    ],
)
def test_a_launch_line_says_the_ranks_and_wins_over_the_script(line, ranks, stage):
    model = "AutoModelForCausalLM.from_pretrained('gpt2-small')"
    write("train.py", f"args = TrainingArguments('o', per_device_train_batch_size=9)\nm = {model}\n")
    options = "\n  fsdp_version: 2\n  fsdp_offload_params: true\n"
    write("fsdp.yaml", f"distributed_type: FSDP\nnum_processes: 8\nfsdp_config:{options}")
    write("ds.json", json.dumps({"zero_optimization": {"stage": 2}, "bf16": {"enabled": "auto"}}))
    reading = read([], line.split())
    assert values(reading, "batch", "ranks", "zero_stage") == [2, ranks, stage]
    assert reading.provenance["batch"] == "launch line"
    assert read([], [line]).fields == reading.fields  # in quotation marks


def test_trl_sft_takes_its_file_and_its_flags():
    write("trl.yaml", f"{MODEL}lora_r: 4\n")
    reading = read([], ["trl sft --config trl.yaml --use_peft --lora_target_modules c_attn c_proj --bf16 false"])
    assert values(reading, "lora", "lora_targets", "precision") == [4, ("c_attn", "c_proj"), "fp32"]
    assert read([], ["trl dpo --config trl.yaml"]).effect == "at least"


def test_deepspeed_keeps_masters_in_float32_and_its_buckets_are_not_counted():
    sharding = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    write("ds.json", json.dumps({"bf16": {"enabled": True}, "zero_optimization": sharding}))
    write("trl.yaml", MODEL)
    reading = read(["trl.yaml", "ds.json"]).override({"ranks": 1})
    assert values(reading, "precision", "offload") == ["bf16-masters", True]
    assert "zero_stage" not in reading.fields
    assert "One rank" in reading.remarks[-1]
    assert reading.unmodeled["deepspeed_shards"].effect == "unknown"
    assert read(["trl.yaml", "ds.json"]).override({"ranks": 4}).fields["zero_stage"] == 2


BASE = "model_name_or_path: llama-3-8b\nstage: sft\ndo_train: true\nper_device_train_batch_size: 1\n"
# By the file's path at the commit in `tools.yaml` or before: what it sets beside BASE, some fields, and the effect.
LLAMA_FACTORY = {
    "train_lora/qwen3_lora_sft": (
        "lora_rank: 8\nlora_target: all\nbf16: true",
        {"lora": 8, "lora_targets": (), "sequence": 2048},
        "",
    ),
    "train_lora/llama3_lora_dpo": ("stage: dpo\nlora_rank: 8\nbf16: true", {"checkpointing": True}, "at least"),
    "train_lora/llama3_lora_pretrain": (
        "stage: pt\ncutoff_len: 2048\nbf16: true",
        {"packed": False, "precision": "bf16"},
        "",
    ),
    "train_lora/llama3_lora_sft_ds3": ("deepspeed: ds_z3_config.json\nbf16: true", {"lora": 8}, "unknown"),
    "train_qlora/qwen3_lora_sft_otfq": (
        "quantization_bit: 4\nquantization_method: bnb\nbf16: true",
        {"quantized": "nf4", "double_quantization": True, "upcast": False},
        "at least",
    ),
    "train_full/qwen3_full_sft": (
        "finetuning_type: full\nenable_liger_kernel: true\nbf16: true\ncutoff_len: 131072",
        {"sequence": 131072, "precision": "autocast"},
        "unknown",
    ),
    "extras/galore/llama3_full_sft": (
        "finetuning_type: full\nuse_galore: true\ngalore_layerwise: true\ngalore_rank: 128\npure_bf16: true",
        {"galore": 128, "optimizer": "adamw", "precision": "bf16"},
        "unknown",
    ),
    "extras/badam/llama3_full_sft": ("finetuning_type: full\nuse_badam: true", {"precision": "fp32"}, "unknown"),
    "extras/fsdp_qlora/llama3_lora_sft": (
        "quantization_bit: 4\nlora_target: q_proj,v_proj\nfp16: true\neval_strategy: steps\nper_device_eval_batch_size: 1",
        {"lora_targets": ("q_proj", "v_proj"), "eval_batch": 1},
        "at least",
    ),
    "extras/llama_pro/llama3_freeze_sft": (
        "finetuning_type: freeze\nuse_llama_pro: true\nfp16: true",
        {"checkpointing": True},
        "unknown",
    ),
}
AXOLOTL = {
    "llama-3/lora-1b": (
        "adapter: lora\nlora_r: 16\nlora_target_modules: [q_proj, v_proj]\nmicro_batch_size: 2\noptimizer: adamw_8bit\nfp16:\n",
        {"lora": 16, "lora_targets": ("q_proj", "v_proj"), "batch": 2, "optimizer": "adamw8bit", "precision": "bf16"},
        "",
    ),
    "llama-3/fft-8b": (
        "sequence_len: 8192\nsample_packing: true\noptimizer: paged_adamw_8bit\nbf16: auto\ngradient_checkpointing: true",
        {"sequence": 8192, "packed": True, "checkpointing": True, "precision": "bf16", "optimizer": "paged_adamw_8bit"},
        "",
    ),
    "llama-3/fft-8b-liger-fsdp": (
        "plugins: [liger.LigerPlugin]\nfsdp: [full_shard, auto_wrap]\nfsdp_config:\n  fsdp_offload_params: true",
        {"zero_stage": 3, "offload": True},
        "unknown",
    ),
    "llama-3/qlora-fsdp-70b": (
        "adapter: qlora\nload_in_4bit: true\nlora_r: 8\nlora_target_linear: true\noptimizer: adamw_torch\nval_set_size: 0.05",
        {
            "quantized": "nf4",
            "lora_targets": (),
            "optimizer": "adamw-foreach",
            "double_quantization": True,
            "eval_batch": 1,
        },
        "at least",
    ),
    "llama-3/lora-8b": (
        "adapter: lora\nload_in_8bit: true\nlora_r: 32\nlora_target_linear: true\nlora_modules_to_save: [embed_tokens, lm_head]",
        {"modules_to_save": ("embed_tokens", "lm_head")},
        "unknown",
    ),
    "llama-3/instruct-dpo-lora-8b": (
        "rl: dpo\nadapter: lora\nlora_r: 32\nlora_target_linear: true",
        {"lora": 32},
        "at least",
    ),
    "llama-3/3b-fp8-fsdp2": ("fp8: true\nflex_attention: true\ntorch_compile: true", {"compiled": True}, "unknown"),
    "llama-3/lora-1b-kernels": (
        "adapter: lora\nlora_r: 16\nlora_target_linear: true\nlora_mlp_kernel: true",
        {"lora": 16},
        "unknown",
    ),
    "gemma2/qlora": (
        "attn_implementation: flash_attention_2\nsample_packing: true",
        {"attention": "sdpa", "packed": True},
        "",
    ),
    "llama-2/gptq-lora": (
        "gptq: true\nbf16: false\nfp16: false\nfloat16: true",
        {"checkpointing": False, "sequence": 512},
        "unknown",
    ),
}


@pytest.mark.parametrize(("text", "expected", "effect"), LLAMA_FACTORY.values(), ids=LLAMA_FACTORY)
def test_what_decides_in_a_file_of_llama_factory(text, expected, effect):
    keys = {line.partition(":")[0] for line in text.splitlines()}
    base = "\n".join(line for line in BASE.splitlines() if line.partition(":")[0] not in keys)
    reading = read([write("lf.yaml", f"{base}\n{text}\n")])
    assert {name: reading.fields.get(name) for name in expected} == expected
    assert reading.effect == effect
    assert "LLaMA-Factory" in reading.provenance["clipping"]


@pytest.mark.parametrize(("text", "expected", "effect"), AXOLOTL.values(), ids=AXOLOTL)
def test_what_decides_in_a_file_of_axolotl(text, expected, effect):
    reading = read([write("axolotl.yml", f"base_model: llama-3-8b\n{text}\n")])
    assert {name: reading.fields.get(name) for name in expected} == expected
    assert reading.effect == effect


SET_BY_TRL = {"keeps_outputs": False, "use_cache": False, "trl_loss": True, "device": "cuda"}


@st.composite
def recipes(draw):
    """Recipes that TRL's and Accelerate's files express completely."""
    optimizers = [name for name, spec in OPTIMIZERS.items() if spec.trainer and name != "adamw"]
    return Recipe(
        **SET_BY_TRL,
        optimizer=draw(st.sampled_from(optimizers)),
        precision=draw(st.sampled_from(("fp32", "bf16", "autocast", "fp16"))),
        batch=draw(st.integers(1, 64)),
        sequence=draw(st.integers(1, 1024)),
        accumulation=draw(st.integers(1, 9)),
        packed=draw(st.booleans()),
        clipping=draw(st.booleans()),
        checkpointing=draw(st.booleans()),
        attention=draw(st.sampled_from(("sdpa", "eager"))),
        lora=draw(st.sampled_from((0, 0, 4, 16))),
        ranks=draw(st.sampled_from((1, 2, 8))),
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(recipes(), st.sampled_from((0, 2, 3)))
def test_what_is_written_for_trl_and_accelerate_is_read_as_the_same_recipe(recipe, stage):
    is_of_bitsandbytes = OPTIMIZERS[recipe.optimizer].path.startswith("bitsandbytes")
    if recipe.ranks > 1 and not is_of_bitsandbytes and recipe.precision != "fp16":
        recipe = replace(recipe, zero_stage=stage)
    text = emit("trl", "gpt2-small", recipe)
    assert not text.startswith(NO_SETTING)
    write("trl.yaml", text)
    write("accelerate.yaml", emit("accelerate", "gpt2-small", recipe))
    assert Recipe(**read(["trl.yaml", "accelerate.yaml"]).override({}).fields) == recipe


def test_what_a_file_says_that_it_leaves_out_is_not_dropped():
    text = emit("trl", "gpt2-small", Recipe(optimizer="adamw-fused", checkpointing=True, segments=3))
    assert text.startswith(NO_SETTING)
    with pytest.raises(CourseError, match="trl.yaml:1 says what this file leaves out"):
        read([write("trl.yaml", text)])


def test_a_name_on_the_hub_is_found_in_the_cache_or_refused(tmp_path):
    with pytest.raises(CourseError, match="HF_HUB_OFFLINE") as refusal:
        read(["HuggingFaceTB/SmolLM2-135M"])
    assert "mean" not in str(refusal.value)
    for name in ("meta-llama/Llama-3.1-8", "meta-llama/Llama-3.1-8B-Instruct"):
        with pytest.raises(CourseError, match="did you mean llama-3.1-8b"):
            read([name])
    folder = tmp_path / "cache/hub/models--HuggingFaceTB--SmolLM2-135M"
    (folder / "snapshots/abc").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs/main").write_text("abc")
    (folder / "snapshots/abc/config.json").write_text('{"model_type": "llama", "torch_dtype": "bfloat16"}')
    assert read(["HuggingFaceTB/SmolLM2-135M"]).model == str(folder / "snapshots/abc/config.json")
    model = "AutoModelForCausalLM.from_pretrained('HuggingFaceTB/SmolLM2-135M')"
    write("train.py", f"TrainingArguments('o')\nm = {model}\nLoraConfig()\n")
    reading = read(["train.py"])
    assert values(reading, "precision", "lora", "lora_targets") == ["bf16", 8, ("q_proj", "v_proj")]


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (HTTPError("url", 401, "Unauthorized", {}, None), "gated, private or not on the Hub"),
        (HTTPError("url", 404, "Not Found", {}, None), "no config.json"),
        (URLError("Name or service not known"), "did not answer in 3 s"),
    ],
)
def test_what_the_hub_refuses_is_one_sentence(error, message, monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE")

    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(hub, "urlopen", refuse)
    with pytest.raises(CourseError, match=message):
        read(["someone/something"])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "max_length: [1", "no YAML that can be read.*line"),
        ("a.yaml", "- 1\n- 2\n", "no keys"),
        ("a.yaml", "", "no keys"),
        ("a.yaml", "colour: blue\n", "no key by which"),
        ("a.yaml", f"max_length: many\n{MODEL}", "a.yaml:1: max_length must be a number"),
        ("a.yaml", f"max_length: 0\n{MODEL}", "whole number from 1 on"),
        ("a.yaml", f"packing: perhaps\n{MODEL}", "true or false"),
        ("a.yaml", "per_device_train_batchsize: 2\nmax_length: 8\n", "did you mean per_device_train_batch_size"),
        ("a.yaml", f"stage: sft\n{MODEL}", "does not train"),
        ("a.yaml", f"{MODEL}bf16: true\nfp16: true\n", "exclude each other"),
        ("a.json", "{", "no JSON that can be read"),
        ("a.json", "[]", "no keys"),
        ("a.py", "def f(:\n", "no Python that can be read .line 1"),
        ("a.py", "print(1)\n", "a.py:FUNCTION"),
        ("a.py", "\x00", "no Python"),
    ],
)
def test_a_file_that_is_none_is_refused_in_a_sentence(name, text, message):
    with pytest.raises(CourseError, match=message):
        read([write(name, text)])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "starts no training"),
        ("make train", "starts no training"),
        ("accelerate config", "starts no training"),
        ("accelerate launch", "names nothing to run"),
        ("trl --config a", "names nothing to run"),
        ("python missing.py", "There is no file missing.py"),
        ("accelerate launch -m package.train", "is a module that is not read"),
        ("python 'train.py", "cannot be taken apart"),
    ],
)
def test_a_launch_line_that_is_none_is_refused_in_a_sentence(line, message):
    with pytest.raises(CourseError, match=message):
        read([], [line])


@pytest.mark.slow
def test_the_command_says_first_what_is_not_counted_and_last_each_value_s_origin(capsys):
    sizes = {"n_embd": 32, "n_head": 2, "n_layer": 1, "vocab_size": 64}
    write("config.json", json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **sizes}))
    model = "model_name_or_path: config.json\n"
    write("trl.yaml", f"{model}per_device_train_batch_size: 1\nmax_length: 64\nuse_liger_kernel: true\n")
    assert main(["plan", "trl.yaml", "--memory", "24GB"]) == 2
    output = capsys.readouterr().out
    assert output.startswith("unknown: use liger kernel (trl.yaml:4)")
    assert ": fits" in output.splitlines()[0]
    assert "batch=1 " in output
    assert "trl.yaml:2" in output
    line = ["trl", "sft", "--config", "trl.yaml", "--use_liger_kernel", "no"]
    assert main(["plan", "--memory", "24GB", "--ranks", "1", "--json", "--", *line]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["provenance"]["sequence"] == "trl.yaml:3"
    assert answer["unmodeled"] == {}
    assert answer["verdict"] == "fits"


def test_lengths_come_from_what_people_have(tmp_path):
    (tmp_path / "lengths.txt").write_text("3\n17\n5\n")
    (tmp_path / "data.jsonl").write_text('{"input_ids": [1, 2, 3]}\n{"length": 17}\n\n{"length": 5}\n')
    Dataset.from_dict({"input_ids": [[1] * n for n in (3, 17, 5)]}).save_to_disk(tmp_path / "saved")
    for name in ("lengths.txt", "data.jsonl", "saved"):
        assert sorted(lengths_of(tmp_path / name)) == [3, 5, 17], name
