"""The tables of six tools against what is installed, and files of LLaMA-Factory and axolotl."""

from dataclasses import MISSING, fields

import pytest
from reading_files import write

from course_utils.memory.planning.reading.read import read
from course_utils.memory.planning.reading.tools import PEFT_VERSION, tables


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


BASE = "model_name_or_path: llama-3-8b\nstage: sft\ndo_train: true\nper_device_train_batch_size: 1\n"

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
