"""The fields of a recipe, read from a tool's settings."""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from math import nan
from textwrap import fill

from course_utils.errors import CourseError
from course_utils.memory.planning.reading.settings import Computed, Settings, Value
from course_utils.memory.planning.reading.tools import AT_LEAST, PEFT_VERSION, UNKNOWN, Tool, Unmodeled, tables
from course_utils.memory.step.recipe import Recipe, flag_of

_ADAPTER_FIELDS = ("lora_targets", "modules_to_save", "lora_dropout", "quantized", "double_quantization", "upcast")
_FIELDS_WITH_READERS = ("attention", "eval_batch", "lora", *_ADAPTER_FIELDS)
# Fields that more than one file can set.
_FIELDS_OF_SEVERAL_FILES = ("zero_stage", "offload", "ranks")
_SWITCHES = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False, "none": False, "": False}


@dataclass(frozen=True)
class PublishedFacts:
    """Facts about a model on which the meaning of settings depends, from its `config.json`; `dtype` is that of its weights."""

    family: str | None = None
    dtype: str | None = None
    quantized: str | None = None
    architecture: str | None = None


@dataclass(frozen=True)
class Reading:
    """A model and how it is trained, as files say it."""

    model: str  # as `memory.estimate` takes it
    tool: Tool | None = None  # the tool whose defaults hold for absent settings
    provenance: dict[str, str] = field(default_factory=dict)  # by field, the origin of its value
    fields: dict[str, object] = field(default_factory=dict)  # values of a recipe's fields, by name
    unmodeled: dict[str, Unmodeled] = field(default_factory=dict)  # what the plan does not count, by key
    remarks: list[str] = field(default_factory=list)
    # If a script takes another head than the model's own: a class of Transformers, or one that chooses a class
    # (`AutoModelForTokenClassification`), and the number of labels.
    head: tuple[str, int | None] | None = None

    @classmethod
    def from_settings(cls, model: str, origin: str, settings: Settings, tool: Tool, facts: PublishedFacts) -> "Reading":
        """The reading of a model, named at `origin`, from `settings` by TRL's keys.

        Raises `CourseError` for a value that its key cannot have.
        """
        reader = _Reader(settings, tool, facts)
        reader.read()
        provenance = {"model": origin, **reader.provenance}
        return cls(model, tool, provenance, reader.fields, reader.unmodeled, reader.remarks, reader.head)

    @property
    def effect(self) -> str:
        """How to read the verdict: `UNKNOWN`, `AT_LEAST`, or empty if everything is counted."""
        effects = {unmodeled.effect for unmodeled in self.unmodeled.values()}
        return next((effect for effect in (UNKNOWN, AT_LEAST) if effect in effects), "")

    def override(self, flags: dict[str, object]) -> "Reading":
        """The reading with a command's flags, which override files; a field that a flag gives is no longer unknown.

        Raises `CourseError` if a ZeRO stage has no number of ranks.
        """
        values = {**self.fields, **flags}
        provenance = self.provenance | {name: flag_of(name) for name in flags if self.provenance}
        unmodeled = {key: unmodeled for key, unmodeled in self.unmodeled.items() if key not in flags}
        remarks = [*self.remarks]
        origin = provenance.get("zero_stage")
        if values.get("zero_stage") and values.get("ranks") == 1 and "zero_stage" not in flags:
            stage = values.pop("zero_stage")
            remarks.append(f"One rank has nothing to share: stage {stage} ({origin}) is left out.")
        if values.get("zero_stage") and "ranks" not in values:
            raise CourseError(f"{origin} shares the work out over ranks; say over how many with {flag_of('ranks')}.")
        if not values.get("lora"):
            for name in set(_ADAPTER_FIELDS) - flags.keys():
                values.pop(name, None)
        return replace(self, fields=values, provenance=provenance, unmodeled=unmodeled, remarks=remarks)

    def table(self) -> list[str]:
        """Lines of text: for each value that is written down its origin, then for each tool its defaults."""
        values = {"model": self.model, **self.fields}
        rows = [(f"{name}={_write(values[name])}", self.provenance[name]) for name in self.provenance if name in values]
        defaults: dict[str, list[str]] = {}
        for value, origin in rows:
            if origin.startswith(("default of ", "loop of ")):
                defaults.setdefault(origin, []).append(value)
        explicit = [(value, origin) for value, origin in rows if origin not in defaults]
        width = max((len(value) for value, _ in explicit), default=0)
        lines = (f"  {origin}: {', '.join(values)}" for origin, values in defaults.items())
        return [
            *(f"  {value:<{width}}  {origin}" for value, origin in explicit),
            *(fill(line, 120, subsequent_indent="    ", break_on_hyphens=False) for line in lines),
        ]


class _Reader:
    """Reads settings by TRL's keys into the fields of a `Reading`, from a tool's defaults where they are absent."""

    def __init__(self, settings: Settings, tool: Tool, facts: PublishedFacts):
        self.settings, self.tool, self.facts = settings, tool, facts
        self.provenance: dict[str, str] = {}
        self.fields: dict[str, object] = {}
        self.unmodeled: dict[str, Unmodeled] = {}
        self.remarks: list[str] = []
        self.head: tuple[str, int | None] | None = None

    def read(self) -> None:
        """Read all settings, in an order in which each part finds the fields that it depends on.

        The optimizer depends on the device, the precision on ranks and adapters, and what is not modeled on all of these.
        """
        for name, key in _plain_keys().items():
            value = self._take_value(key, name)
            if value is not None and value.value is None:  # max_length: null
                self._note_unknown(name, f"{key} ({value.origin}) has no bound; say it with {flag_of(name)}")
            elif value is not None:
                self._put(name, _CONVERTERS[type(getattr(Recipe, name))](key, value), value.origin)
        if self.tool.loop:
            if "sequence" not in self.fields and "sequence" not in self.unmodeled:
                self._note_missing("sequence", "how long texts are")
            origin = f"loop of {self.tool.name}"
            self._put("keeps_outputs", False, origin)
            self._put("zero_grad", "after-update", origin)
            if self.tool.loop == "trl":
                self._put("trl_loss", True, origin)
        self._take("device", "use_cpu", lambda key, value: "cpu" if _read_switch(key, value) else "cuda")
        self._take("clipping", "max_grad_norm", lambda key, value: _read_number(key, value) > 0)
        self._read_optimizer()
        self._read_attention()
        self._read_adapters()
        self._read_precision()
        self._read_evaluation()
        self._read_unmodeled()

    def _put(self, name: str, value: object, origin: str) -> None:
        self.fields[name] = value
        self.provenance[name] = origin

    def _take(self, name: str, key: str, convert: Callable[[str, Value], object]) -> None:
        if (value := self._take_value(key, name)) is not None:
            self._put(name, convert(key, value), value.origin)

    def _take_switch(self, key: str, name: str) -> bool:
        value = self._take_value(key, name)
        return value is not None and _read_switch(key, value)

    def _take_value(self, key: str, name: str) -> Value | None:
        """A setting, or else the tool's default; where a script computes it, the field `name` is noted as unknown."""
        value = self.settings.get(key)
        if value is not None and isinstance(value.value, Computed):
            code = value.value.code if len(value.value.code) < 60 else f"{value.value.code[:57]}…"
            self._note_unknown(name, f"{value.origin} computes {key} ({code}); say it with {flag_of(name)}")
            value = None
        return value or self.tool.default(key)

    def _note_unknown(self, key: str, reason: str) -> None:
        self.unmodeled[key] = Unmodeled(UNKNOWN, reason)

    def _note_missing(self, name: str, fact: str) -> None:
        self._note_unknown(name, f"no file says {fact}; say it with {flag_of(name)}")

    def _note_unmodeled(self, key: str, value: Value) -> None:
        self.unmodeled[key] = tables().unmodeled[key].said_by(f"{key.replace('_', ' ')} ({value.origin})")

    def _read_optimizer(self) -> None:
        value = self._take_value("optim", "optimizer")
        if value is None:
            return
        name = str(value.value)
        optimizer = tables().optimizers.get(name)
        if optimizer is None:
            self._note_unknown("optimizer", f"optim={name} ({value.origin}) is none of the plan's optimizers")
            return
        if optimizer == "adamw-foreach" and self.fields.get("device") == "cpu":
            optimizer = "adamw"
        self._put("optimizer", optimizer, value.origin)
        if name.startswith("paged"):
            remark = f"The states of {name} ({value.origin}) are counted on the host, where CUDA may page them."
            self.remarks.append(remark)
        if name == "galore_adamw":
            options = self.settings.get("optim_args")
            rank = re.search(r"rank=(\d+)", str(options.value)) if options else None
            if rank:
                self._put("galore", int(rank[1]), options.origin)
            else:
                self._put("galore", 128, f"default of {tables().tools['trainer'].name}")

    def _read_attention(self) -> None:
        value = self._take_value("attn_implementation", "attention")
        if value is None:
            return
        name = str(value.value)
        if name in ("eager", "sdpa", "None"):
            self._put("attention", name.replace("None", "sdpa"), value.origin)
        elif re.search(r"flash|fa[234]", name):
            self._put("attention", "sdpa", value.origin)
            self.remarks.append(f"{name} ({value.origin}) is planned as sdpa, whose flash kernel keeps the same.")
        else:
            self._note_unknown("attention", f"attn_implementation={name} ({value.origin}) may keep other tensors")

    def _read_adapters(self) -> None:
        if not self._take_switch("use_peft", "lora"):
            self._remark_on_missing_adapters()
            return
        self._take("lora", "lora_r", _read_count)
        self._take("lora_dropout", "lora_dropout", _read_number)
        targets = self._take_value("lora_target_modules", "lora_targets")
        family = self.facts.family
        if targets is not None and targets.value is not None:
            names = _read_names("lora_target_modules", targets)
            self._put("lora_targets", () if names in (("all-linear",), ("all",)) else names, targets.origin)
        elif family in tables().targets:
            self._put("lora_targets", tables().targets[family], f"default of {PEFT_VERSION} for {family}")
        else:
            self._note_missing("lora_targets", "which layers get adapters")
        saved = self._take_value("lora_modules_to_save", "modules_to_save")
        if saved is not None and saved.value:
            self._put("modules_to_save", _read_names("lora_modules_to_save", saved), saved.origin)
        if self._take_switch("load_in_4bit", "quantized"):
            self._read_quantization()

    def _remark_on_missing_adapters(self) -> None:
        four = self.settings.get("load_in_4bit")
        rank = self.settings.get("lora_r")
        if four is not None and not isinstance(four.value, Computed) and _read_switch("load_in_4bit", four):
            doubt = "quantizes weights, and nothing says that adapters are trained too, as use_peft: true does"
            self._note_unknown("quantized", f"load_in_4bit ({four.origin}) {doubt}")
        elif rank is not None:
            self.remarks.append(f"Without use_peft: true there are no adapters, whatever lora_r says ({rank.origin}).")

    def _read_quantization(self) -> None:
        self._take("quantized", "load_in_4bit", lambda *_: "nf4")
        self._take("double_quantization", "use_bnb_nested_quant", _read_switch)
        upcast = self.settings.get("upcast", Value(False, f"as {self.tool.name} trains"))
        self._put("upcast", bool(upcast.value), upcast.origin)
        dtype = self._take_value("dtype", "upcast")
        if not upcast.value and dtype is not None and str(dtype.value).endswith("float32"):
            rest = Unmodeled(AT_LEAST, "what is not in 4 bits is loaded in float32, and planned in bfloat16")
            self.unmodeled["upcast"] = rest.said_by(f"dtype={dtype.value} ({dtype.origin})")

    def _read_precision(self) -> None:
        bf16, fp16 = (self._take_value(key, "precision") for key in ("bf16", "fp16"))
        if bf16 is None and fp16 is None:
            mixed = self.settings.get("mixed_precision")
            if mixed is not None and mixed.value in ("bf16", "fp16"):
                self._put("precision", "autocast" if mixed.value == "bf16" else "fp16", mixed.origin)
            return
        active_keys = [key for key in ("bf16", "fp16") if self._take_switch(key, "precision")]
        if len(active_keys) == 2:
            if {*active_keys} <= self.settings.keys():
                raise CourseError(f"bf16 ({bf16.origin}) and fp16 ({fp16.origin}) exclude each other; leave one out.")
            active_keys = [key for key in active_keys if key in self.settings]
        half = fp16 if "fp16" in active_keys or bf16 is None else bf16
        if "deepspeed_shards" in self.settings and active_keys:  # it keeps its own copies in float32
            shares = self.fields.get("ranks", 1) != 1 and self.fields.get("zero_stage")
            self._put("precision", "autocast" if shares else "bf16-masters", half.origin)
        else:
            self._read_dtype(active_keys, half)

    def _read_dtype(self, active_keys: list[str], half: Value) -> None:
        """Read the precision from the dtype of the weights, with those of `bf16` and `fp16` that are true, and the one used."""
        dtype = self._take_value("dtype", "precision") or Value("float32", half.origin)
        width = str(dtype.value).removeprefix("torch.")
        origin = dtype.origin
        if width in ("auto", "None"):
            width = self.facts.dtype or "float32"
            origin = f"{origin}, the weights' {width}"
            if self.facts.dtype is None:
                self._note_missing("precision", "in which dtype weights are loaded")
        if width == "float32":
            precision = "autocast" if "bf16" in active_keys else "fp16"
            self._put("precision", precision if active_keys else "fp32", half.origin)
        elif width in ("bfloat16", "float16"):
            self._put("precision", "bf16", origin)
            if width == "float16":
                self._note_unmodeled("float16_weights", Value(width, origin))
            if self.fields.get("quantized") and not self.fields.get("upcast") and self.tool.loop != "trl":
                self._note_unmodeled("float32_adapters", Value(width, origin))
            if active_keys:
                remark = f"Autocast ({half.origin}) over weights in {width} ({origin}) is planned as all in bfloat16"
                self.remarks.append(f"{remark}; norms that are PyTorch's own are then in float32, and take more.")
        else:
            self._note_unknown("precision", f"dtype={width} ({origin}) is none of the plan's")

    def _read_evaluation(self) -> None:
        strategy = self._take_value("eval_strategy", "eval_batch")
        if strategy is None or strategy.value in ("no", False, None):
            return
        self._take("eval_batch", "per_device_eval_batch_size", _read_count)
        if metrics := self.settings.get("compute_metrics"):
            reason = f"compute_metrics ({metrics.origin}) keeps the logits of all examples that are evaluated"
            self.unmodeled["eval_logits"] = Unmodeled(AT_LEAST, f"{reason}; say how many with --eval-logits")

    def _read_unmodeled(self) -> None:
        for key, value in self.settings.items():
            one_rank = 1 if key.endswith(("size", "degree")) else None
            if key in tables().unmodeled and value.value not in (None, False, "", "no", [], {}, one_rank):
                self._note_unmodeled(key, value)
        head = self.settings.get("class")
        if head is not None and _task_of_class(head.value) != _task_of_class(self.facts.architecture or "ForCausalLM"):
            self._read_head(head)
        if self.facts.quantized:
            self._note_unmodeled("other_quantization", Value(True, f"{self.facts.quantized} in its config.json"))
        if self.fields.get("zero_stage") and "ranks" not in self.fields:
            self._note_missing("ranks", "how many ranks share the work")
        loss = self.settings.get("loss_type")
        if self.tool.loop == "trl" and loss is not None and loss.value not in ("nll", "chunked_nll"):
            self._note_unknown("trl_loss", f"{loss.origin} chooses another loss than the plan's")

    def _read_head(self, head: Value) -> None:
        if not _task_of_class(head.value):  # it has no loss of its own, so the script makes one
            architecture = self.facts.architecture or "language model"
            reason = f"{head.value} ({head.origin}) has no head, and a {architecture} is planned"
            self._note_unknown("class", f"{reason}; for a module of your own write FILE.py:FUNCTION")
            return
        labels = self.settings.get("num_labels")
        count = None if labels is None or isinstance(labels.value, Computed) else _read_count("num_labels", labels)
        self.head = head.value.rpartition(".")[2], count
        if labels is not None and count is None:
            counted = f"counted when the script runs ({labels.origin})"
            self.remarks.append(f"The labels are {counted}; planned with as many as the model has.")
        task = self.settings.get("task_type")
        if self.fields.get("lora") and task is not None and "modules_to_save" not in self.fields:
            reason = f"by task_type ({task.origin}) peft trains the head whole beside the adapters"
            self.unmodeled["modules_to_save"] = Unmodeled(AT_LEAST, f"{reason}; say its name with --modules-to-save")


def _write(value: object) -> str:
    return ",".join(value) or "all-linear" if isinstance(value, tuple) else str(value)


def _plain_keys() -> dict[str, str]:
    """The fields whose value is that of one key, with this key of Trainer's or TRL's."""
    by_tool = {field.name: field.metadata["keys"] for field in fields(Recipe) if field.name not in _FIELDS_WITH_READERS}
    keys = {name: tools.get("trainer") or tools.get("trl") for name, tools in by_tool.items()}
    return {name: key for name, key in keys.items() if key} | {name: name for name in _FIELDS_OF_SEVERAL_FILES}


def _task_of_class(class_name: str) -> str:
    """The task in the name of a class of Transformers, such as `CausalLM`; empty for a model without a head."""
    for old, new in (("LMHeadModel", "ForCausalLM"), ("ForConditionalGeneration", "ForSeq2SeqLM")):
        class_name = class_name.replace(old, new)
    return class_name.partition("For")[2]


def _read_count(key: str, value: Value) -> int:
    number = _read_number(key, value)
    minimum = 0 if key == "zero_stage" else 1
    if number != int(number) or number < minimum:
        raise CourseError(f"{value.origin}: {key} must be a whole number from {minimum} on, not {value.value!r}.")
    return int(number)


def _read_number(key: str, value: Value) -> float:
    number = nan
    if not isinstance(value.value, bool):
        with suppress(TypeError, ValueError, OverflowError):
            number = float(0 if value.value is None else value.value)
    if not abs(number) < 1e15:
        raise CourseError(f"{value.origin}: {key} must be a number, not {value.value!r}.")
    return number


def _read_switch(key: str, value: Value) -> bool:
    switch = _SWITCHES.get(str(value.value).lower())
    if switch is None:
        raise CourseError(f"{value.origin}: {key} must be true or false, not {value.value!r}.")
    return switch


def _read_names(key: str, value: Value) -> tuple[str, ...]:
    names = value.value
    if isinstance(names, str):
        names = [name.strip() for name in names.split(",")] if re.fullmatch(r"[\w.,\s-]+", names) else [names]
    if not (isinstance(names, list) and names and all(isinstance(name, str) and name for name in names)):
        raise CourseError(f"{value.origin}: {key} must be names, not {value.value!r}.")
    return tuple(names)


# Functions that read a setting, by the type of the field's default.
_CONVERTERS = {bool: _read_switch, int: _read_count, float: _read_number}
