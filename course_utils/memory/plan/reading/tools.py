"""Each tool's settings in TRL's words, to which all of them come, and what it takes where they are silent (`tools.yaml`)."""

from collections import ChainMap
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from course_utils.memory.plan.reading.settings import Settings, Value

_NO_BOUND = ("max_length", "max_grad_norm")
"""Keys whose null is a value of its own; of all others it is silence."""


@dataclass(frozen=True)
class Tool:
    """One that trains: the `key` of it, its `name` with its version, the `loop` that it runs (empty: one of the user's).

    `defaults` are by TRL's words, `rename` has those for its own, and `known_by` are keys that a file of no other tool has.
    """

    key: str
    name: str
    known_by: tuple[str, ...]
    defaults: Mapping[str, object]
    rename: Mapping[str, str]
    loop: str = ""

    def default(self, key: str) -> Value | None:
        """The value of an absent key; None where this tool has none."""
        return Value(self.defaults[key], f"default of {self.name}") if key in self.defaults else None

    def translate(self, settings: Settings) -> Settings:
        """Its settings in TRL's words."""
        found = {self.rename.get(key, key): value for key, value in settings.items()}
        found = {key: value for key, value in found.items() if value.value is not None or key in _NO_BOUND}
        return _SPECIAL.get(self.key, _from_trainer)(found, self)


@dataclass(frozen=True)
class Tables:
    """What `tools.yaml` holds: the tools, what is not modeled by key, Trainer's optimizers, and peft's layers by family."""

    tools: dict[str, Tool]
    unmodelled: dict[str, str]
    optimizers: dict[str, str]
    targets: dict[str, tuple[str, ...]]


@cache
def tables() -> Tables:
    """The tables, read once."""
    text = Path(__file__).with_name("tools.yaml").read_text(encoding="utf-8")
    tools, unmodelled, optimizers, targets = yaml.load_all(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    trainer = tools["trainer"]
    for key, one in tools.items():
        if one.get("loop"):  # all of them are Trainers
            one["defaults"] = {**trainer["defaults"], **one["defaults"]}
            one["rename"] = {**trainer["rename"], **one.get("rename", {})}
        tools[key] = Tool(key, **one)
    return Tables(
        tools,
        {key: why for why, keys in unmodelled.items() for key in keys},
        optimizers,
        {family: tuple(names.split()) for names, families in targets.items() for family in families.split()},
    )


def kind_of(settings: Settings) -> Tool | None:
    """Whose file this is, by its keys; None where it is nobody's that is known here."""
    tools = tables().tools
    order = ("axolotl", "llama-factory", "accelerate", "deepspeed", "trl", "trainer")
    return next((tools[key] for key in order if settings.keys() & set(tools[key].known_by)), None)


def _is(settings: Settings, key: str, *values: object) -> bool:
    """Whether a key has one of these values, or without any is on."""
    value = settings.get(key, Value(None, "")).value
    return value in values if values else bool(value)


def _from_trainer(found: Settings, tool: Tool) -> Settings:
    inits = found.get("model_init_kwargs")
    for key in ("dtype", "torch_dtype", "attn_implementation", "use_kernels"):
        if inits and isinstance(inits.value, dict) and key in inits.value:
            found.setdefault(tool.rename.get(key, key), Value(inits.value[key], inits.where))
    if (fsdp := found.get("fsdp")) and fsdp.value:
        words = fsdp.value if isinstance(fsdp.value, list) else str(fsdp.value).split()
        stage = 2 if "shard_grad_op" in words else 3 if fsdp.value is True or "full_shard" in words else 0
        found |= {"zero_stage": Value(stage, fsdp.where), "offload": Value("offload" in words, fsdp.where)}
        for key, new in (("offload_params", "offload"), ("activation_checkpointing", "gradient_checkpointing")):
            inner = found.get(f"fsdp_config.{key}") or found.get(f"fsdp_config.fsdp_{key}")
            found |= {new: inner} if inner and inner.value else {}
        if not any(_is(found, f"fsdp_config.{key}", 2, "2") for key in ("version", "fsdp_version")):
            found["fsdp1"] = fsdp
    inside = {key.removeprefix("deepspeed."): one for key, one in found.items() if key.startswith("deepspeed.")}
    return (tables().tools["deepspeed"].translate(inside) if inside else {}) | found


def _from_deepspeed(found: Settings, tool: Tool) -> Settings:
    found = {key: value for key, value in found.items() if value.value != "auto"}
    places = [found.get(f"zero_optimization.offload_{what}.device") for what in ("param", "optimizer")]
    place = next((one for one in [*places, found.get("offload_optimizer_device")] if one), None)
    if place is not None:
        found["offload"] = Value(place.value in ("cpu", "nvme"), place.where)
    if "optim" in found:
        found["optim"] = Value(str(found["optim"].value).lower(), found["optim"].where)
    if found.get("zero_stage"):
        found["deepspeed_shards"] = found["zero_stage"]
    words = (
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "max_grad_norm",
        "bf16",
        "fp16",
        "optim",
        "zero_stage",
    )
    words += ("offload", "deepspeed_shards", "tensor_parallel", "sequence_parallel_size", "pipeline")
    return {key: value for key, value in found.items() if key in words}


def _from_accelerate(found: Settings, tool: Tool) -> Settings:
    for key in list(found):  # what stands in fsdp_config or deepspeed_config is a flag of `accelerate launch` by itself
        outer, _, inner = key.partition(".")
        if outer in ("fsdp_config", "deepspeed_config") and inner:
            found.setdefault(tool.rename.get(inner, inner), found[key])
    kind = found.get("distributed_type", Value("", ""))
    if kind.value in ("NO", False):
        found.setdefault("ranks", Value(1, kind.where))
    if kind.value == "MULTI_CPU":
        found.setdefault("use_cpu", Value(True, kind.where))
    dynamo = found.get("dynamo_config.dynamo_backend") or found.get("dynamo_backend")
    if dynamo and str(dynamo.value).lower() not in ("no", "false"):
        found["torch_compile"] = Value(True, dynamo.where)
    if _is(found, "mixed_precision", "fp8"):
        found["fp8"] = found["mixed_precision"]
    words = {
        "ranks",
        "use_cpu",
        "torch_compile",
        "mixed_precision",
        "fp8",
        "gradient_accumulation_steps",
        "parallelism_config",
    }
    if kind.value == "FSDP" or _is(found, "use_fsdp"):
        words |= {"zero_stage", "offload", "gradient_checkpointing", "fsdp1", "hybrid_shard"}
        version, reshard = (
            found.get(key) or tool.default(key) for key in ("fsdp_version", "fsdp_reshard_after_forward")
        )
        how = found.get("fsdp_sharding_strategy") or reshard
        stage = 2 if how.value in (False, "SHARD_GRAD_OP", "HYBRID_SHARD_ZERO2") or how.value == 2 else 3
        found["zero_stage"] = Value(0 if how.value == "NO_SHARD" else stage, how.where)
        found |= {"fsdp1": version} if str(version.value) != "2" else {}
        found |= {"hybrid_shard": how} if "HYBRID" in str(how.value) else {}
    elif kind.value == "DEEPSPEED" or _is(found, "use_deepspeed"):
        found |= _from_deepspeed(found, tool)
        words |= {"zero_stage", "offload", "deepspeed", "max_grad_norm", "deepspeed_shards"}
    return {key: value for key, value in found.items() if key in words or key.startswith("megatron_lm_config")}


def _from_llama_factory(found: Settings, tool: Tool) -> Settings:
    found, known = _from_trainer(found, tool), ChainMap(found, {key: tool.default(key) for key in tool.defaults})
    kind = known["finetuning_type"]
    found["use_peft"] = Value(kind.value == "lora", kind.where)
    if kind.value not in ("lora", "full"):
        found["other_method"] = kind
    if "disable_gradient_checkpointing" in found:
        off = found["disable_gradient_checkpointing"]
        found["gradient_checkpointing"] = Value(not off.value, off.where)
    if bits := found.get("quantization_bit"):
        fits = bits.value == 4 and _is(found, "quantization_method", None, "bnb", "bitsandbytes", "BNB")
        found["load_in_4bit" if fits else "other_quantization"] = Value(True, bits.where)
    if flash := found.get("attn_implementation"):
        named = {"auto": "sdpa", "disabled": "eager"}
        found["attn_implementation"] = Value(named.get(str(flash.value), flash.value), flash.where)
    found["dtype"] = Value("float32", f"as {tool.name} trains")
    for key, dtype in (("fp16", "float16"), ("bf16", "bfloat16"), ("pure_bf16", "bfloat16")):
        if _is(found, key) and (
            kind.value == "lora" or key == "pure_bf16"
        ):  # frozen weights lie in the products' dtype
            found["dtype"] = Value(dtype, found[key].where)
    if known["stage"].value not in ("sft", "pt"):
        found["rl"] = known["stage"]
    if _is(found, "use_galore"):
        rank = known["galore_rank"]
        found |= {
            "optim": Value("galore_adamw", found["use_galore"].where),
            "optim_args": Value(f"rank={rank.value}", rank.where),
        }
    return found


def _from_axolotl(found: Settings, tool: Tool) -> Settings:
    if _is(found, "fsdp_config"):
        found.setdefault("fsdp", Value("full_shard", found["fsdp_config"].where))
    found = _from_trainer(found, tool)
    if adapter := found.get("adapter"):
        found["use_peft"] = Value(adapter.value in ("lora", "qlora"), adapter.where)
        found |= {"other_method": adapter} if adapter.value not in ("lora", "qlora", "") else {}
    if _is(found, "lora_target_linear"):
        found["lora_target_modules"] = Value("all-linear", found["lora_target_linear"].where)
    if _is(found, "flex_attention"):
        found["attn_implementation"] = Value("flex_attention", found["flex_attention"].where)
    found["dtype"] = Value("float32", f"as {tool.name} trains")
    if not _is(found, "fp16"):
        found.setdefault("bf16", tool.default("bf16"))
    for key, dtype in (("fp16", "float16"), ("float16", "float16"), ("bf16", "bfloat16"), ("bfloat16", "bfloat16")):
        if _is(found, key):  # also where it says auto, on a card that has it
            found |= {key: Value(True, found[key].where), "dtype": Value(dtype, found[key].where)}
    if _is(found, "val_set_size"):
        batch = found.get("per_device_train_batch_size") or tool.default("per_device_train_batch_size")
        found.setdefault("per_device_eval_batch_size", batch)
        found.setdefault("eval_strategy", Value("steps", found["val_set_size"].where))
    kind = found.get("gradient_checkpointing", Value(False, ""))
    if isinstance(kind.value, str):  # unsloth, offload, offload_disk
        found |= {"gradient_checkpointing": Value(True, kind.where), "other_method": kind}
    return found


_SPECIAL = {
    "deepspeed": _from_deepspeed,
    "accelerate": _from_accelerate,
    "llama-factory": _from_llama_factory,
    "axolotl": _from_axolotl,
}
