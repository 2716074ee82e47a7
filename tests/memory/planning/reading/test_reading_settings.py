"""Settings of scripts, which are read by their syntax trees, and of files that are none."""

from pathlib import Path

import pytest
from reading_files import MODEL, values, write

from course_utils.errors import CourseError
from course_utils.memory.planning.reading.read import read

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


def test_a_script_s_misspelled_argument_is_refused_and_its_trainer_s_are_read():
    write("train.py", "SFTConfig(output_dir='x', per_device_train_batchsize=4)\n")
    with pytest.raises(CourseError, match="did you mean per_device_train_batch_size"):
        read(["gpt2-small", "train.py"])
    write("train.py", "a = SFTConfig('x')\nSFTTrainer(model='gpt2-small', args=a, max_seq_length=64, packing=True)\n")
    assert values(read(["train.py"]), "sequence", "packed") == [64, True]


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


def test_a_pickle_is_refused_with_the_line_that_writes_its_json():
    Path("training_args.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(CourseError, match=r"pickle.*torch\.load\('training_args\.bin'.*to_json_string"):
        read(["training_args.bin"])


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
