"""A recipe in the form in which it is used: as settings of a library, as a command, as a file for Slurm."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import yaml

from course_utils.errors import CourseError, suggest
from course_utils.memory.planning.command import OWN_LOOP_CALLS, slurm_file, torchrun_command, train_command, weights_of
from course_utils.memory.step.recipe import OPTIMIZERS, Recipe, plain_recipe

_REQUIRED_FIELDS = {"batch", "accumulation", "sequence", "packed", "checkpointing", "offload_activations", "attention"}
# Fields that `_trl_settings` writes itself.
_FIELDS_WITH_WRITERS = {"lora", "lora_targets", "lora_dropout", "quantized", "double_quantization"}
# Fields on which another line has a remark or a setting.
_FIELDS_WITH_REMARKS = ("teacher", "galore", "trl_loss")
NO_SETTING = "# No setting:"
_TRL_HEADER = (
    "# trl sft --config THIS-FILE --dataset_name YOUR-DATA",
    "# It fine-tunes: model_name_or_path is a folder with trained weights and their tokenizer, or a name on the Hub.",
)
_TRL_ADAPTERS = (
    "# TRL keeps adapters in bfloat16, the plan in float32, as PEFT prepares them: activations may be smaller here."
)
_TRL_LOSS = "# TRL 1.16 computes the loss by pieces of its own and never holds all logits: {}."
_TRL_LOGITS = "the plan counts them, so its peak may be too high here"
_TRL_PACKAGES = {"adamw_torch_4bit": "torchao", "galore_adamw": "galore_torch"}
_TRL_8BIT = (
    "# The Trainer keeps the 8-bit optimizer's averages of an embedding in 32 bits, the plan in 8: 6 bytes more for each of "
    "its numbers."
)
_MIXED_PRECISIONS = {"fp32": "no", "bf16": "no", "bf16-masters": "no", "autocast": "bf16", "fp16": "fp16"}


def emit(form: str, model: str, recipe: Recipe, nodes: int = 1) -> str:
    """The recipe as `form`.

    - `accelerate`, `trl`: settings, for `accelerate launch --config_file` and for `trl sft --config`. The first lines are remarks
      on fields for which the library has no setting.
    - `train`, `torchrun`: the command `course train` for one machine, and the one that each of `nodes` nodes runs.
    - `slurm`: a file that starts that command on `nodes` nodes; its first lines say what to fill in.

    All `ranks` of the recipe are shared out evenly among the nodes. Raises `CourseError` for another form, and for a recipe that
    cannot be written as this form.
    """
    require_form(form)
    if nodes != 1 and form in (*_SETTINGS, "train"):
        raise CourseError(f"{form} is for one machine; for {nodes} nodes choose torchrun or slurm.")
    if form in _SETTINGS:
        return _add_remarks(form, model, recipe)
    if form == "train":
        try:
            return train_command(model, recipe)
        except CourseError as error:
            if _says_all("trl", recipe):
                raise CourseError(f"{str(error).removesuffix('.')}, or take --emit trl.") from None
            raise
    if form == "torchrun":
        return torchrun_command(model, recipe, nodes)
    return slurm_file(model, recipe, nodes)


def require_form(form: str) -> None:
    """Raise `CourseError` unless `form` is one of `FORMATS`."""
    if form not in FORMATS:
        raise CourseError(f"A recipe cannot be written as {form!r}; {suggest(form, FORMATS)}")


def form_for(recipe: Recipe) -> str:
    """The form that can express all of a recipe for one machine: `train`, else `trl`; `own loop` if neither can."""
    return next((form for form in ("train", "trl") if _says_all(form, recipe)), "own loop")


def _says_all(form: str, recipe: Recipe) -> bool:
    with suppress(CourseError):
        return NO_SETTING not in emit(form, "gpt2", recipe)
    return False


def _add_remarks(form: str, model: str, recipe: Recipe) -> str:
    if recipe.context_parallel > 1:
        raise CourseError(f"{form} has no setting for attention on this ring; take no context_parallel.")
    pieces = f"the loss by {recipe.chunked_loss} tokens at a time"
    remarks = {
        f"{pieces} is techniques.LossWithGradients": recipe.chunked_loss and form != "trl",
        f"the loss beside the teacher {recipe.teacher} is techniques.distillation_loss": recipe.teacher,
        f"GaLore of rank {recipe.galore} is optim.GaLore of the hidden matrices": recipe.galore and form != "trl",
    }
    if form == "trl":
        for field in fields(recipe):
            has_key = field.metadata["keys"].keys() & {"trainer", "trl"}
            if field.name in OWN_LOOP_CALLS and not has_key and field.name not in _FIELDS_WITH_REMARKS:
                remarks[f"{field.name} is {OWN_LOOP_CALLS[field.name]}"] = getattr(recipe, field.name) != field.default
    lines = [f"{NO_SETTING} {remark} in a loop of your own." for remark, applies in remarks.items() if applies]
    return "\n".join([*lines, _SETTINGS[form](model, recipe)])


def _accelerate_settings(model: str, recipe: Recipe) -> str:
    distributed_type = "FSDP" if recipe.zero_stage > 1 else "MULTI_GPU"
    if recipe.ranks == 1:
        distributed_type = "NO"
    elif recipe.device == "cpu":
        distributed_type = "MULTI_CPU"
    settings = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": distributed_type,
        "mixed_precision": _MIXED_PRECISIONS[recipe.precision],
        "num_machines": 1,
        "num_processes": recipe.ranks,
        "machine_rank": 0,
        "use_cpu": recipe.device == "cpu",
    }
    if recipe.compiled:
        settings["dynamo_config"] = {"dynamo_backend": "INDUCTOR"}
    if distributed_type == "FSDP":
        settings["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": recipe.zero_stage == 3,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            **_pick_keys(recipe, ("accelerate",), ("checkpointing", "offload")),
        }
    return f"{yaml.safe_dump(settings, sort_keys=False)}# {_describe_script(recipe, set(settings))}"


def _describe_script(recipe: Recipe, settings: set[str]) -> str:
    """Remarks on fields that the launched script must set, since Accelerate's file has no keys for them."""
    names = {"optimizer", "batch", "sequence", "accumulation", *plain_recipe(recipe)}
    names -= {"ranks", "device", "keeps_outputs", "chunked_loss", "teacher", "galore"}
    if "dynamo_config" in settings:
        names -= {"compiled"}
    if "fsdp_config" in settings:
        names -= {"zero_stage", "offload", "checkpointing"}
    if _MIXED_PRECISIONS[recipe.precision] != "no":
        names -= {"precision"}
    values = (f"{name}={value}" for name, value in vars(recipe).items() if name in names)
    return f"For the script to set: {', '.join(values)}."


def _trl_settings(model: str, recipe: Recipe) -> str:
    names = {name: spec.trainer for name, spec in OPTIMIZERS.items() if spec.trainer}
    if recipe.optimizer not in names:
        raise CourseError(f"Trainer has no name for {recipe.optimizer!r}; choose one of {', '.join(names)}.")
    if recipe.quantized and recipe.precision == "fp16":
        raise CourseError(
            "TRL keeps adapters on 4-bit weights in bfloat16, and fp16's scaler takes no gradients of these; take autocast or "
            "bf16, or leave quantized out."
        )
    file = Path(model)
    settings = {
        "model_name_or_path": weights_of(model) or (str(file.parent) if file.suffix == ".json" else model),
        "output_dir": "runs",
        **_pick_keys(recipe, ("trainer", "trl"), _REQUIRED_FIELDS),
        "optim": names[recipe.optimizer],
        "bf16": recipe.precision == "autocast",
        "fp16": recipe.precision == "fp16",
        "dtype": "bfloat16" if recipe.precision.startswith("bf16") else "float32",
        "max_grad_norm": 1.0 if recipe.clipping else 0.0,
    }
    settings |= _pick_keys(recipe, ("trainer", "trl"), plain_recipe(recipe).keys() - _FIELDS_WITH_WRITERS)
    if recipe.eval_batch:
        settings["eval_strategy"] = "steps"
    if recipe.galore:  # of layers in blocks, which have numbers: not of the output layer
        settings |= {"optim": "galore_adamw", "optim_target_modules": r".*\.\d+\..*"}
        settings |= {"optim_args": f"rank={recipe.galore}, update_proj_gap=200, scale=0.25"}
    if recipe.lora:
        settings |= {"use_peft": True, "lora_r": recipe.lora, "lora_alpha": 2 * recipe.lora}
        settings["lora_target_modules"] = list(recipe.lora_targets) or "all-linear"
        settings["lora_dropout"] = recipe.lora_dropout
    if recipe.quantized:
        settings |= {"load_in_4bit": True, **_pick_keys(recipe, ("trl",), ("quantized", "double_quantization"))}
    remarks = _remark_on_trl(recipe, settings["optim"])
    return "\n".join([*_TRL_HEADER, *remarks, yaml.safe_dump(settings, sort_keys=False).rstrip()])


def _remark_on_trl(recipe: Recipe, optimizer: str) -> Iterator[str]:
    """Remarks on what TRL does otherwise than the plan, and needs besides; `optimizer` is its name for it."""
    if not (recipe.trl_loss or recipe.label_smoothing):
        yield _TRL_LOSS.format("other pieces than the plan's" if recipe.chunked_loss else _TRL_LOGITS)
    if recipe.quantized and recipe.upcast:
        yield _TRL_ADAPTERS
    if recipe.optimizer in ("adamw8bit", "paged_adamw_8bit") and not recipe.lora:
        yield _TRL_8BIT
    if package := _TRL_PACKAGES.get(optimizer):
        yield f"# This optimizer needs one more package: pip install {package}"
    if recipe.ranks > 1:
        ranks = f"# Its {recipe.ranks} ranks are started, and shared out"
        yield f"{ranks}, by accelerate launch with what --emit accelerate writes."


def _pick_keys(recipe: Recipe, tools: Iterable[str], names: Iterable[str]) -> dict:
    """The values of the fields with these names, by the key of one of `tools`; fields without a key are left out."""
    settings = {}
    for field in fields(recipe):
        keys = [field.metadata["keys"][tool] for tool in tools if tool in field.metadata["keys"]]
        settings |= {key: getattr(recipe, field.name) for key in keys if field.name in names}
    return settings


_SETTINGS = {"accelerate": _accelerate_settings, "trl": _trl_settings}
FORMATS = (*_SETTINGS, "train", "torchrun", "slurm")
