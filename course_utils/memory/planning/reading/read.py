"""The arguments of `course plan` as a reading: a model, files of settings, a script, a launch line."""

from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from course_utils.errors import CourseError
from course_utils.memory.planning.reading.fields import Reading
from course_utils.memory.planning.reading.hub import describe, find_model
from course_utils.memory.planning.reading.launch import read_launcher, split_launch_line
from course_utils.memory.planning.reading.settings import (
    Computed,
    Script,
    Settings,
    Value,
    read_keys,
    read_script,
    require_file,
    text_of,
)
from course_utils.memory.planning.reading.tools import PEFT_VERSION, UNKNOWN, Tool, Unmodeled, tables, tool_of
from course_utils.memory.step.recipe import flag_of
from course_utils.models import SETTINGS, is_model

_ARGUMENT_CLASSES = ("TrainingArguments", "Seq2SeqTrainingArguments", "SFTConfig")
_TRAINER_CLASSES = ("Trainer", "Seq2SeqTrainer", "SFTTrainer")
# Arguments of a trainer that count; the last two are names of an older TRL.
_TRAINER_ARGUMENTS = ("compute_metrics", "optimizers", "max_seq_length", "packing")
_BIT_FLAGS = ("load_in_4bit", "load_in_8bit")
_NO_MODELS = ("Tokenizer", "Processor", "Config", "FeatureExtractor", "Peft")


def read(arguments: Iterable[str], launch: Iterable[str] | None = None, ranks: int | None = None) -> Reading:
    """Read a model and how it is trained: `arguments` are a model and files in any order, `launch` is the line after `--`.

    A later file overrides an earlier one, and the launch line overrides all files. `ranks` is the value of that flag, on which
    other values depend. No script is run and no pickle is opened. Raises `CourseError` for an argument that is none of these, and
    for a file that says that it leaves something out.
    """
    arguments = list(arguments)
    settings, files_read = {}, _Files()
    models = [text for text in arguments if is_model(text)]
    files = [text for text in arguments if text not in models]
    if len(models) > 1:
        raise CourseError(f"{models[0]!r} and {models[1]!r} are no files here, so both must be models; give one model.")
    parts = [files_read.read_file(Path(file)) for file in files]
    if launch is not None:
        launch_parts, settings = files_read.read_launch(list(launch))
        parts += launch_parts
    settings |= _translate(parts)
    settings |= files_read.read_deepspeed_file(settings)
    if ranks is not None:
        settings["ranks"] = Value(ranks, flag_of("ranks"))
    name = Value(models[0], "the command") if models else _name_in(settings, arguments)
    model = find_model(name.value)
    tools = [tool for tool, _ in parts]
    tool = next((tool for tool in tools if tool.loop), tools[0] if tools else None)
    if tool is None:
        return Reading(model)
    result = Reading.from_settings(model, name.origin, settings, tool, describe(model))
    return replace(result, unmodeled=result.unmodeled | files_read.problems)


def _name_in(settings: Settings, arguments: list[str]) -> Value:
    """The model's name in the settings of `arguments`; raises `CourseError` if there is none."""
    name = settings.get("model_name_or_path")
    if name is not None and isinstance(name.value, str) and name.value.strip():
        # Not the course's own small model of that name.
        return Value({"gpt2": "gpt2-small"}.get(name.value, name.value), name.origin)
    problem = f"{name.origin} does not write it down" if name is not None else "Nothing names it"
    raise CourseError(
        f"Which model is it? {problem}; name it first: course plan llama-3.1-8b {' '.join(arguments)} --memory 24GB."
    )


def _translate(parts: list[tuple[Tool, Settings]]) -> Settings:
    """All settings by TRL's keys. Those of one tool are translated together, and those of launchers are overridden."""
    merged: dict[str, tuple[Tool, Settings]] = {}
    for tool, settings in sorted(parts, key=lambda part: bool(part[0].loop)):
        first, others = merged.get(tool.key, (tool, {}))
        merged[tool.key] = first, others | settings
    return {key: value for tool, settings in merged.values() for key, value in tool.translate(settings).items()}


class _Files:
    """Files, scripts and launch lines, each read as a tool and its settings; `problems` are what these do beyond any setting."""

    def __init__(self):
        self.problems: dict[str, Unmodeled] = {}

    def read_file(self, path: Path, launch_arguments: Settings | None = None) -> tuple[Tool, Settings]:
        """The tool of a file and its settings; a script may take `launch_arguments`."""
        require_file(path)
        if path.suffix.lower() == ".py":
            return self._read_script(path, launch_arguments or {})
        for number, line in enumerate(text_of(path).splitlines(), 1):
            if line.lower().startswith("# no setting:"):
                left_out = line.partition(":")[2].strip()
                raise CourseError(
                    f"{path}:{number} says what this file leaves out: {left_out} Give it as a flag, and delete the line."
                )
        settings = read_keys(path)
        tool = tool_of(settings)
        if tool is None:
            raise CourseError(
                f"{path} has no key by which files of TRL, Trainer, Accelerate, DeepSpeed, LLaMA-Factory or axolotl are "
                "known; give one of these."
            )
        if tool.key == "trainer" and path.suffix.lower() != ".json":  # Trainer itself reads no YAML
            tool = tables().tools["trl"]
        if tool.key == "llama-factory" and not settings.get("do_train", Value(False, "")).value:
            by = ", ".join(key for key in settings if key in tool.known_by)
            raise CourseError(
                f"{path} is LLaMA-Factory's, by the key {by}, and does not train, since do_train is not true; give the file "
                "that does."
            )
        _refuse_misspelled(settings, tool)
        return tool, settings

    def _read_script(self, path: Path, launch_arguments: Settings) -> tuple[Tool, Settings]:
        """The tool and the settings of a script, whose own parser takes those `launch_arguments` that it knows."""
        script = read_script(path, launch_arguments)
        is_trl = any(name.startswith("SFT") for name in script.names)
        takes_flags = bool(script.names & {"HfArgumentParser", "TrlParser"})
        if not (takes_flags or script.names & {*_ARGUMENT_CLASSES, *_TRAINER_CLASSES}):
            raise CourseError(
                f"{path} makes no TrainingArguments and no SFTConfig; for a module of your own write {path}:FUNCTION."
            )
        tool = tables().tools["trl" if is_trl else "trainer"]
        settings: Settings = {}
        for function, calls in script.calls.items():
            for call in calls:
                settings |= self._read_call(function.rpartition(".")[2], call, tool)
        settings |= self._read_model(script)
        if "optimizers" in settings:
            self._note_unknown("optimizer", settings["optimizers"], "hands over an optimizer; say it with --optimizer")
        for name in script.names & tables().unmodeled.keys():
            key = "frozen" if name.startswith("requires_grad") else name
            self.problems[key] = tables().unmodeled[name].said_by(f"{name} ({path.name})")
        if is_trl and any(function.endswith("from_pretrained") for function in _list_loaders(script)):
            # The default of Transformers, which loads the model here.
            tool = replace(tool, defaults={**tool.defaults, "dtype": "auto"})
        if takes_flags or not script.options:
            return tool, settings | launch_arguments
        return tool, settings

    def _read_call(self, function: str, call: Settings, tool: Tool) -> Settings:
        """The settings in the arguments of a call that configures or makes a trainer, or cuts texts."""
        if function in _ARGUMENT_CLASSES:
            self._note_computed(call)
            settings = {key: value for key, value in call.items() if key.isidentifier()}
            _refuse_misspelled(settings, tool)
            return settings
        if function in _TRAINER_CLASSES:
            settings = {key: call[key] for key in _TRAINER_ARGUMENTS if key in call}
            model = call.get("model") or call.get("0")
            return settings | ({"model_name_or_path": model} if model and isinstance(model.value, str) else {})
        return {"max_length": call["max_length"]} if "tokenizer" in function.lower() and "max_length" in call else {}

    def _read_model(self, script: Script) -> Settings:
        """The settings on the model that a script loads: name, dtype, attention, adapters and 4 bits."""
        settings: Settings = {}

        def take(call: Settings, **names: str) -> None:
            settings.update({new: call[key] for key, new in names.items() if key in call})

        for function in _list_loaders(script):
            for call in script.calls[function]:
                settings["class"] = Value(function.rpartition(".")[0], call["()"].origin)
                take(call, **{"0": "model_name_or_path", "pretrained_model_name_or_path": "model_name_or_path"})
                take(call, model_name="model_name_or_path", dtype="dtype", torch_dtype="dtype", num_labels="num_labels")
                take(call, **{key: key for key in ("attn_implementation", *_BIT_FLAGS)})
        for call in script.calls.get("BitsAndBytesConfig", []):
            self._note_computed(call)
            take(call, bnb_4bit_use_double_quant="use_bnb_nested_quant", **{key: key for key in _BIT_FLAGS})
        for call in script.calls.get("LoraConfig", []):
            self._note_computed(call)
            settings |= {"use_peft": Value(True, call["()"].origin), "lora_r": Value(8, f"default of {PEFT_VERSION}")}
            settings["lora_dropout"] = Value(0.0, f"default of {PEFT_VERSION}")
            take(call, r="lora_r", **{key: key for key in ("task_type", "lora_dropout", "use_dora")})
            take(call, **{key: f"lora_{key}" for key in ("target_modules", "target_parameters", "modules_to_save")})
        for call in script.calls.get("prepare_model_for_kbit_training", []):
            settings["upcast"] = Value(True, call["()"].origin)
        return settings

    def _note_computed(self, call: Settings) -> None:
        if "**" in call:
            self._note_unknown("**", call["**"], "hands over arguments by ** that are computed")

    def _note_unknown(self, key: str, value: Value, reason: str) -> None:
        self.problems[key] = Unmodeled(UNKNOWN, f"{value.origin} {reason}")

    def read_launch(self, argv: list[str]) -> tuple[list[tuple[Tool, Settings]], Settings]:
        """The files that a launch line names and its arguments, each with its tool, and the launcher's settings."""
        line = split_launch_line(argv)
        target = line.target
        files = [file for file in (target, *line.files) if file.lower().endswith(SETTINGS)]
        if config := line.arguments.get("config"):
            files.append(str(config.value))
        parts = [self.read_file(Path(file), line.arguments) for file in files]
        tool = parts[0][0] if parts else None
        if line.launcher == "trl":
            tool = tables().tools["trl"]
            if target != "sft":
                self.problems["rl"] = tables().unmodeled["rl"].said_by(f"trl {target}")
        if tool is None:
            raise CourseError(f"{target} is a module that is not read; give its script or file of settings instead.")
        if not target.endswith(".py"):
            _refuse_misspelled(line.arguments, tool)
            parts.append((tool, line.arguments))
        settings, problems = read_launcher(line.launcher, line.flags)
        self.problems |= problems
        return parts, settings

    def read_deepspeed_file(self, settings: Settings) -> Settings:
        """The settings in the file that `deepspeed: FILE` names, without those that Trainer's settings have already."""
        file = settings.get("deepspeed")
        if file is None or not isinstance(file.value, str | Computed) or not file.value:
            return {}
        if isinstance(file.value, Computed) or not Path(file.value).is_file():
            self._note_unknown("deepspeed", file, "names a file of DeepSpeed's that is not here")
            return {}
        inner = tables().tools["deepspeed"].translate(read_keys(Path(file.value)))
        return {key: value for key, value in inner.items() if key not in settings}


def _refuse_misspelled(settings: Settings, tool: Tool) -> None:
    """Refuse a key that is nearly one that counts, which would else silently keep its default."""
    keys = {*tool.defaults, *tool.rename, *tables().unmodeled}
    keys |= {"model_name_or_path", "lora_target_modules", "attn_implementation"}
    for key, value in settings.items():
        matches = get_close_matches(key, keys, 1, cutoff=0.9) if key not in keys and len(key) > 5 else []
        if matches and matches[0] not in settings:
            raise CourseError(f"{value.origin}: {tool.name} has no key {key!r}; did you mean {matches[0]}?")


def _list_loaders(script: Script) -> list[str]:
    ends = (".from_pretrained", ".from_config")
    return [name for name in script.calls if name.endswith(ends) and not any(no in name for no in _NO_MODELS)]
