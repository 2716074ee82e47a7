"""What people have, read as a recipe: files of TRL, Trainer, Accelerate, DeepSpeed, LLaMA-Factory and axolotl, scripts, launch lines."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path

from course_utils.errors import CourseError
from course_utils.memory.reading.fields import Found, fields_of
from course_utils.memory.reading.hub import describe, find_model
from course_utils.memory.reading.settings import (
    Computed,
    Script,
    Settings,
    Value,
    read_json,
    read_launch,
    read_script,
    read_yaml,
    text_of,
)
from course_utils.memory.reading.tools import (
    ACCELERATE,
    AT_LEAST,
    TRAINER,
    TRANSLATIONS,
    TRL,
    TRL_SCRIPT,
    UNKNOWN,
    UNMODELLED_NAMES,
    Tool,
    from_accelerate,
    kind_of,
)

_FILES = (".yaml", ".yml", ".json", ".py", ".bin", ".pt", ".pkl")
_ARGUMENTS = ("TrainingArguments", "Seq2SeqTrainingArguments", "SFTConfig")
_NO_MODELS = ("Tokenizer", "Processor", "Config", "FeatureExtractor", "PeftModel", "Pipeline")
_LARGEST_NAME = 200


@dataclass(frozen=True)
class Reading:
    """What was read: the `model` as `memory.estimate` takes it, fields of a recipe, and where each stands.

    `unmodelled` has, by the key that says it, what the plan does not count: `at least: …` or `unknown: …`, with the reason.
    `loop` is the one that runs, `own` for one of the user's.
    """

    model: str | None
    fields: dict[str, object] = field(default_factory=dict)
    provenance: dict[str, str] = field(default_factory=dict)
    unmodelled: dict[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    loop: str = ""

    @property
    def effect(self) -> str:
        """How the verdict must be read: `unknown`, `at least`, or empty where all is counted."""
        effects = {said.partition(":")[0] for said in self.unmodelled.values()}
        return next((effect for effect in (UNKNOWN, AT_LEAST) if effect in effects), "")

    def over(self, flags: dict[str, object]) -> "Reading":
        """The same with fields that a command's flags say; what was unknown of such a field is known then."""
        fields, provenance = {**self.fields, **flags}, dict(self.provenance)
        provenance |= {name: f"--{name.replace('_', '-')}" for name in flags if self.fields or self.provenance}
        unmodelled, remarks = {key: why for key, why in self.unmodelled.items() if key not in flags}, list(self.remarks)
        if fields.get("zero_stage") and fields.get("ranks", 1) == 1 and "zero_stage" not in flags:
            remarks.append(
                f"One rank has nothing to share: stage {fields['zero_stage']} ({provenance['zero_stage']}) is left out."
            )
            fields["zero_stage"] = 0
        if not fields.get("lora", 1):
            for name in ("lora_targets", "modules_to_save", "quantized", "double_quantization", "upcast"):
                fields.pop(name, None) if name not in flags else None
        return replace(self, fields=fields, provenance=provenance, unmodelled=unmodelled, remarks=tuple(remarks))

    def table(self) -> list[str]:
        """A line for each field: its value and where it stands."""
        rows = [
            (f"{name}={self.fields[name]}", where) for name, where in self.provenance.items() if name in self.fields
        ]
        width = max((len(said) for said, _ in rows), default=0)
        return [f"  {said:<{width}}  {where}" for said, where in rows]


def read(words: Iterable[str], launch: Iterable[str] | None = None) -> Reading:
    """What `course plan` is asked about: `words` are a model and files in any order, `launch` is the line after `--`.

    Later files count before earlier ones, and the launch line before all. No script is run and no pickle opened. Raises
    `CourseError` for what is none of these, and for a file that says it leaves something out.
    """
    models, settings, tools, found = [], {}, [], Found()
    for word in words:
        if not _is_file(word):
            models.append(word)
            continue
        tool, said = _read_file(Path(word), found)
        tools.append(tool)
        settings |= said
    if launch is not None:
        tool, said = _read_launch(list(launch), found)
        tools.append(tool)
        settings |= said
    if len(models) > 1:
        raise CourseError(f"{models[0]!r} and {models[1]!r} both look like models; give one, and files that exist.")
    if not tools and not models:
        raise CourseError(
            "Name a model, a file of settings, or a launch line after --: course plan gpt2-small --memory 24GB."
        )
    settings |= _beside(settings, found)
    tool = next((one for one in tools if one.loop), tools[0] if tools else None)
    name = models[0] if models else None
    model, source = name, None
    if name is None:
        said = settings.get("model_name_or_path")
        if (
            said is None
            or isinstance(said.value, Computed)
            or not isinstance(said.value, str)
            or not said.value.strip()
        ):
            why = (
                f"{said.where} computes it"
                if said is not None and isinstance(said.value, Computed)
                else "no file names it"
            )
            raise CourseError(
                f"Which model is it? {why.capitalize()}; put it first: course plan MODEL {' '.join(words)} …."
            )
        model, source = said.value, said.where
    model = find_model(model) if len(model) <= _LARGEST_NAME and ".py:" not in model else model
    if tool is None:
        return Reading(model)
    read_fields = fields_of(settings, tool, describe(model))
    unmodelled = read_fields.unmodelled | found.unmodelled
    provenance = ({"model": source} if source else {}) | read_fields.provenance
    return Reading(model, read_fields.fields, provenance, unmodelled, (*found.remarks, *read_fields.remarks), tool.loop)


def _is_file(word: str) -> bool:
    """Whether a word is a file of settings; a model's config.json and FILE.py:FUNCTION are models."""
    path = Path(word)
    if path.suffix.lower() not in _FILES or len(word) > _LARGEST_NAME:
        return False
    if not path.is_file():
        if path.suffix.lower() == ".json":
            return False  # the model's own door says what is near
        raise CourseError(f"There is no file {path}.")
    return path.suffix.lower() != ".json" or not {"model_type", "architectures"} & read_json(path).keys()


def _read_file(path: Path, found: Found) -> tuple[Tool, Settings]:
    if path.suffix.lower() == ".py":
        return _read_script(path, found)
    settings = read_json(path) if path.suffix.lower() == ".json" else read_yaml(path)
    if path.suffix.lower() != ".json":
        for number, line in enumerate(text_of(path).splitlines(), 1):
            if line.lower().startswith("# no setting"):
                raise CourseError(
                    f"{path}:{number} says what this file leaves out ({line.partition(':')[2].strip()}); give it as a flag, and "
                    "delete the line."
                )
    kind = kind_of(settings)
    if kind is None:
        raise CourseError(
            f"{path} has no key of TRL, Trainer, Accelerate, DeepSpeed, LLaMA-Factory or axolotl; give one of their files."
        )
    if kind == "trainer" and path.suffix.lower() != ".json":
        kind = "trl"
    if kind == "llama-factory" and not settings.get("do_train", Value(False, "")).value:
        raise CourseError(f"{path} does not train, since do_train is not true; give the file that does.")
    tool, translate = TRANSLATIONS[kind]
    if kind not in ("accelerate", "deepspeed"):
        _refuse_misspelled(settings, tool)
    if kind in ("accelerate", "deepspeed") and "DeepSpeed" in translate(settings):
        found.remarks.append(f"{path.name} is DeepSpeed's: what it leaves at auto comes from the other settings.")
    return tool, translate(settings)


def _refuse_misspelled(settings: Settings, tool: Tool) -> None:
    """A key that nearly spells one that counts would leave that one at its default, unsaid."""
    known = {*tool.defaults, "per_device_train_batch_size", "model_name_or_path", "lora_target_modules"}
    for key, value in settings.items():
        near = get_close_matches(key, known, 1, cutoff=0.9) if key not in known and len(key) > 5 else []
        if near and near[0] not in settings:
            raise CourseError(f"{value.where}: {tool.name} has no key {key!r}; do you mean {near[0]}?")


def _read_script(path: Path, found: Found) -> tuple[Tool, Settings]:
    script = read_script(path)
    is_trl = any("SFT" in name for name in script.names)
    takes_flags = bool(script.names & {"HfArgumentParser", "TrlParser"})
    if not takes_flags and not script.names & {*_ARGUMENTS, "Trainer"}:
        near = "; for a module of your own write FILE.py:FUNCTION" if script.calls else ""
        raise CourseError(f"{path} makes no TrainingArguments and no SFTConfig{near}.")
    settings = {key: value for key, value in script.settings(*_ARGUMENTS).items() if not key.isdigit()}
    if "**" in settings:
        found.unmodelled["**"] = f"{UNKNOWN}: {settings['**'].where} hands over arguments by ** that are computed"
    settings |= _model_of(script)
    settings |= _adapters_of(script)
    for trainer in ("SFTTrainer", "Trainer", "Seq2SeqTrainer"):
        for call in script.calls.get(trainer, []):
            settings |= {key: call[key] for key in ("compute_metrics", "optimizers") if key in call}
            said = call.get("model")
            if said and isinstance(said.value, str):
                settings["model_name_or_path"] = said
    if "optimizers" in settings:
        found.unmodelled["optimizer"] = (
            f"{UNKNOWN}: {settings['optimizers'].where} makes the optimizer; say it with --optimizer"
        )
    for name in sorted(script.names & UNMODELLED_NAMES.keys()):
        effect, _, why = UNMODELLED_NAMES[name].partition(": ")
        found.unmodelled["frozen" if name.startswith("requires_grad") else name] = (
            f"{effect}: {name} ({path.name}): {why}"
        )
    tool, translate = TRANSLATIONS["sft" if is_trl else "trainer"]
    if is_trl and "ModelConfig" in script.names:
        tool = TRL
    settings = translate(settings)
    inits = settings.get("model_init_kwargs")
    if inits is not None and isinstance(inits.value, dict):
        settings |= {
            key: Value(one, inits.where) for key, one in inits.value.items() if key in ("dtype", "attn_implementation")
        }
    loads_itself = is_trl and "dtype" not in settings and _loads_model(script)
    return replace(tool, defaults={**tool.defaults, "dtype": "auto"}) if loads_itself else tool, settings


def _loads_model(script: Script) -> bool:
    return any(
        name.endswith("from_pretrained") and not any(no in name for no in _NO_MODELS)
        for name in script.calls
        if "." in name
    )


def _model_of(script: Script) -> Settings:
    """The model of `….from_pretrained(…)`, its dtype and attention, and how long a tokenizer cuts texts."""
    settings: Settings = {}
    for function, calls in script.calls.items():
        owner, _, last = function.rpartition(".")
        if last == "from_pretrained" and owner and not any(no in owner for no in _NO_MODELS):
            for call in calls:
                first = call.get("0") or call.get("pretrained_model_name_or_path") or call.get("model_name")
                settings |= {"model_name_or_path": first} if first else {}
                words = ("dtype", "torch_dtype", "attn_implementation", "load_in_8bit", "load_in_4bit")
                settings |= {key: call[key] for key in words if key in call}
        elif "tokenizer" in last.lower() or "processor" in last.lower():
            for call in calls:
                if "max_length" in call:
                    settings["max_length"] = call["max_length"]
    return settings


def _adapters_of(script: Script) -> Settings:
    settings: Settings = {}
    names = {
        "r": "lora_r",
        "target_modules": "lora_target_modules",
        "modules_to_save": "lora_modules_to_save",
        "use_dora": "use_dora",
        "target_parameters": "lora_target_parameters",
    }
    for call in script.calls.get("LoraConfig", []):
        where = next(iter(call.values())).where if call else "LoraConfig"
        settings |= {"use_peft": Value(True, where)} | {new: call[key] for key, new in names.items() if key in call}
    four = {
        "load_in_4bit": "load_in_4bit",
        "load_in_8bit": "load_in_8bit",
        "bnb_4bit_use_double_quant": "use_bnb_nested_quant",
    }
    for call in script.calls.get("BitsAndBytesConfig", []):
        settings |= {new: call[key] for key, new in four.items() if key in call}
    if calls := script.calls.get("prepare_model_for_kbit_training"):
        settings["upcast"] = Value(True, next((one.where for call in calls for one in call.values()), "the script"))
    return settings


def _read_launch(words: list[str], found: Found) -> tuple[Tool, Settings]:
    line = read_launch(words)
    flags, settings, tool = line.flags, {}, None
    if line.launcher == "accelerate":
        settings |= _accelerate_of(flags, found)
    ranks = [flags[key] for key in ("nproc_per_node", "num_gpus") if key in flags]
    nodes = [flags[key] for key in ("nnodes", "num_nodes") if key in flags]
    if ranks and isinstance(ranks[0].value, int):
        many = nodes[0].value if nodes and isinstance(nodes[0].value, int) else 1
        settings["ranks"] = Value(ranks[0].value * many, ranks[0].where)
    elif line.launcher in ("torchrun", "deepspeed", "accelerate") and "ranks" not in settings:
        found.unmodelled["ranks"] = f"{UNKNOWN}: {line.launcher} takes as many ranks as it finds; say it with --ranks"
    elif line.launcher == "python":
        settings["ranks"] = Value(1, "launch line")
    files = [Path(word) for word in (line.target, *line.files) if word.endswith((".yaml", ".yml", ".json"))]
    config = line.arguments.get("config")
    if config is not None and isinstance(config.value, str):
        files.append(Path(config.value))
    if line.launcher == "trl":
        tool = TRL
        if line.target != "sft":
            found.unmodelled[line.target] = (
                f"{AT_LEAST}: trl {line.target}: a reference model or generation is not counted"
            )
    elif line.target.endswith(".py"):
        if not Path(line.target).is_file():
            raise CourseError(f"There is no file {line.target}; start course plan in the folder where you launch it.")
        tool, said = _read_script(Path(line.target), found)
        settings |= said
    for path in files:
        if not path.is_file():
            raise CourseError(f"There is no file {path}; start course plan in the folder where you launch it.")
        file_tool, said = _read_file(path, found)
        tool, settings = tool or file_tool, settings | said
    if tool is None:
        raise CourseError(
            f"{line.target} is a module that cannot be read from here; give its script, or its file of settings."
        )
    key = next((one for one, (known, _) in TRANSLATIONS.items() if known.name == tool.name and known.loop), "trainer")
    _refuse_misspelled(line.arguments, tool)
    return tool, settings | TRANSLATIONS[key][1](line.arguments)


def _accelerate_of(flags: Settings, found: Found) -> Settings:
    """What `accelerate launch` is told: its file, or the one of `accelerate config` where it is given none, and its flags."""
    config = flags.get("config_file")
    path = Path(str(config.value)) if config else Path.home() / ".cache/huggingface/accelerate/default_config.yaml"
    if config and not path.is_file():
        raise CourseError(f"There is no file {path}; start course plan in the folder where you launch it.")
    said = read_yaml(path) if path.is_file() else {}
    said |= flags
    if flags.get("use_deepspeed", Value(False, "")).value:
        said["distributed_type"] = Value("DEEPSPEED", flags["use_deepspeed"].where)
    return from_accelerate(said)


def _beside(settings: Settings, found: Found) -> Settings:
    """What the file says that `deepspeed: FILE` names."""
    said = settings.get("deepspeed")
    if said is None or not isinstance(said.value, str) or not said.value:
        return {}
    path = Path(said.value)
    if not path.is_file():
        found.unmodelled["deepspeed"] = f"{UNKNOWN}: {said.where} names {path}, which is not here"
        return {}
    deepspeed = TRANSLATIONS["deepspeed"][1](read_json(path))
    return {
        key: value
        for key, value in deepspeed.items()
        if key not in settings or key in ("zero_stage", "offload", "DeepSpeed")
    }
