"""From a tool's settings to the fields of a recipe."""

import re
from dataclasses import dataclass, field, replace

from course_utils.errors import CourseError
from course_utils.memory.reading.settings import Computed, Settings, Value
from course_utils.memory.reading.tools import AT_LEAST, UNKNOWN, UNMODELLED, Tool

NO_FILE = "no file says it"

_OPTIMIZERS = {  # Trainer's names; the second is a remark where the plan's optimizer is not quite the same
    "adamw_torch": ("adamw-foreach", ""),
    "adamw_torch_fused": ("adamw-fused", ""),
    "adamw_hf": ("adamw-foreach", ""),
    "adamw_bnb_8bit": ("adamw8bit", ""),
    "adamw_8bit": ("adamw8bit", ""),
    "paged_adamw_8bit": ("adamw8bit", "its pages may move to the host; all are counted on the device"),
    "paged_adamw_32bit": ("adamw-fused", "its pages may move to the host; all are counted on the device"),
    "paged_adamw": ("adamw-fused", "its pages may move to the host; all are counted on the device"),
    "adamw_torch_4bit": ("adamw4bit", ""),
    "adafactor": ("adafactor-transformers", ""),
    "sgd": ("sgd", ""),
    "galore_adamw": ("adamw", ""),
}
_SIMPLE = {  # the counts and switches that are a key and no more
    "batch": "per_device_train_batch_size",
    "sequence": "max_length",
    "accumulation": "gradient_accumulation_steps",
    "packed": "packing",
    "compiled": "torch_compile",
    "checkpointing": "gradient_checkpointing",
    "offload_activations": "activation_offloading",
    "use_cache": "use_cache",
    "offload": "offload",
    "zero_stage": "zero_stage",
    "ranks": "ranks",
}
_COUNTS = ("batch", "sequence", "accumulation", "zero_stage", "ranks", "lora", "eval_batch")
_ATTENTIONS = {None: "sdpa", "eager": "eager", "sdpa": "sdpa"}
_TARGETS = {  # peft 0.21.2's defaults, by the family of a model
    (
        "q_proj",
        "v_proj",
    ): "llama llama4 mistral mixtral qwen2 qwen3 gemma gemma2 gemma3_text stablelm opt bart gptj gpt_neo",
    ("query_key_value",): "gpt_neox bloom falcon chatglm",
    ("query", "value"): "bert roberta xlm-roberta electra layoutlm",
    ("c_attn",): "gpt2 gpt_bigcode",
    ("q", "v"): "t5 mt5",
    ("q_proj", "v_proj", "fc1", "fc2"): "phi",
    ("Wqkv",): "mpt",
}
TARGETS = {family: list(names) for names, families in _TARGETS.items() for family in families.split()}


@dataclass(frozen=True)
class Model:
    """What the settings need to know of a model: the `family` in its configuration and the `dtype` of its published weights."""

    family: str | None = None
    dtype: str | None = None


@dataclass
class Found:
    """Fields of a recipe with their sources, what the plan does not count by the key that says it, and remarks."""

    fields: dict[str, object] = field(default_factory=dict)
    provenance: dict[str, str] = field(default_factory=dict)
    unmodelled: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)

    def put(self, name: str, value: object, where: str) -> None:
        """One field with its source."""
        self.fields[name], self.provenance[name] = value, where


def fields_of(settings: Settings, tool: Tool, model: Model) -> Found:
    """The fields that settings in TRL's words say, and the defaults of `tool` for what they leave out.

    Raises `CourseError` for a value that its key cannot have.
    """
    found = Found()

    def get(key: str, name: str) -> Value | None:
        """A setting, else the tool's default; what a script computes is unknown until a flag says the field `name`."""
        value = settings.get(key)
        if value is not None and isinstance(value.value, Computed):
            code = value.value.code if len(value.value.code) < 60 else f"{value.value.code[:57]}..."
            flag = name.replace("_", "-")
            found.unmodelled[name] = f"{UNKNOWN}: {value.where} computes {key} ({code}); say it with --{flag}"
            value = None
        return value or tool.default(key)

    for name, key in _SIMPLE.items():
        value = get(key, name)
        if value is not None:
            if name == "sequence" and value.value is None:
                found.unmodelled[name] = f"{UNKNOWN}: {value.where} cuts no text off; say the longest with --sequence"
                continue
            read = _count(key, value) if name in _COUNTS else _switch(key, value)
            found.put(name, read, value.where)
    if tool.loop and "sequence" not in found.fields and "sequence" not in found.unmodelled:
        found.unmodelled["sequence"] = f"{UNKNOWN}: {NO_FILE} how long a text is; say it with --sequence"
    if value := get("use_cpu", "device"):
        found.put("device", "cpu" if _switch("use_cpu", value) else "cuda", value.where)
    if (value := get("max_grad_norm", "clipping")) is not None:
        found.put("clipping", _number("max_grad_norm", value) > 0, value.where)
    if value := get("label_smoothing_factor", "label_smoothing"):
        found.put("label_smoothing", float(_number("label_smoothing_factor", value)), value.where)
    _read_optimizer(found, settings, get("optim", "optimizer"))
    _read_attention(found, get("attn_implementation", "attention"))
    _read_adapters(found, settings, get, tool, model)
    _read_precision(found, settings, get, tool, model)
    _read_evaluation(found, settings, get)
    if tool.loop:
        where = f"loop of {tool.name}"
        found.put("keeps_outputs", False, where)
        found.put("zero_grad", "after-update", where)
    if tool.loop == "trl":
        found.put("trl_loss", True, where)
        if settings.get("loss_type", Value("nll", "")).value not in ("nll", "chunked_nll"):
            found.put("trl_loss", False, settings["loss_type"].where)
            found.unmodelled["loss_type"] = f"{UNKNOWN}: {settings['loss_type'].where} chooses another loss"
    _read_shards(found, settings)
    for key, value in settings.items():
        is_off = value.value in (None, False, "", "no", [], {}) or (
            key.endswith(("size", "degree")) and value.value == 1
        )
        if key in UNMODELLED and not is_off:
            effect, _, why = UNMODELLED[key].partition(": ")
            found.unmodelled[key] = f"{effect}: {key} ({value.where}): {why}"
        elif key.startswith(("finetuning_type: ", "adapter: ", "gradient_checkpointing: ")):
            found.unmodelled[key] = f"{UNKNOWN}: {key} ({value.where}) is a method that the plan does not have"
    return found


def _read_optimizer(found: Found, settings: Settings, value: Value | None) -> None:
    if value is None:
        return
    name = str(value.value)
    if name not in _OPTIMIZERS:
        found.unmodelled["optimizer"] = f"{UNKNOWN}: optim={name} ({value.where}) is none of the plan's optimizers"
        return
    planned, remark = _OPTIMIZERS[name]
    if planned == "adamw-foreach" and found.fields.get("device") == "cpu":
        planned = "adamw"
    found.put("optimizer", planned, value.where)
    if remark:
        found.remarks.append(f"{name} ({value.where}): {remark}.")
    if name == "galore_adamw":
        words = settings.get("optim_args", Value("", value.where))
        rank = re.search(r"rank=(\d+)", str(words.value))
        found.put("galore", int(rank[1]) if rank else 128, words.where if rank else "default of Trainer 5.23")


def _read_attention(found: Found, value: Value | None) -> None:
    if value is None:
        return
    kind = value.value
    if kind in _ATTENTIONS:
        found.put("attention", _ATTENTIONS[kind], value.where)
    elif re.search(r"flash|fa[234]", str(kind)):
        found.put("attention", "sdpa", value.where)
        found.remarks.append(f"{kind} ({value.where}) keeps what PyTorch's own flash kernel does: planned as sdpa.")
    else:
        found.unmodelled["attention"] = f"{UNKNOWN}: attn_implementation={kind} ({value.where}) keeps other tensors"


def _read_adapters(found: Found, settings: Settings, get, tool: Tool, model: Model) -> None:
    use = get("use_peft", "lora")
    if use is None or not _switch("use_peft", use):
        if use is not None:
            found.put("lora", 0, use.where)
        return
    rank = get("lora_r", "lora") or Value(8, "default of peft 0.21")
    found.put("lora", _count("lora_r", rank), rank.where)
    targets = get("lora_target_modules", "lora_targets")
    if targets is None or targets.value is None:
        if model.family in TARGETS:
            where = f"default of peft 0.21 for {model.family}"
            found.put("lora_targets", tuple(TARGETS[model.family]), where)
        else:
            found.unmodelled["lora_targets"] = (
                f"{UNKNOWN}: {NO_FILE} which layers get adapters; say it with --lora-targets"
            )
    else:
        names = _names("lora_target_modules", targets)
        found.put("lora_targets", () if names in (("all-linear",), ("all",)) else names, targets.where)
    if (saved := get("lora_modules_to_save", "modules_to_save")) and saved.value:
        found.put("modules_to_save", _names("lora_modules_to_save", saved), saved.where)
    four = get("load_in_4bit", "quantized")
    if four is not None and _switch("load_in_4bit", four):
        found.put("quantized", "nf4", four.where)
        nested = get("use_bnb_nested_quant", "double_quantization") or Value(False, "default of Transformers 5.23")
        found.put("double_quantization", _switch("use_bnb_nested_quant", nested), nested.where)
        upcast = settings.get("upcast")
        dtype = get("dtype", "precision")
        if upcast is None and dtype is not None and dtype.value == "float32":
            upcast = Value(True, dtype.where)
            if tool.loop == "trl":
                found.remarks.append("TRL keeps adapters on 4-bit weights in bfloat16; the plan has them in float32.")
        found.put("upcast", bool(upcast and upcast.value), upcast.where if upcast else f"as {tool.name} trains")
    if settings.get("float32 adapters", Value(False, "")).value:
        found.unmodelled["adapters"] = (
            f"{AT_LEAST}: {tool.name.split()[0]} keeps adapters in float32 on weights in bfloat16; the plan has both in bfloat16"
        )


def _read_precision(found: Found, settings: Settings, get, tool: Tool, model: Model) -> None:
    bf16, fp16 = (get(key, "precision") for key in ("bf16", "fp16"))
    if bf16 is None and fp16 is None:
        mixed = settings.get("mixed_precision")
        if mixed is not None and mixed.value in ("bf16", "fp16"):
            found.put("precision", "autocast" if mixed.value == "bf16" else "fp16", mixed.where)
        return
    is_bf16 = bf16 is not None and _switch("bf16", bf16)
    is_fp16 = fp16 is not None and _switch("fp16", fp16)
    if is_bf16 and is_fp16:
        if settings.get("bf16") and settings.get("fp16"):
            raise CourseError(f"bf16 ({bf16.where}) and fp16 ({fp16.where}) exclude each other; leave one out.")
        is_bf16 = "bf16" in settings
        is_fp16 = not is_bf16
    half = bf16 if is_bf16 else fp16 if is_fp16 else bf16 or fp16
    if "DeepSpeed" in settings and (is_bf16 or is_fp16):
        shards = found.fields.get("zero_stage") and found.fields.get("ranks", 1) != 1
        found.put("precision", "autocast" if shards else "bf16-masters", half.where)
        return
    dtype = get("dtype", "precision") or Value("float32", f"as {tool.name} trains")
    width = {"torch.bfloat16": "bfloat16", "torch.float16": "float16", "torch.float32": "float32"}.get(
        str(dtype.value), dtype.value
    )
    if width == "auto" or width is None:
        if model.dtype is None:
            found.unmodelled["precision"] = (
                f"{UNKNOWN}: dtype is auto ({dtype.where}), that of the published weights, which is not known here; say it "
                "with --precision"
            )
        width = model.dtype or "float32"
        dtype = replace(dtype, where=f"{dtype.where}: the weights' own, {width}")
    if width in ("bfloat16", "float16"):
        where = dtype.where if dtype.where == half.where else f"{dtype.where}, {half.where}"
        found.put("precision", "bf16", where)
        if width == "float16":
            found.unmodelled["dtype"] = (
                f"{AT_LEAST}: weights in float16 ({dtype.where}) are planned as bfloat16, without a scaled loss"
            )
        elif (is_bf16 or is_fp16) and "adapters" not in found.unmodelled and "lora" in found.fields:
            found.remarks.append(
                f"Autocast ({half.where}) over weights in bfloat16 ({dtype.where}) is planned as bfloat16; where a model's norms "
                "are PyTorch's own it makes them in float32."
            )
            if found.fields["lora"] and not found.fields.get("quantized"):
                found.unmodelled["adapters"] = (
                    f"{AT_LEAST}: peft keeps adapters in float32 on weights in bfloat16; the plan has both in bfloat16"
                )
    elif width == "float32":
        found.put("precision", "autocast" if is_bf16 else "fp16" if is_fp16 else "fp32", half.where)
    else:
        found.unmodelled["precision"] = f"{UNKNOWN}: dtype={width} ({dtype.where}) is none of the plan's"


def _read_evaluation(found: Found, settings: Settings, get) -> None:
    strategy = get("eval_strategy", "eval_batch")
    if strategy is None or strategy.value in ("no", False, None):
        if strategy is not None:
            found.put("eval_batch", 0, strategy.where)
        return
    batch = get("per_device_eval_batch_size", "eval_batch")
    found.put("eval_batch", _count("per_device_eval_batch_size", batch), batch.where)
    if metrics := settings.get("compute_metrics"):
        found.unmodelled["eval_logits"] = (
            f"{AT_LEAST}: compute_metrics ({metrics.where}) keeps the logits of all examples that are evaluated; say how many "
            "with --eval-logits"
        )


def _read_shards(found: Found, settings: Settings) -> None:
    if found.fields.get("zero_stage") and "ranks" not in found.fields:
        found.unmodelled["ranks"] = f"{UNKNOWN}: {NO_FILE} how many ranks share the work; say it with --ranks"
    if "FSDP1" in settings:
        found.unmodelled["fsdp_version"] = (
            f"{AT_LEAST}: FSDP1 ({settings['FSDP1'].where}) is planned as FSDP2; its flat parameters and prefetching take more"
        )
    if "DeepSpeed" in settings and found.fields.get("zero_stage"):
        found.unmodelled["deepspeed"] = (
            f"{UNKNOWN}: DeepSpeed's buckets ({settings['DeepSpeed'].where}) are not counted; its shards are planned as torch's"
        )


def _count(key: str, value: Value) -> int:
    number = _number(key, value)
    if number != int(number) or number < 0 or (number == 0 and key not in ("zero_stage", "lora_r")):
        raise CourseError(f"{value.where}: {key} must be a whole number from 1 on, not {value.value!r}.")
    return int(number)


def _number(key: str, value: Value) -> float:
    try:
        if isinstance(value.value, bool):
            raise TypeError
        number = float(value.value or 0) if value.value is None else float(value.value)
    except (TypeError, ValueError):
        raise CourseError(f"{value.where}: {key} must be a number, not {value.value!r}.") from None
    if number != number or abs(number) > 1e15:
        raise CourseError(f"{value.where}: {key} must be a number, not {value.value!r}.")
    return number


_SAID = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False, "none": False, "": False}


def _switch(key: str, value: Value) -> bool:
    said = _SAID.get(str(value.value).lower())
    if said is None:
        raise CourseError(f"{value.where}: {key} must be true or false, not {value.value!r}.")
    return said


def _names(key: str, value: Value) -> tuple[str, ...]:
    names = value.value
    if isinstance(names, str):
        names = [name.strip() for name in names.split(",")] if re.fullmatch(r"[\w.,\s-]+", names) else [names]
    if not (isinstance(names, list | tuple) and names and all(isinstance(name, str) and name for name in names)):
        raise CourseError(f"{value.where}: {key} must be names, not {value.value!r}.")
    return tuple(names)
