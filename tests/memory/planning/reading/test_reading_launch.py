"""Launch lines: what they start on how many ranks, and what they say beside the files."""

import json

import pytest
from reading_files import MODEL, values, write

from course_utils.errors import CourseError
from course_utils.memory.planning.reading.read import read


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
