"""The configuration of a model by its name, or from its `config.json`; sizes that make no model are refused."""

import json
import logging
import re
from contextlib import suppress
from difflib import get_close_matches
from inspect import getfile, signature
from pathlib import Path
from typing import TYPE_CHECKING

from course_utils.errors import CourseError, require_count, suggest
from course_utils.models.public import PUBLIC
from course_utils.settings import Scale, settings

if TYPE_CHECKING:
    from transformers import PretrainedConfig

FAMILIES = {
    "distilbert": ("DistilBertConfig", "DistilBertForMaskedLM", "DistilBertForSequenceClassification"),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", "GPT2ForSequenceClassification"),
    "llama": ("LlamaConfig", "LlamaForCausalLM", "LlamaForSequenceClassification"),
}
"""The course's own families: names of Transformers' configuration, language model and classifier."""
PUBLISHED = {
    "distilbert-base-cased": ("distilbert", {"vocab_size": 28_996}),
    "gpt2-large": ("gpt2", {"n_embd": 1280, "n_layer": 36, "n_head": 20}),
    "llama-7b": ("llama", {}),
}
"""Models of these families; those of others are in `public`."""
NAMES = (*FAMILIES, *PUBLISHED, *PUBLIC)
"""All names by which a model is known here."""
_HUB = {public.hub.lower(): name for name, public in PUBLIC.items()}
_ALIASES = {hub.rpartition("/")[2]: name for hub, name in _HUB.items()} | _HUB | {name.lower(): name for name in NAMES}
SIZES = frozenset(
    (
        *("hidden_size", "n_embd", "dim", "intermediate_size", "n_inner", "hidden_dim"),
        *("num_hidden_layers", "n_layer", "n_layers", "num_attention_heads", "n_head", "n_heads"),
        *("num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings", "n_positions", "num_labels"),
    )
)
"""The names of sizes in the configurations of Llama, GPT-2 and DistilBERT; several are names of the same."""


def canonical_name(name: str) -> str:
    """The name in `NAMES` of a model that is written in other capitals or named as on the Hub; or `name` itself."""
    return _ALIASES.get(name.lower(), name)


SETTINGS = (".yaml", ".yml", ".json", ".py", ".bin", ".pt", ".pkl")
"""Endings of files that say how something is trained. A model has `.json` too, and is distinguished by its content."""


def is_model(word: str) -> bool:
    """Whether `word` stands for a model (a name, a `config.json`, its folder or FILE.py:FUNCTION), not a file of settings."""
    path = Path(word)
    if path.suffix.lower() != ".json":
        return path.suffix.lower() not in SETTINGS
    # Of one that is not there a model's own door says which is near.
    return not path.is_file() or any(key in path.read_bytes() for key in (b'"model_type"', b'"architectures"'))


def configuration(name: str, *, labels: int | None = None, scale: Scale | None = None, **changes) -> "PretrainedConfig":
    """The configuration from which `build` makes a model, whose class is in `architectures`; arguments and errors as there.

    `name` may also be one of `PUBLIC`, models of others, which take no labels and no scale, or their name on the Hub.
    """
    import transformers

    name = canonical_name(name)
    if name in PUBLIC:
        model = PUBLIC[name]
        config_class = getattr(transformers, model.architecture).config_class
        _refuse_unknown(changes, config_class)
        return config_class(**{**model.sizes, **changes, "architectures": [model.architecture]})
    if "num_labels" in changes or not (labels is None or (type(labels) is int and labels > 0)):
        raise CourseError(
            "The number of classes is labels=…, a whole number from 1 on; leave it out for a language model."
        )
    family, sizes = _family_and_sizes(name, scale)
    config_name, language_model, classifier = FAMILIES[family]
    config_class = getattr(transformers, config_name)
    _refuse_unknown(changes, config_class)
    for change, value in changes.items():
        if change in SIZES and value is not None:  # as GPT-2's inner width may be, and Llama's width of a head
            require_count(change, value)
    if name in FAMILIES and scale is None:
        _refuse_half_a_size(name, sizes, changes, config_class)
    try:
        config = config_class(**{**sizes, **changes}, **({} if labels is None else {"num_labels": labels}))
    except Exception as error:  # Transformers checks by kinds of its own, and names the setting in the last line
        raise CourseError(f"{config_class.__name__} does not take this: {_last_line(error)}.") from error
    _refuse_sizes_that_make_no_model(config)
    if config.pad_token_id is None:
        config.pad_token_id = 0
    config.architectures = [language_model if labels is None else classifier]
    return config


def from_json(path: Path) -> "PretrainedConfig":
    """The configuration in a model's `config.json`; raises `CourseError` where that holds none, or of an unknown family."""
    from transformers import CONFIG_MAPPING

    if not path.is_file():
        raise CourseError(f"There is no file {path}; give the config.json of a model, its folder, or a name.")
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        family = fields.pop("model_type")
    except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        reason = "it has none" if isinstance(error, KeyError) else _last_line(error)
        raise CourseError(
            f"{path} could not be read as a model's config.json, an object with a model_type ({reason})."
        ) from error
    config_class = CONFIG_MAPPING[family] if family in CONFIG_MAPPING else _find_config_class(fields)
    if config_class is None:
        nearest = ", ".join(get_close_matches(str(family), CONFIG_MAPPING, 3)) or "none"
        raise CourseError(
            f"This version of Transformers knows no family {family!r} (nearest: {nearest}); update it, or give a function that "
            "makes the model."
        )
    if config_class.model_type != family:
        fields["family"] = family
    remarks = logging.getLogger("transformers")
    level = remarks.level
    remarks.setLevel(logging.ERROR)  # of token ids outside a vocabulary, also of those of a family's usual sizes
    try:
        _refuse_misspelled(fields, config_class, path)
        _write_as_today(fields, config_class)
        config = config_class(**fields)
    except CourseError:
        raise
    except Exception as error:  # Transformers checks by kinds of its own
        raise CourseError(f"{path} is no configuration of {family}: {_last_line(error)}.") from error
    finally:
        remarks.setLevel(level)
    _refuse_heads_that_share_no_keys(config)
    return config


def remarks_on(config: "PretrainedConfig") -> list[str]:
    """Sentences on fields of a `config.json` that Transformers does not use."""
    config_class = type(config)
    defaults = {}
    with suppress(Exception):  # of a family that has no usual sizes
        defaults = vars(config_class())
    remarks = []
    if getattr(config, "family", config_class.model_type) != config_class.model_type and "family" not in defaults:
        remarks.append(f"its family {config.family} is read as {config_class.model_type}, which its class belongs to")
    if getattr(config, "quantization_config", None):
        remarks.append("its quantization_config is left out: the model is planned as if its weights were not quantized")
    field_names = {*defaults, *config_class.attribute_map, *signature(config_class).parameters}
    field_names |= {"architectures", "family", "quantization_config"}
    code = "".join(path.read_text(encoding="utf-8") for path in Path(getfile(config_class)).parent.glob("*.py"))
    unknown = sorted(name for name in vars(config).keys() - field_names if not name.startswith("_")) if defaults else []
    ignored = [name for name in unknown if not re.search(rf"\b{name}\b", code)]  # it may be read where it is there
    if ignored:
        rest = f" and {len(ignored) - 3} more" if len(ignored) > 3 else ""
        remarks.append(f"{config_class.__name__} ignores {', '.join(ignored[:3])}{rest}, which the configuration has")
    return remarks


def _find_config_class(fields: dict) -> "type[PretrainedConfig] | None":
    """The configuration of a class that Transformers has, whatever its publisher calls the family."""
    import transformers

    architecture = (fields.get("architectures") or [""])[0]
    return getattr(getattr(transformers, str(architecture), None), "config_class", None)


def _write_as_today(fields: dict, config_class: type) -> None:
    """Write switches that once were numbers as booleans, in inner configurations too."""
    from transformers import CONFIG_MAPPING

    for name, parameter in signature(config_class).parameters.items():
        if parameter.annotation is bool and type(fields.get(name)) is int:
            fields[name] = bool(fields[name])
    for name, inner in getattr(config_class, "sub_configs", {}).items():
        part = fields.get(name)
        if isinstance(part, dict):
            is_known = part.get("model_type") in CONFIG_MAPPING
            _write_as_today(part, CONFIG_MAPPING[part["model_type"]] if is_known else inner)


def _refuse_misspelled(fields: dict, config_class: type, path: Path) -> None:
    """Refuse a field that nearly spells another, since Transformers would ignore it and use the other's default."""
    names = {*signature(config_class).parameters, *config_class.attribute_map}
    default = None
    with suppress(Exception):  # of a family that has no usual sizes
        default = config_class()
        names |= default.to_dict().keys()
    sizes = {name for name in names - fields.keys() if name in SIZES or _is_a_size(name, getattr(default, name, None))}
    for name in sorted(fields.keys() - names):
        for correct_name in get_close_matches(name, sizes, 1, cutoff=0.9):
            raise CourseError(
                f"{path} has a field {name!r}, which {config_class.model_type} does not know; rename it to {correct_name!r}."
            )


def _is_a_size(name: str, default: object) -> bool:
    return type(default) is int and "token_id" not in name and not name.startswith("_")


def tokenizer_beside(model: str) -> Path | None:
    """The folder of a model's `config.json` if it also has a tokenizer, else None."""
    folder = Path(model) if Path(model).is_dir() else Path(model).parent
    return folder if Path(model).exists() and (folder / "tokenizer.json").is_file() else None


def _family_and_sizes(name: str, scale: Scale | None) -> tuple[str, dict]:
    if not isinstance(scale, Scale | None):
        raise CourseError(f"scale={scale!r} is no Scale; give one of settings.SCALES, such as SCALES['smoke'].")
    if name in PUBLISHED:
        return PUBLISHED[name]
    if name not in FAMILIES:
        fallback = f"give its config.json, or choose one of {', '.join(NAMES)}."
        advice = suggest(name, NAMES, fallback)
        addition = "" if advice == fallback else " Any other is given by its config.json."
        raise CourseError(f"No model is called {name!r}; {advice}{addition}")
    s = scale or settings().scale
    sizes = {"vocab_size": s.vocabulary}
    positions = max(2 * s.sequence, 128)
    if name == "distilbert":
        sizes |= {"dim": s.width, "hidden_dim": 4 * s.width, "n_layers": s.layers, "n_heads": s.heads}
        return name, sizes | {"max_position_embeddings": positions}
    if name == "gpt2":
        sizes |= {"n_embd": s.width, "n_layer": s.layers, "n_head": s.heads, "n_positions": positions}
    else:
        sizes |= {"hidden_size": s.width, "intermediate_size": 4 * s.width, "num_hidden_layers": s.layers}
        sizes |= {"num_attention_heads": s.heads, "max_position_embeddings": positions}
    return name, sizes | {"bos_token_id": None, "eos_token_id": None}


def _refuse_unknown(changes: dict, config_class: type) -> None:
    default = config_class()
    for change in changes:
        if not hasattr(default, change):
            raise CourseError(
                f"{config_class.__name__} has no setting {change!r}; see its documentation for the names it has."
            )


def _refuse_half_a_size(name: str, sizes: dict, changes: dict, config_class: type) -> None:
    """Refuse some of the sizes that belong together, since the others would silently stay those of the small model."""
    changed_sizes = {config_class.attribute_map.get(change, change) for change in changes}
    required = [size for size in sizes if size in SIZES and "position" not in size]
    left_out = [f"{size}={sizes[size]}" for size in required if size not in changed_sizes]
    if left_out and changed_sizes & set(required) - {"vocab_size"}:
        published = next(model for model, (family, _) in PUBLISHED.items() if family == name)
        raise CourseError(
            f"{name!r} is the course's own small model, and {', '.join(left_out)} would stay; give these too, "
            f"or start from {published!r}, or say with scale=settings.SCALES[…] whose they are."
        )


def _refuse_sizes_that_make_no_model(config: "PretrainedConfig") -> None:
    """Refuse sizes that are no whole number from 1 on, and heads that do not divide what they share."""
    for name in sorted(SIZES & vars(config).keys()):
        if getattr(config, name) is not None:
            require_count(name, getattr(config, name))
    width = config.hidden_size
    heads = config.num_attention_heads
    if getattr(config, "head_dim", None) is None and width % heads:  # Llama's heads have a width of their own
        raise CourseError(f"A width of {width} does not divide by {heads} attention heads; change one of them.")
    _refuse_heads_that_share_no_keys(config)


def _refuse_heads_that_share_no_keys(config: "PretrainedConfig") -> None:
    """Refuse heads that do not divide by those of keys and values; a dry run, which computes nothing, would not fail."""
    try:
        heads, of_keys = (getattr(config, name, None) for name in ("num_attention_heads", "num_key_value_heads"))
    except Exception:  # Transformers' own, of layers that differ in them
        return
    if type(heads) is type(of_keys) is int and (of_keys < 1 or heads % of_keys):
        raise CourseError(f"{heads} attention heads do not divide by {of_keys} of keys and values; change one of them.")


def _last_line(error: BaseException) -> str:
    return re.sub(r"^\w+Error: ", "", str(error).strip().splitlines()[-1].strip()).rstrip(".")
