"""What `--emit` writes, read by the parsers, the shell and the libraries for which it is written."""

import re
import shlex
import subprocess
from argparse import ArgumentParser
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest
import torch
import yaml
from datasets import Dataset
from llamas import RECIPE, llama
from torch import nn
from torch.utils._pytree import tree_leaves

from course_utils import cli, data, hardware, models
from course_utils.cli import train
from course_utils.errors import CourseError
from course_utils.memory import Recipe
from course_utils.memory.planning.command import OWN_LOOP_CALLS
from course_utils.memory.planning.emit import emit, form_for
from course_utils.memory.step.recipe import OPTIMIZERS, PRECISIONS
from course_utils.optim import hidden_matrices
from course_utils.script.job import BatchSplit

PLAIN = Recipe("adamw-foreach", batch=4, sequence=256, accumulation=2, device="cuda")
EVERYTHING = replace(
    PLAIN, ranks=16, zero_stage=3, replicas=2, clipping=True, checkpointing=True, chunked_loss=512, packed=True, lora=8,
    compiled=True, precision="autocast",
)  # fmt: skip
ODD = 'it\'s a "model"; $HOME `here`'


def flags_of(argv: list[str]) -> dict[str, str]:
    """Each flag of a command with the one word after it, or with an empty text."""
    options, flag = {}, ""
    for word in argv:
        if word.startswith("--"):
            options[flag := word] = ""
        else:
            assert options[flag] == "", f"{word} belongs to no flag"
            options[flag] = word
    return options


def train_flags(text: str) -> dict[str, str]:
    """The flags of the one `course train` in a text, whose lines a shell may continue."""
    (command,) = re.findall(r"(?:course|course_utils\.cli) train (.+)", text.replace("\\\n", " "))
    return flags_of(shlex.split(command.removesuffix(" &")))


@pytest.mark.parametrize(
    ("recipe", "strategy"),
    [
        (PLAIN, "none"),
        (replace(PLAIN, ranks=4), "ddp"),
        (replace(PLAIN, ranks=4, zero_stage=1), "zero1"),
        (replace(PLAIN, ranks=4, zero_stage=3), "fsdp2"),
        (replace(PLAIN, ranks=4, zero_stage=3, replicas=2), "hsdp"),
    ],
)
def test_a_recipe_is_a_strategy_and_a_batch_of_all_ranks(recipe, strategy):
    job = train_flags(emit("train", "gpt2", recipe))
    assert (job["--model"], job["--strategy"], job["--optimizer"]) == ("gpt2", strategy, "adamw-foreach")
    assert (job["--batch"], job["--micro-batch"]) == (str(8 * recipe.ranks), "4")
    assert job.get("--ranks") == (str(recipe.ranks) if recipe.ranks > 1 else None)
    assert job.get("--replicas") == (str(recipe.replicas) if recipe.replicas > 1 else None)


@pytest.mark.parametrize("kind", ["torchrun", "slurm"])
def test_every_kind_starts_the_same_training(kind):
    expected = train_flags(emit("train", ODD, EVERYTHING))
    assert expected.pop("--ranks") == "16"
    assert expected["--model"] == ODD
    assert {"--clipping", "--checkpointing", "--packed", "--compile"} < set(expected)
    assert (expected["--lora"], expected["--chunked-loss"]) == ("8", "512")
    assert train_flags(emit(kind, ODD, EVERYTHING, nodes=2)) == expected


def test_course_train_takes_its_command():
    for recipe in (PLAIN, EVERYTHING):
        arguments = cli.make_parser().parse_args(shlex.split(emit("train", "gpt2", recipe), comments=True)[1:])
        split = BatchSplit(train.job_from(arguments), recipe.ranks)
        assert (split.micro_batch, split.accumulation) == (recipe.batch, recipe.accumulation)


@pytest.mark.parametrize("kind", ["train", "torchrun", "slurm"])
@pytest.mark.parametrize(
    ("model", "weights"), [("llama-3.1-8B", "meta-llama/Llama-3.1-8B"), (ODD, "a name on the Hub")]
)
def test_every_kind_says_that_it_begins_from_random_weights_and_how_to_fine_tune(kind, model, weights):
    (remark,) = (line for line in emit(kind, model, PLAIN).splitlines() if "random weights" in line)
    assert remark.strip().startswith("#")
    assert f"add --weights and {weights}, or a folder" in remark


def test_what_trl_has_a_setting_for_is_sent_there():
    refused = {
        "quantized": replace(PLAIN, lora=8, quantized="nf4"),
        "in_backward": replace(PLAIN, accumulation=1, in_backward=True),
        "4 bits": replace(PLAIN, optimizer="adamw4bit"),
        "two, and one of them": replace(PLAIN, device="cuda", offload_activations=True, offload=True),
        "no optimizer of TRL's": replace(PLAIN, device="cuda", offload_activations=True, optimizer="adafactor"),
    }
    offers_trl = {}
    for name, recipe in refused.items():
        with pytest.raises(CourseError) as error:
            emit("train", "llama-3.1-8b", recipe)
        offers_trl[name] = "--emit trl" in str(error.value)
    assert [name for name, is_sent in offers_trl.items() if is_sent] == ["quantized", "4 bits"]
    with pytest.raises(CourseError, match="save_on_cpu and torch.distributed.fsdp.CPUOffloadPolicy"):
        emit("train", "llama-3.1-8b", refused["two, and one of them"])
    assert "load_in_4bit: true" in emit("trl", "llama-3.1-8b", refused["quantized"])


@pytest.mark.parametrize(
    ("fields", "kind"),
    [({"checkpointing": True}, "train"), ({"quantized": "nf4", "lora": 8}, "trl"), ({"in_backward": True}, "own loop"),
     ({"optimizer": "adamw4bit"}, "trl"), ({"frozen": ("wte",)}, "own loop")],
)  # fmt: skip
def test_a_recipe_is_told_the_kind_that_says_all_of_it(fields, kind):
    recipe = replace(PLAIN, **{"accumulation": 1, **fields})
    assert form_for(recipe) == kind
    if kind == "own loop":
        (field,) = fields
        assert f"# No setting: {field} is" in emit("trl", "gpt2", recipe)


def test_who_keeps_the_logits_in_the_plan_is_told_that_course_train_does_not():
    assert "--no-keeps-outputs" in emit("train", "gpt2", PLAIN)
    assert "--no-keeps-outputs" not in emit("train", "gpt2", replace(PLAIN, keeps_outputs=False))


def test_accelerates_file_names_all_that_it_leaves_to_the_script():
    recipe = replace(PLAIN, checkpointing=True, optimizer="adamw8bit", lora=8, quantized="nf4")
    command = emit("accelerate", "gpt2", recipe).splitlines()[-1]
    for setting in ("batch=", "sequence=", "optimizer=adamw8bit", "checkpointing=True", "lora=8", "quantized=nf4"):
        assert setting in command
    sharded = emit("accelerate", "gpt2", replace(PLAIN, checkpointing=True, ranks=4, zero_stage=3)).splitlines()
    assert "  fsdp_activation_checkpointing: true" in sharded
    assert "checkpointing" not in sharded[-1], "FSDP's settings hold it"


def test_trl_is_given_the_folder_of_a_configuration_and_told_to_need_weights(tmp_path):
    file = tmp_path / "config.json"
    file.write_text("{}")
    text = emit("trl", str(file), PLAIN)
    assert f"model_name_or_path: {tmp_path}\n" in text
    assert text.startswith("# trl sft --config")
    assert "trained weights" in text
    assert "adapters in bfloat16" in emit("trl", "gpt2", replace(PLAIN, lora=8, quantized="nf4"))
    assert "adapters in bfloat16" not in text


def test_slurms_file_asks_for_every_file_that_its_command_reads(tmp_path, monkeypatch):
    file = tmp_path / "config.json"
    file.write_text("{}")
    text = emit("slurm", str(file), PLAIN)
    assert f"with text.txt and config.json (a copy of {file}) in it" in text
    assert train_flags(text)["--model"] == "config.json", "it is read where the job runs"
    monkeypatch.chdir(tmp_path)
    assert "with text.txt and config.json in it" in emit("slurm", "config.json", PLAIN)
    assert "with text.txt in it" in emit("slurm", "gpt2", PLAIN)


def test_slurms_file_takes_the_tokenizer_along_that_training_here_would_use(tmp_path, monkeypatch):
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (folder / name).write_text("{}")
    for model in (folder, folder / "config.json"):
        text = emit("slurm", str(model), PLAIN)
        assert f"with text.txt and mine (a copy of {folder}) in it" in text
        assert train_flags(text)["--model"] == "mine"
        assert "# Tokens are those of the tokenizer in mine." in text
    monkeypatch.chdir(tmp_path)
    assert train_flags(emit("slurm", "mine/config.json", PLAIN))["--model"] == "mine"
    monkeypatch.chdir(folder)
    text = emit("slurm", "config.json", PLAIN)
    assert "with text.txt and config.json with its tokenizer in it" in text
    assert "# Tokens are those of the tokenizer in mine." in text
    (folder / "tokenizer.json").unlink()
    assert "# Tokens are bytes" in emit("slurm", "config.json", PLAIN)
    assert "# Tokens are bytes" in emit("train", "gpt2", PLAIN)


def test_trls_file_says_who_starts_the_ranks_that_it_has_no_setting_for():
    assert "Its 4 ranks are started" in emit("trl", "gpt2", replace(PLAIN, ranks=4, zero_stage=3))
    assert "ranks" not in emit("trl", "gpt2", PLAIN)


def test_trl_is_not_given_what_its_scaler_cannot_scale():
    with pytest.raises(CourseError, match="adapters on 4-bit weights in bfloat16"):
        emit("trl", "gpt2", replace(PLAIN, lora=8, quantized="nf4", precision="fp16"))


def test_what_course_train_has_no_flag_for_is_refused():
    odd = {
        "attention": "eager", "in_backward": True, "offload_activations": True, "saved_on_disk": True, "frozen": ("wte",),
        "galore": 64, "teacher": "gpt2-medium", "zero_grad": "never", "label_smoothing": 0.1, "trl_loss": True, "eval_batch": 8,
        "offload": True,
    }  # fmt: skip
    recipes = {name: replace(PLAIN, **{"accumulation": 1, name: value}) for name, value in odd.items()}
    adapters = {"lora_targets": ("q_proj",), "lora_dropout": 0.1, "modules_to_save": ("lm_head",), "quantized": "nf4"}
    recipes |= {name: replace(PLAIN, **{"lora": 8, name: value}) for name, value in adapters.items()}
    recipes["segments"] = replace(PLAIN, checkpointing=True, segments=3)
    recipes["context_parallel"] = replace(PLAIN, ranks=2, context_parallel=2)
    assert {*recipes, "eval_logits"} == set(OWN_LOOP_CALLS)
    for (name, recipe), kind in product(recipes.items(), ("train", "torchrun", "slurm")):
        refusal = f"no flag for {name}=.*loop of your own with {re.escape(OWN_LOOP_CALLS[name])}"
        with pytest.raises(CourseError, match=refusal):
            emit(kind, "gpt2", recipe)
    for optimizer in ("adamw4bit", lambda parameters: None):
        with pytest.raises(CourseError, match="takes an optimizer by its name"):
            emit("train", "gpt2", replace(PLAIN, optimizer=optimizer))
    with pytest.raises(CourseError, match="no flag for precision='bf16-masters'"):
        emit("train", "gpt2", replace(PLAIN, precision="bf16-masters"))
    with pytest.raises(CourseError, match="take zero_stage=3, zero_stage=1, or DeepSpeed"):
        emit("train", "gpt2", replace(PLAIN, ranks=2, zero_stage=2))


def test_what_a_loop_of_ones_own_is_sent_to_is_there():
    for name in OWN_LOOP_CALLS.values():
        if " " not in name and "(" not in name:
            module, _, attribute = name.rpartition(".")
            ours = module.split(".")[0] in ("training", "techniques", "optim", "distributed")
            assert hasattr(import_module(f"course_utils.{module}" if ours else module), attribute), name


def test_torchrun_reads_its_command():
    from torch.distributed.run import config_from_args, parse_args

    argv = shlex.split(emit("torchrun", "gpt2", replace(PLAIN, ranks=4)), comments=True)
    parsed = parse_args(argv[1:])
    assert (parsed.standalone, parsed.nproc_per_node, parsed.module) == (True, "4", True)
    text = emit("torchrun", "gpt2", EVERYTHING, nodes=2)
    argv = shlex.split(text, comments=True)
    assert argv[:2] == ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1", "torchrun"]
    config, _, script = config_from_args(parse_args(argv[2:]))
    assert (config.min_nodes, config.max_nodes, config.nproc_per_node, config.max_restarts) == (2, 2, 8, 100)
    assert (config.rdzv_backend, config.rdzv_endpoint, config.run_id) == ("c10d", "HOST:29400", "ID")
    assert config.rdzv_configs["is_host"] == "0"
    assert script[script.index("-m") :][:3] == ["-m", "course_utils.cli", "train"]
    assert "python -m course_utils.script.store --host 0.0.0.0 --port 29400" in text


def shell_accepts(text: str) -> str:
    """The errors that bash finds in a text without running it."""
    return subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, timeout=20, check=False).stderr


def sbatch_options(text: str) -> dict[str, str]:
    return dict(re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", text, re.MULTILINE))


def test_bash_and_sbatch_know_every_line_of_a_slurm_file():
    listed = (Path(__file__).parent / "sbatch_options.txt").read_text(encoding="utf-8").splitlines()
    text = emit("slurm", ODD, EVERYTHING, nodes=2)
    options = sbatch_options(text)
    assert len(options) == len(re.findall(r"^#SBATCH", text, re.MULTILINE))
    assert set(options) <= set(listed)
    assert (options["nodes"], options["ntasks-per-node"], options["gpus-per-node"]) == ("2", "1", "8")
    assert re.fullmatch(r"B:USR1@\d+", options["signal"])
    assert shell_accepts(text) == ""
    assert shell_accepts(text.replace('wait "$!"', 'wait "$!')) != ""
    commands = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    # sbatch reads no option after a command.
    assert text.index("#SBATCH --signal") < text.index(commands.splitlines()[0])
    assert "gpus-per-node" not in sbatch_options(emit("slurm", "gpt2", replace(PLAIN, device="cpu")))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_what_is_emitted_is_taken(optimizer, tmp_path):
    """`course train` accepts the recipe, or `emit` refuses it before it waits in a queue."""
    parser = ArgumentParser()
    train.add_arguments(parser)
    for stage, precision in product((0, 1, 3), PRECISIONS):
        try:
            recipe = replace(PLAIN, optimizer=optimizer, zero_stage=stage, ranks=2 if stage else 1, precision=precision)
            text = emit("train", "gpt2", recipe)
        except CourseError:
            continue
        argv = shlex.split(text.splitlines()[-1])[2:]
        assert train.job_from(parser.parse_args([*argv, "--out", str(tmp_path)])).optimizer == optimizer


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
    package = re.search(r"^# This optimizer needs one more package: pip install (\w+)$", text, re.MULTILINE)
    options = {"optim": yaml.safe_load(text)["optim"], "use_cpu": True}
    if package is None:
        Trainer.get_optimizer_cls_and_kwargs(TrainingArguments(str(tmp_path), **options))
    elif find_spec(package[1]) is None:
        arguments = TrainingArguments(str(tmp_path), optim_target_modules="all-linear", **options)
        with pytest.raises(ImportError, match=package[1]):
            Trainer.get_optimizer_cls_and_kwargs(arguments, nn.Linear(1, 1))
    assert bool(package) is (changes["optimizer"] != "adamw8bit")


def test_what_trl_does_unlike_the_plan_is_said_and_true(tmp_path):
    """One step of TRL's own trainer: no tensor as large as the logits, and an embedding's averages in 32 bits."""
    trl = pytest.importorskip("trl", minversion="1.16")  # the version that the file names
    pytest.importorskip("bitsandbytes")
    vocabulary, tokens = 50_000, 64
    model = models.from_configuration(llama(16, 1, vocabulary))
    texts = Dataset.from_dict({"input_ids": [list(range(tokens))] * 2})
    options = {"use_cpu": True, "bf16": False, "report_to": "none", "max_steps": 1, "per_device_train_batch_size": 1}
    arguments = trl.SFTConfig(str(tmp_path), optim="adamw_bnb_8bit", max_length=tokens, save_strategy="no", **options)
    tokenizer = data.tokenizer_for(data.load_functions(), 500)
    trainer = trl.SFTTrainer(model, arguments, train_dataset=texts, processing_class=tokenizer)
    with LargestTensor() as largest:
        trainer.train()
    assert 16 * vocabulary <= largest.elements < (tokens - 1) * vocabulary, (
        "the embedding's gradient is, and the logits are not"
    )
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


class LargestTensor(hardware.Watch):
    """The elements of the largest tensor that an operator returned."""

    elements = 0

    def note(self, function, args, kwargs, result):
        sizes = [tensor.numel() for tensor in tree_leaves(result) if isinstance(tensor, torch.Tensor)]
        self.elements = max([self.elements, *sizes])


@pytest.mark.parametrize("kind", ["accelerate", "trl"])
def test_a_teacher_is_a_remark_and_so_is_galore_unless_trl_makes_it(kind):
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
