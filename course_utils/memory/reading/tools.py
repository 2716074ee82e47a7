"""What each tool takes where a file says nothing, and its words in those of TRL, which all of them come to."""

from collections.abc import Callable
from dataclasses import dataclass, field

from course_utils.memory.reading.settings import Settings, Value

AT_LEAST, UNKNOWN = "at least", "unknown"

_TRAINER = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "optim": "adamw_torch_fused",
    "gradient_checkpointing": False,
    "bf16": False,
    "fp16": False,
    "max_grad_norm": 1.0,
    "label_smoothing_factor": 0.0,
    "torch_compile": False,
    "use_cpu": False,
    "use_cache": False,
    "eval_strategy": "no",
    "per_device_eval_batch_size": 8,
}
_TRL = {"gradient_checkpointing": True, "max_length": 1024, "packing": False, "activation_offloading": False}
_TRL_COMMAND = {
    "dtype": "float32",
    "use_peft": False,
    "lora_r": 16,
    "load_in_4bit": False,
    "use_bnb_nested_quant": False,
}
_NO_ADAPTERS = {"use_peft": False, "lora_r": 8, "load_in_4bit": False, "use_bnb_nested_quant": False}
_SINCE_BF16 = {"bf16": True}  # where fp16 is not set


@dataclass(frozen=True)
class Tool:
    """One that trains: its `name` with its version, the `loop` that it runs, and the values that it takes where none are given."""

    name: str
    loop: str
    defaults: dict[str, object] = field(default_factory=dict)

    def default(self, key: str) -> Value | None:
        """The value of an absent key; None where this tool has none."""
        return Value(self.defaults[key], f"default of {self.name}") if key in self.defaults else None


TRAINER = Tool("Trainer 5.23", "trainer", {**_TRAINER, "dtype": "auto", **_NO_ADAPTERS})
TRL = Tool("TRL 1.16", "trl", {**_TRAINER, **_TRL, **_SINCE_BF16, **_TRL_COMMAND})
TRL_SCRIPT = Tool("TRL 1.16", "trl", {**_TRAINER, **_TRL, **_SINCE_BF16, **_NO_ADAPTERS, "dtype": "float32"})
LLAMA_FACTORY = Tool(
    "LLaMA-Factory at 00577a8",
    "trainer",
    {
        **_TRAINER,
        "gradient_checkpointing": True,
        "max_length": 2048,
        "packing": False,
        "use_peft": True,
        "lora_r": 8,
        "lora_target_modules": "all-linear",
        "load_in_4bit": False,
        "use_bnb_nested_quant": True,
    },
)
AXOLOTL = Tool(
    "axolotl at 002a637",
    "trainer",
    {
        **_TRAINER,
        **_NO_ADAPTERS,
        "per_device_train_batch_size": 1,
        "max_length": 512,
        "packing": False,
        "use_bnb_nested_quant": True,
    },
)
ACCELERATE = Tool("Accelerate 1.15", "")

_OTHER_KERNELS = f"{UNKNOWN}: its kernels keep other tensors than the plan's"
_OTHER_OPTIMIZER = f"{UNKNOWN}: its state is not the plan's"
_SPLIT = f"{UNKNOWN}: the plan does not cut a model or its rows in this way"
UNMODELLED = {
    **dict.fromkeys(
        (
            *(
                "use_liger_kernel",
                "enable_liger_kernel",
                "liger_kernel_config",
                "use_unsloth",
                "use_unsloth_gc",
                "unsloth",
            ),
            *("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "cut_cross_entropy", "use_v1_kernels", "plugins"),
            *(
                "liger_rms_norm",
                "liger_rope",
                "liger_glu_activation",
                "liger_fused_linear_cross_entropy",
                "use_kernels",
            ),
        ),
        _OTHER_KERNELS,
    ),
    **dict.fromkeys(("use_apollo", "use_badam", "use_adam_mini", "use_muon", "galore_layerwise"), _OTHER_OPTIMIZER),
    **dict.fromkeys(
        (
            *("tensor_parallel_size", "context_parallel_size", "sequence_parallel_degree", "sequence_parallel_size"),
            *("parallelism_config", "expert_parallel_size", "pipeline_parallel_size"),
        ),
        _SPLIT,
    ),
    **dict.fromkeys(("load_in_8bit", "gptq"), f"{UNKNOWN}: the plan has weights of 4, 16 and 32 bits"),
    **dict.fromkeys(("fp8", "fp8_config"), f"{UNKNOWN}: the plan has no 8-bit floats"),
    **dict.fromkeys(("use_dora", "peft_use_dora"), f"{AT_LEAST}: DoRA's magnitudes and norms are not counted"),
    **dict.fromkeys(
        ("resize_vocab", "add_tokens", "new_special_tokens_config"), f"{AT_LEAST}: added tokens are not counted"
    ),
    **dict.fromkeys(
        ("unfrozen_parameters", "lora_target_parameters"), f"{UNKNOWN}: what trains is chosen in another way"
    ),
    **dict.fromkeys(("shift_attn", "mixture_of_depths", "use_llama_pro"), f"{UNKNOWN}: it changes the model"),
    **dict.fromkeys(("ref_model", "reward_model", "use_vllm"), f"{AT_LEAST}: another model beside it is not counted"),
    "rl": f"{AT_LEAST}: a reference model or generation is not counted",
    "neftune_noise_alpha": f"{AT_LEAST}: the noise on the embeddings is not counted",
    "auto_find_batch_size": f"{UNKNOWN}: the batch is halved until it fits",
    "quantization_config": f"{UNKNOWN}: a quantization that is not written down here",
}
"""By key, whatever tool has it: how the verdict must be read where it is on, and why."""

_CLASSES = f"{UNKNOWN}: it changes what is kept in a way that the plan does not know"
UNMODELLED_NAMES = {
    **dict.fromkeys(
        ("FastLanguageModel", "FastModel", "AutoLigerKernelForCausalLM", "apply_liger_kernel_to_llama"), _OTHER_KERNELS
    ),
    **dict.fromkeys(
        (
            *(
                "IA3Config",
                "PrefixTuningConfig",
                "PromptTuningConfig",
                "PromptEncoderConfig",
                "AdaLoraConfig",
                "LoHaConfig",
            ),
            *("OFTConfig", "VeraConfig", "GPTQConfig", "AwqConfig", "HqqConfig", "TorchAoConfig", "QuantoConfig"),
        ),
        _CLASSES,
    ),
    **dict.fromkeys(
        (
            "DPOTrainer",
            "GRPOTrainer",
            "PPOTrainer",
            "KTOTrainer",
            "RLOOTrainer",
            "ORPOTrainer",
            "CPOTrainer",
            "RewardTrainer",
        ),
        f"{AT_LEAST}: a reference model, generation or pairs of answers are not counted",
    ),
    "requires_grad": f"{UNKNOWN}: the script freezes parameters itself; say which with --frozen",
    "requires_grad_": f"{UNKNOWN}: the script freezes parameters itself; say which with --frozen",
    "resize_token_embeddings": f"{AT_LEAST}: added tokens are not counted",
}
"""The same by a name that a script mentions."""

_ALIASES = {
    "evaluation_strategy": "eval_strategy",
    "max_seq_length": "max_length",
    "torch_dtype": "dtype",
    "no_cuda": "use_cpu",
    "activation_checkpointing": "gradient_checkpointing",
}


def from_trainer(settings: Settings) -> Settings:
    """Trainer's and TRL's own words, old spellings as the new ones, with what `fsdp` and a `deepspeed` of keys inside say."""
    found = {_ALIASES.get(key, key): value for key, value in settings.items() if value.value is not None}
    found |= {key.rpartition(".")[2]: value for key, value in found.items() if key.startswith("model_init_kwargs.")}
    if (fsdp := found.get("fsdp")) and fsdp.value:
        words = fsdp.value if isinstance(fsdp.value, list) else str(fsdp.value).split()
        stage = 2 if "shard_grad_op" in words else 3 if fsdp.value is True or "full_shard" in words else 0
        found["zero_stage"] = Value(stage, fsdp.where)
        found["offload"] = Value("offload" in words, fsdp.where)
        if str(getattr(found.get("fsdp_config.version"), "value", 1)) != "2":
            found["FSDP1"] = Value(True, fsdp.where)
    inside = {key.removeprefix("deepspeed."): one for key, one in found.items() if key.startswith("deepspeed.")}
    return from_deepspeed(inside) | found


def from_deepspeed(settings: Settings) -> Settings:
    """DeepSpeed's JSON; `auto` is left to Trainer."""
    if not settings:
        return {}
    names = {
        "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
        "gradient_accumulation_steps": "gradient_accumulation_steps",
        "gradient_clipping": "max_grad_norm",
        "bf16.enabled": "bf16",
        "fp16.enabled": "fp16",
        "zero_optimization.stage": "zero_stage",
    }
    found = {new: settings[key] for key, new in names.items() if key in settings and settings[key].value != "auto"}
    for key in ("zero_optimization.offload_optimizer.device", "zero_optimization.offload_param.device"):
        if key in settings and settings[key].value in ("cpu", "nvme"):
            found["offload"] = Value(True, settings[key].where)
    kind = settings.get("optimizer.type")
    optimizers = {"adam": "adamw_torch_fused", "adamw": "adamw_torch_fused", "sgd": "sgd", "adafactor": "adafactor"}
    if kind is not None:
        found["optim"] = Value(optimizers.get(str(kind.value).lower(), str(kind.value)), kind.where)
    for key in ("tensor_parallel.autotp_size", "sequence_parallel_size", "activation_checkpointing.cpu_checkpointing"):
        if key in settings and settings[key].value not in (1, False):
            found["parallelism_config"] = settings[key]
    return found | {"DeepSpeed": Value(True, next(iter(settings.values())).where)}


def from_accelerate(settings: Settings) -> Settings:
    """Accelerate's YAML, or the flags of `accelerate launch`. `mixed_precision` is for a loop that is neither Trainer's nor TRL's."""
    found = {}
    kind = settings.get("distributed_type", Value("NO", ""))
    if ranks := settings.get("num_processes"):
        found["ranks"] = ranks
    elif "distributed_type" in settings and kind.value in ("NO", False):
        found["ranks"] = Value(1, kind.where)
    cpu = next((settings[key] for key in ("use_cpu", "cpu") if key in settings), None)
    if cpu or kind.value == "MULTI_CPU":
        found["use_cpu"] = cpu or Value(True, kind.where)
    if mixed := settings.get("mixed_precision"):
        found["mixed_precision"] = mixed
        if mixed.value == "fp8":
            found["fp8"] = mixed
    if (dynamo := settings.get("dynamo_config.dynamo_backend") or settings.get("dynamo_backend")) and str(
        dynamo.value
    ).lower() != "no":
        found["torch_compile"] = Value(True, dynamo.where)

    def inner(room: str, name: str) -> Value | None:
        return settings.get(f"{room}.{name}") or settings.get(name)

    if kind.value == "FSDP" or settings.get("use_fsdp", Value(False, "")).value:
        version = inner("fsdp_config", "fsdp_version") or Value(1, "default of Accelerate 1.15")
        reshard = inner("fsdp_config", "fsdp_reshard_after_forward") or Value(True, "default of Accelerate 1.15")
        strategy = inner("fsdp_config", "fsdp_sharding_strategy")
        said = strategy or reshard
        stage = 2 if said.value in (False, "SHARD_GRAD_OP", 2, "HYBRID_SHARD_ZERO2") else 3
        stage = 0 if said.value in ("NO_SHARD", 3) else stage
        found["zero_stage"] = Value(stage, said.where)
        if str(version.value) != "2":
            found["FSDP1"] = version
        if "HYBRID" in str(said.value):
            found["parallelism_config"] = said
        found |= {
            new: one
            for name, new in (
                ("fsdp_offload_params", "offload"),
                ("fsdp_activation_checkpointing", "gradient_checkpointing"),
            )
            if (one := inner("fsdp_config", name))
        }
    if kind.value == "DEEPSPEED" or settings.get("use_deepspeed", Value(False, "")).value:
        words = ("zero_stage", "gradient_accumulation_steps", "gradient_clipping", "offload_optimizer_device")
        of = {word: one for word in words if (one := inner("deepspeed_config", word)) and one.value != "auto"}
        found |= {key: one for key, one in of.items() if key in ("zero_stage", "gradient_accumulation_steps")}
        if "gradient_clipping" in of:
            found["max_grad_norm"] = of["gradient_clipping"]
        if "offload_optimizer_device" in of:
            device = of["offload_optimizer_device"]
            found["offload"] = Value(device.value in ("cpu", "nvme"), device.where)
        if file := inner("deepspeed_config", "deepspeed_config_file"):
            found["deepspeed"] = file
        found["DeepSpeed"] = Value(True, kind.where or "launch line")
    elif settings.get("gradient_accumulation_steps"):
        found["gradient_accumulation_steps"] = settings["gradient_accumulation_steps"]
    if kind.value in ("MEGATRON_LM", "XLA", "TPU") or any(key.startswith("parallelism_config") for key in settings):
        found["parallelism_config"] = kind if kind.where else Value(True, "launch line")
    return found


def from_llama_factory(settings: Settings) -> Settings:
    """LLaMA-Factory's YAML."""
    found = {key: value for key, value in from_trainer(settings).items() if key != "packing"}
    rename = {"cutoff_len": "max_length", "lora_rank": "lora_r", "double_quantization": "use_bnb_nested_quant"}
    found |= {new: found[key] for key, new in rename.items() if key in found}
    kind = found.get("finetuning_type", Value("lora", f"default of {LLAMA_FACTORY.name}"))
    found["use_peft"] = Value(kind.value == "lora", kind.where)
    if kind.value not in ("lora", "full"):
        found[f"finetuning_type: {kind.value}"] = kind
    if "lora_target" in found:
        target = found["lora_target"]
        found["lora_target_modules"] = Value("all-linear" if target.value == "all" else target.value, target.where)
    if "additional_target" in found:
        found["lora_modules_to_save"] = found["additional_target"]
    if "disable_gradient_checkpointing" in found:
        off = found["disable_gradient_checkpointing"]
        found["gradient_checkpointing"] = Value(not off.value, off.where)
    if packing := found.get("neat_packing"):  # without it rows are filled, and documents see each other: a plain row
        found["packing"] = packing
    if bits := found.get("quantization_bit"):
        method = found.get("quantization_method", Value("bnb", ""))
        fits = bits.value == 4 and str(method.value).lower() in ("bnb", "bitsandbytes")
        found["load_in_4bit" if fits else "quantization_config"] = Value(True, bits.where)
    attention = {"fa2": "sdpa", "fa3": "sdpa", "auto": "sdpa", "disabled": "eager"}
    if flash := found.get("flash_attn"):
        found["attn_implementation"] = Value(attention.get(str(flash.value), flash.value), flash.where)
    pure = found.get("pure_bf16", Value(False, ""))
    half = pure if pure.value else found.get("bf16", Value(False, f"default of {LLAMA_FACTORY.name}"))
    if found["use_peft"].value and half.value:  # the frozen weights lie in the dtype of the products
        found["dtype"] = Value("bfloat16", half.where)
        found["float32 adapters"] = Value(not pure.value, half.where)
    elif pure.value:
        found |= {"dtype": Value("bfloat16", pure.where), "bf16": Value(False, pure.where)}
    else:
        found["dtype"] = Value("float32", f"as {LLAMA_FACTORY.name} trains")
    stage = found.get("stage", Value("sft", ""))
    if stage.value not in ("sft", "pt"):
        found["rl"] = stage
    if found.get("use_galore", Value(False, "")).value:
        rank = found.get("galore_rank", Value(16, f"default of {LLAMA_FACTORY.name}"))
        found |= {"optim": Value("galore_adamw", rank.where), "optim_args": Value(f"rank={rank.value}", rank.where)}
    size = found.get("val_size", Value(0, ""))
    if (size.value or "eval_dataset" in found) and "eval_strategy" not in found:
        found["eval_strategy"] = Value("no", f"default of {LLAMA_FACTORY.name}")
    return found


def from_axolotl(settings: Settings) -> Settings:
    """axolotl's YAML."""
    found = from_trainer(settings)
    rename = {
        "base_model": "model_name_or_path",
        "micro_batch_size": "per_device_train_batch_size",
        "sequence_len": "max_length",
        "sample_packing": "packing",
        "optimizer": "optim",
        "eval_batch_size": "per_device_eval_batch_size",
    }
    found |= {new: found[key] for key, new in rename.items() if key in found}
    if adapter := found.get("adapter"):
        found["use_peft"] = Value(adapter.value in ("lora", "qlora"), adapter.where)
        if adapter.value not in ("lora", "qlora", "", None):
            found[f"adapter: {adapter.value}"] = adapter
    if found.get("lora_target_linear", Value(False, "")).value:
        found["lora_target_modules"] = Value("all-linear", found["lora_target_linear"].where)
    if found.get("flex_attention", Value(False, "")).value:
        found["attn_implementation"] = Value("flex_attention", found["flex_attention"].where)
    for key, dtype in (("fp16", "float16"), ("bf16", "bfloat16")):
        if (half := found.get(key)) and half.value:
            found |= {key: Value(True, half.where), "dtype": Value(dtype, half.where)}
    if "dtype" not in found:
        found["dtype"] = Value("float32", f"as {AXOLOTL.name} trains")
    if found["dtype"].value == "bfloat16" and found.get("use_peft", Value(False, "")).value:
        found["float32 adapters"] = found["dtype"]
    if isinstance(found.get("gradient_checkpointing", Value(False, "")).value, str):  # unsloth, offload, offload_disk
        kind = found["gradient_checkpointing"]
        found["gradient_checkpointing"] = Value(True, kind.where)
        found[f"gradient_checkpointing: {kind.value}"] = kind
    return found


TRANSLATIONS: dict[str, tuple[Tool, Callable[[Settings], Settings]]] = {
    "trl": (TRL, from_trainer),
    "trainer": (TRAINER, from_trainer),
    "sft": (TRL_SCRIPT, from_trainer),
    "deepspeed": (ACCELERATE, from_deepspeed),
    "accelerate": (ACCELERATE, from_accelerate),
    "llama-factory": (LLAMA_FACTORY, from_llama_factory),
    "axolotl": (AXOLOTL, from_axolotl),
}


def kind_of(settings: Settings) -> str | None:
    """Whose file this is, by its keys; None where it is nobody's that is known here."""
    keys = settings.keys()
    if keys & {"base_model", "micro_batch_size", "sequence_len"}:
        return "axolotl"
    if keys & {"finetuning_type", "cutoff_len", "stage", "template", "lora_rank"}:
        return "llama-factory"
    if keys & {"compute_environment", "distributed_type", "num_machines", "machine_rank"}:
        return "accelerate"
    if keys & {
        "zero_optimization",
        "train_micro_batch_size_per_gpu",
        "train_batch_size",
        "zero_allow_untested_optimizer",
    }:
        return "deepspeed"
    if keys & {"max_length", "packing", "use_peft", "dataset_name", "max_seq_length", "lora_r", "model_name_or_path"}:
        return "trl"
    if keys & {"per_device_train_batch_size", "output_dir", "gradient_accumulation_steps", "num_train_epochs"}:
        return "trainer"
    return None
