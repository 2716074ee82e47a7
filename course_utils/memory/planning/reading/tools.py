"""The translation of each tool's settings to TRL's keys, and the tools' defaults for absent ones (`tools.yaml`)."""

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

from course_utils.memory.planning.reading.settings import Settings, Value
from course_utils.memory.step.recipe import OPTIMIZERS

UNKNOWN, AT_LEAST = "unknown", "at least"
"""How to read the verdict if the plan does not count something; `UNKNOWN` outweighs `AT_LEAST`."""
PEFT_VERSION = "peft 0.21"
"""The version whose defaults hold where a script makes adapters or no file names their layers."""
# Keys for which null is a value; for all others it means that they are absent.
_NULLABLE_KEYS = ("max_length", "max_grad_norm")


@dataclass(frozen=True)
class Tool:
    """A tool whose files of settings can be read."""

    key: str
    name: str  # with its version
    known_by: tuple[str, ...]  # keys that a file of no other tool has
    defaults: Mapping[str, object]  # by TRL's keys
    rename: Mapping[str, str]  # TRL's keys by its own
    loop: str = ""  # the loop that it runs, of `recipe.LOOPS`; empty if the user writes it

    def default(self, key: str) -> Value | None:
        """The value of an absent key; None if this tool has no default for it."""
        return Value(self.defaults[key], f"default of {self.name}") if key in self.defaults else None

    def translate(self, settings: Settings) -> Settings:
        """The settings in TRL's keys."""
        renamed = {self.rename.get(key, key): value for key, value in settings.items()}
        renamed = {key: value for key, value in renamed.items() if value.value is not None or key in _NULLABLE_KEYS}
        return _TRANSLATIONS.get(self.key, _translate_trainer)(renamed, self)


class Unmodeled(NamedTuple):
    """Something that the plan does not count: its effect on the verdict (`UNKNOWN` or `AT_LEAST`), and the reason."""

    effect: str
    reason: str

    def said_by(self, origin: str) -> "Unmodeled":
        """The same with `origin`, where it is said, before the reason."""
        return self._replace(reason=f"{origin}: {self.reason}")

    def __str__(self):
        return f"{self.effect}: {self.reason}"


@dataclass(frozen=True)
class Tables:
    """The content of `tools.yaml`: tools, what is not modeled, optimizers' names, and peft's layers by family."""

    tools: dict[str, Tool]
    unmodeled: dict[str, Unmodeled]
    optimizers: dict[str, str]
    targets: dict[str, tuple[str, ...]]


@cache
def tables() -> Tables:
    """The content of `tools.yaml`, which is read once."""
    text = Path(__file__).with_name("tools.yaml").read_text(encoding="utf-8")
    tools, unmodeled, optimizers, targets = yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    trainer = tools["trainer"]
    for key, table in tools.items():
        if table.get("loop"):  # all of them are Trainers
            table["defaults"] = {**trainer["defaults"], **table["defaults"]}
            table["rename"] = {**trainer["rename"], **table.get("rename", {})}
        tools[key] = Tool(key, **table)
    reasons = [(effect, reason, keys) for effect, by_reason in unmodeled.items() for reason, keys in by_reason.items()]
    return Tables(
        tools,
        {key: Unmodeled(effect, reason) for effect, reason, keys in reasons for key in keys},
        {spec.trainer: name for name, spec in OPTIMIZERS.items()} | optimizers,
        {family: tuple(names.split()) for names, families in targets.items() for family in families.split()},
    )


def tool_of(settings: Settings) -> Tool | None:
    """The tool whose files have some of these keys; None if there is none."""
    tools = tables().tools
    order = ("axolotl", "llama-factory", "accelerate", "deepspeed", "trl", "trainer")
    return next((tools[key] for key in order if settings.keys() & set(tools[key].known_by)), None)


def _is_on(settings: Settings, key: str, *values: object) -> bool:
    """Whether the setting has one of `values`, or without `values` whether it is true."""
    value = settings.get(key, Value(None, "")).value
    return value in values if values else bool(value)


def _translate_trainer(settings: Settings, tool: Tool) -> Settings:
    inits = settings.get("model_init_kwargs")
    for key in ("dtype", "torch_dtype", "attn_implementation", "use_kernels"):
        if inits and isinstance(inits.value, dict) and key in inits.value:
            settings.setdefault(tool.rename.get(key, key), Value(inits.value[key], inits.origin))
    if (fsdp := settings.get("fsdp")) and fsdp.value:
        options = fsdp.value if isinstance(fsdp.value, list) else str(fsdp.value).split()
        stage = 3 if fsdp.value is True or "full_shard" in options else 0
        stage = 2 if "shard_grad_op" in options else stage
        settings |= {"zero_stage": Value(stage, fsdp.origin), "offload": Value("offload" in options, fsdp.origin)}
        for key, new in (("offload_params", "offload"), ("activation_checkpointing", "gradient_checkpointing")):
            inner = settings.get(f"fsdp_config.{key}") or settings.get(f"fsdp_config.fsdp_{key}")
            if inner and inner.value:
                settings[new] = inner
        if not any(_is_on(settings, f"fsdp_config.{key}", 2, "2") for key in ("version", "fsdp_version")):
            settings["fsdp1"] = fsdp
    prefix = "deepspeed."
    inner = {key.removeprefix(prefix): value for key, value in settings.items() if key.startswith(prefix)}
    return (tables().tools["deepspeed"].translate(inner) if inner else {}) | settings


def _translate_deepspeed(settings: Settings, tool: Tool) -> Settings:
    settings = {key: value for key, value in settings.items() if value.value != "auto"}
    prefix = "zero_optimization.offload"
    keys = (f"{prefix}_param.device", f"{prefix}_optimizer.device", "offload_optimizer_device")
    device = next((settings[key] for key in keys if settings.get(key)), None)
    if device is not None:
        settings["offload"] = Value(device.value in ("cpu", "nvme"), device.origin)
    if "optim" in settings:
        settings["optim"] = Value(str(settings["optim"].value).lower(), settings["optim"].origin)
    if settings.get("zero_stage"):
        settings["deepspeed_shards"] = settings["zero_stage"]
    names = {*tables().tools["deepspeed"].rename.values(), "gradient_accumulation_steps", "offload", "deepspeed_shards"}
    names |= {"tensor_parallel", "sequence_parallel_size", "pipeline"}
    return {key: value for key, value in settings.items() if key in names}


def _translate_accelerate(settings: Settings, tool: Tool) -> Settings:
    settings |= _flatten_configs(settings, tool)
    distributed_type = settings.get("distributed_type", Value("", ""))
    if distributed_type.value in ("NO", False):
        settings.setdefault("ranks", Value(1, distributed_type.origin))
    if distributed_type.value == "MULTI_CPU":
        settings.setdefault("use_cpu", Value(True, distributed_type.origin))
    dynamo = settings.get("dynamo_config.dynamo_backend") or settings.get("dynamo_backend")
    if dynamo and str(dynamo.value).lower() not in ("no", "false"):
        settings["torch_compile"] = Value(True, dynamo.origin)
    if _is_on(settings, "mixed_precision", "fp8"):
        settings["fp8"] = settings["mixed_precision"]
    names = {"ranks", "use_cpu", "torch_compile", "mixed_precision", "fp8"}
    names |= {"gradient_accumulation_steps", "parallelism_config"}
    if distributed_type.value == "FSDP" or _is_on(settings, "use_fsdp"):
        names |= {"zero_stage", "offload", "gradient_checkpointing", "fsdp1", "hybrid_shard"}
        settings |= _translate_fsdp(settings, tool)
    elif distributed_type.value == "DEEPSPEED" or _is_on(settings, "use_deepspeed"):
        settings |= _translate_deepspeed(settings, tool)
        names |= {"zero_stage", "offload", "deepspeed", "max_grad_norm", "deepspeed_shards"}
    return {key: value for key, value in settings.items() if key in names or key.startswith("megatron_lm_config")}


def _flatten_configs(settings: Settings, tool: Tool) -> Settings:
    """What stands in fsdp_config or deepspeed_config alone: each is a flag of `accelerate launch` by itself."""
    flat: Settings = {}
    for key, value in settings.items():
        outer, _, inner = key.partition(".")
        name = tool.rename.get(inner, inner)
        if outer in ("fsdp_config", "deepspeed_config") and inner and name not in settings:
            flat.setdefault(name, value)
    return flat


def _translate_fsdp(settings: Settings, tool: Tool) -> Settings:
    """The stage that stands for FSDP's strategy, and marks of its first version and of hybrid sharding."""
    version = settings.get("fsdp_version") or tool.default("fsdp_version")
    strategy = settings.get("fsdp_sharding_strategy") or settings.get("fsdp_reshard_after_forward")
    strategy = strategy or tool.default("fsdp_reshard_after_forward")
    stage = 2 if strategy.value in (2, False, "SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2") else 3
    translated = {"zero_stage": Value(0 if strategy.value == "NO_SHARD" else stage, strategy.origin)}
    if str(version.value) != "2":
        translated["fsdp1"] = version
    if "HYBRID" in str(strategy.value):
        translated["hybrid_shard"] = strategy
    return translated


def _translate_llama_factory(settings: Settings, tool: Tool) -> Settings:
    settings = _translate_trainer(settings, tool)
    values = ChainMap(settings, {key: tool.default(key) for key in tool.defaults})
    finetuning = values["finetuning_type"]
    settings["use_peft"] = Value(finetuning.value == "lora", finetuning.origin)
    if finetuning.value not in ("lora", "full"):
        settings["other_method"] = finetuning
    if "disable_gradient_checkpointing" in settings:
        off = settings["disable_gradient_checkpointing"]
        settings["gradient_checkpointing"] = Value(not off.value, off.origin)
    if bits := settings.get("quantization_bit"):
        is_4_bit = bits.value == 4 and _is_on(settings, "quantization_method", None, "bnb", "bitsandbytes", "BNB")
        settings["load_in_4bit" if is_4_bit else "other_quantization"] = Value(True, bits.origin)
    if flash := settings.get("attn_implementation"):
        method = {"auto": "sdpa", "disabled": "eager"}.get(str(flash.value), flash.value)
        settings["attn_implementation"] = Value(method, flash.origin)
    settings["dtype"] = Value("float32", f"as {tool.name} trains")
    for key, dtype in (("fp16", "float16"), ("bf16", "bfloat16"), ("pure_bf16", "bfloat16")):
        # Frozen weights lie in the products' dtype.
        if _is_on(settings, key) and (finetuning.value == "lora" or key == "pure_bf16"):
            settings["dtype"] = Value(dtype, settings[key].origin)
    if values["stage"].value not in ("sft", "pt"):
        settings["rl"] = values["stage"]
    if _is_on(settings, "use_galore"):
        rank = values["galore_rank"]
        settings["optim"] = Value("galore_adamw", settings["use_galore"].origin)
        settings["optim_args"] = Value(f"rank={rank.value}", rank.origin)
    return settings


def _translate_axolotl(settings: Settings, tool: Tool) -> Settings:
    if _is_on(settings, "fsdp_config"):
        settings.setdefault("fsdp", Value("full_shard", settings["fsdp_config"].origin))
    settings = _translate_trainer(settings, tool)
    if adapter := settings.get("adapter"):
        settings["use_peft"] = Value(adapter.value in ("lora", "qlora"), adapter.origin)
        if adapter.value not in ("lora", "qlora", ""):
            settings["other_method"] = adapter
    if _is_on(settings, "lora_target_linear"):
        settings["lora_target_modules"] = Value("all-linear", settings["lora_target_linear"].origin)
    if _is_on(settings, "flex_attention"):
        settings["attn_implementation"] = Value("flex_attention", settings["flex_attention"].origin)
    settings["dtype"] = Value("float32", f"as {tool.name} trains")
    if not _is_on(settings, "fp16"):
        settings.setdefault("bf16", tool.default("bf16"))
    for key, dtype in (("fp16", "float16"), ("float16", "float16"), ("bf16", "bfloat16"), ("bfloat16", "bfloat16")):
        if _is_on(settings, key):  # also where it says auto, on a card that has it
            settings |= {key: Value(True, settings[key].origin), "dtype": Value(dtype, settings[key].origin)}
    if _is_on(settings, "val_set_size"):
        batch = settings.get("per_device_train_batch_size") or tool.default("per_device_train_batch_size")
        settings.setdefault("per_device_eval_batch_size", batch)
        settings.setdefault("eval_strategy", Value("steps", settings["val_set_size"].origin))
    checkpointing = settings.get("gradient_checkpointing", Value(False, ""))
    if isinstance(checkpointing.value, str):  # unsloth, offload, offload_disk
        settings |= {"gradient_checkpointing": Value(True, checkpointing.origin), "other_method": checkpointing}
    return settings


_TRANSLATIONS = {
    "deepspeed": _translate_deepspeed,
    "accelerate": _translate_accelerate,
    "llama-factory": _translate_llama_factory,
    "axolotl": _translate_axolotl,
}
