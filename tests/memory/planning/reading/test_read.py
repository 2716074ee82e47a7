"""Files of settings, read as the recipe that they say; what a plan leaves out is said with its line."""

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reading_files import MODEL, values, write
from transformers import BertConfig, BertForSequenceClassification, BertForTokenClassification

from course_utils.cli import main
from course_utils.errors import CourseError
from course_utils.memory import Recipe
from course_utils.memory.formulas.trial import run_step
from course_utils.memory.planning.emit import NO_SETTING, emit
from course_utils.memory.planning.reading.read import read
from course_utils.memory.step.model import source_of
from course_utils.memory.step.recipe import LOOPS, OPTIMIZERS


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


def test_ranks_by_a_flag_decide_what_depends_on_them():
    write("ds.json", json.dumps({"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2}}))
    write("t.yaml", f"{MODEL}bf16: true\n")
    assert values(read(["t.yaml", "ds.json"], ranks=4), "precision", "zero_stage") == ["autocast", 2]
    with pytest.raises(CourseError, match="ds.json:1 shares the work out over ranks; say over how many with --ranks"):
        read(["gpt2-small", "ds.json"]).override({})


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


@pytest.mark.slow
def test_the_command_says_first_what_is_not_counted_and_last_each_value_s_origin(capsys):
    sizes = {"n_embd": 32, "n_head": 2, "n_layer": 1, "vocab_size": 64}
    write("config.json", json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **sizes}))
    model = "model_name_or_path: config.json\n"
    write("trl.yaml", f"{model}per_device_train_batch_size: 1\nmax_length: 64\nuse_liger_kernel: true\n")
    assert main(["plan", "trl.yaml", "--memory", "800MB"]) == 2
    output = capsys.readouterr().out
    assert output.startswith("unknown: use liger kernel (trl.yaml:4)")
    assert ": fits" in output.splitlines()[0]
    assert "batch=1 " in output
    assert "trl.yaml:2" in output
    line = ["trl", "sft", "--config", "trl.yaml", "--use_liger_kernel", "no"]
    assert main(["plan", "--memory", "800MB", "--ranks", "1", "--json", "--", *line]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["provenance"]["sequence"] == "trl.yaml:3"
    assert answer["unmodeled"] == {}
    assert answer["verdict"] == "fits"
