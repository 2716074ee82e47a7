"""Models by name and scale, built from their configuration: no download, any machine.

`distilbert`, `gpt2` and `llama` take their size from a `Scale`; a `ConvNet` takes it from a `ConvNetConfig`. The published
sizes in `PUBLISHED` are exact: the same parameter tensors as the model of that name on the Hub, with fresh random values.
"""

import json
import re
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from course_utils import hub
from course_utils.errors import CourseError, require_count
from course_utils.models.convnet import ConvNet, ConvNetConfig
from course_utils.models.public import PUBLIC, public_configuration
from course_utils.models.sizes import SIZES, check_sizes, own_name
from course_utils.settings import Scale, settings

if TYPE_CHECKING:
    from transformers import PretrainedConfig

FAMILIES = ("distilbert", "gpt2", "llama")
PUBLISHED = {
    "distilbert-base-cased": ("distilbert", {"vocab_size": 28_996}),
    "gpt2-large": ("gpt2", {"n_embd": 1280, "n_layer": 36, "n_head": 20}),
    "llama-7b": ("llama", {}),
}
"""The course's own; those of others are in `public`."""


@dataclass(frozen=True)
class _Family:
    config: type
    classifier: type
    language_model: type
    sizes: Callable[[Scale], dict]


def build(
    name: str, *, labels: int | None = None, scale: Scale | None = None, seed: int | None = None, **changes
) -> nn.Module:
    """A Transformers model with fresh weights, float32, in training mode.

    `name` is one of `FAMILIES` (size from `scale`, by default the settings') or of `PUBLISHED`. With `labels` it classifies
    sequences into that many classes, without it, it is a language model. `changes` go to the configuration
    (`vocab_size=…`, `dropout=…`). A width, inner width, number of blocks or of heads given to a bare family must come with
    the others and the vocabulary, since a scale's would belong to a model of another size; where `scale` is given too, those
    left out are that scale's. The same `seed` gives the same weights and leaves the global random state as it was. Raises
    `CourseError` for an unknown name, for half a size, and for a change that the configuration does not take.
    """
    return from_configuration(configuration(name, labels=labels, scale=scale, **changes), seed)


def configuration(name: str, *, labels: int | None = None, scale: Scale | None = None, **changes) -> "PretrainedConfig":
    """What `build` builds from, with the model's class in `architectures`; arguments and errors as there.

    `name` may also be one of `PUBLIC`, models of others, which take no labels and no scale.
    """
    if name in PUBLIC:
        return public_configuration(name, changes)
    if "num_labels" in changes or not (labels is None or (type(labels) is int and labels > 0)):
        raise CourseError(
            "The number of classes is labels=…, a whole number from 1 on; leave it out for a language model."
        )
    family_name, sizes = _sizes(name, scale)
    family = _family(family_name)
    _refuse_unknown(changes, family.config)
    for change in changes.keys() & SIZES:
        if changes[change] is not None:  # as GPT-2's inner width may be, and Llama's width of a head
            require_count(change, changes[change])
    if name in FAMILIES and scale is None:
        _refuse_half_a_size(name, sizes, changes, family.config)
    config = _made(family.config, {**sizes, **changes}, {} if labels is None else {"num_labels": labels})
    if config.pad_token_id is None:
        config.pad_token_id = 0
    config.architectures = [(family.language_model if labels is None else family.classifier).__name__]
    return config


def from_configuration(config: "PretrainedConfig | ConvNetConfig", seed: int | None = None) -> nn.Module:
    """A model with fresh weights from a configuration: a `ConvNetConfig`, or Transformers'.

    Its class is the architecture that the configuration names, else the family's language model, or what the family is for.
    Weights, training mode, seed as in `build`. Raises `CourseError` when Transformers has no such model.
    """
    model = ConvNet if isinstance(config, ConvNetConfig) else _class_of(config)
    with _seeded(settings().seed if seed is None else seed):
        return model(config).train()


def from_json(path: Path) -> "PretrainedConfig":
    """The configuration in a model's `config.json`; raises `CourseError` where that holds none, or of an unknown family."""
    from transformers import CONFIG_MAPPING

    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        family = found.pop("model_type")
    except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise CourseError(
            f"{path} could not be read as a model's config.json, an object with a model_type ({_first_line(error)})."
        ) from error
    if family not in CONFIG_MAPPING:
        near = ", ".join(get_close_matches(str(family), CONFIG_MAPPING, 3)) or "none"
        raise CourseError(
            f"This version of Transformers knows no family {family!r} (nearest: {near}); update it, or give a function that "
            "makes the model."
        )
    try:
        return CONFIG_MAPPING[family](**found)
    except Exception as error:  # Transformers checks by kinds of its own
        raise CourseError(f"{path} is no configuration of {family}: {_last_line(error)}.") from error


def _class_of(config: "PretrainedConfig") -> type[nn.Module]:
    import transformers

    named = (getattr(config, "architectures", None) or [""])[0]
    if hasattr(transformers, named):
        return getattr(transformers, named)
    if not named:
        for purpose in _PURPOSES:
            known = getattr(transformers, f"AutoModelFor{purpose}")._model_mapping
            if type(config) in known:
                found = known[type(config)]
                return found[0] if isinstance(found, tuple) else found
    raise CourseError(
        f"Transformers has no model {named or 'for ' + type(config).__name__}; set the configuration's architectures to the "
        "name of one of its classes, or give a function that makes the model."
    )


_PURPOSES = ("CausalLM", "Seq2SeqLM", "MaskedLM", "SpeechSeq2Seq", "ImageClassification", "ZeroShotImageClassification")


def pretrained(name: str, *, labels: int) -> nn.Module:
    """The Hub's weights for `name` with a new classification head of `labels` classes; `name` may be a local folder.

    Where the Hub does not answer, weights that an earlier run has cached are used. Raises `CourseError`, naming the way
    without a network, when there are none or the Hub does not have the model.
    """
    from transformers import AutoModelForSequenceClassification

    try:
        with _seeded(settings().seed):
            return AutoModelForSequenceClassification.from_pretrained(
                name, num_labels=labels, local_files_only=not hub.answers()
            ).train()
    except Exception as error:  # the Hub's client, its HTTP library and a damaged file each raise kinds of their own
        raise CourseError(
            f"No pretrained weights for {name!r} here and now ({_first_line(error)}); "
            "models.build(…) gives an architecture of the same family with fresh weights."
        ) from error


def pretrained_or_fresh(name: str, *, labels: int) -> nn.Module:
    """`pretrained` where there are such weights, else `build` with one printed line that says so.

    `name` is one of `PUBLISHED`.
    """
    try:
        return pretrained(name, labels=labels)
    except CourseError:
        fresh = build(name, labels=labels)
        print(f"There are no pretrained weights here: {name} starts from fresh ones instead.")
        return fresh


def parameter_count(model: nn.Module) -> int:
    """Elements in all parameters of `model`, shared ones once."""
    return sum(p.numel() for p in model.parameters())


def parameter_bytes(model: nn.Module) -> int:
    """Bytes of all parameters of `model`, shared ones once."""
    return sum(p.nbytes for p in model.parameters())


def _sizes(name: str, scale: Scale | None) -> tuple[str, dict]:
    if not isinstance(scale, Scale | None):
        raise CourseError(f"scale={scale!r} is no Scale; give one of settings.SCALES, such as SCALES['smoke'].")
    if name in FAMILIES:
        return name, _family(name).sizes(scale or settings().scale)
    if name in PUBLISHED:
        return PUBLISHED[name]
    known = (*FAMILIES, *PUBLISHED, *PUBLIC)
    near = get_close_matches(name.lower(), known, 3) or known
    raise CourseError(f"No model is called {name!r}; choose one of {', '.join(near)}, or give its config.json.")


def _family(name: str) -> _Family:
    import transformers as hf

    return {
        "distilbert": _Family(
            hf.DistilBertConfig, hf.DistilBertForSequenceClassification, hf.DistilBertForMaskedLM, _distilbert_sizes
        ),
        "gpt2": _Family(hf.GPT2Config, hf.GPT2ForSequenceClassification, hf.GPT2LMHeadModel, _gpt2_sizes),
        "llama": _Family(hf.LlamaConfig, hf.LlamaForSequenceClassification, hf.LlamaForCausalLM, _llama_sizes),
    }[name]


def _distilbert_sizes(s: Scale) -> dict:
    return {
        "vocab_size": s.vocabulary,
        "dim": s.width,
        "hidden_dim": 4 * s.width,
        "n_layers": s.layers,
        "n_heads": s.heads,
        "max_position_embeddings": max(s.sequence, 128),
    }


def _gpt2_sizes(s: Scale) -> dict:
    return {
        "vocab_size": s.vocabulary,
        "n_embd": s.width,
        "n_layer": s.layers,
        "n_head": s.heads,
        "n_positions": max(s.sequence, 128),
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _llama_sizes(s: Scale) -> dict:
    return {
        "vocab_size": s.vocabulary,
        "hidden_size": s.width,
        "intermediate_size": 4 * s.width,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "max_position_embeddings": max(s.sequence, 128),
        "bos_token_id": None,
        "eos_token_id": None,
    }


@contextmanager
def _seeded(seed: int):
    used = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(used):
        torch.manual_seed(seed)
        yield


def _refuse_unknown(changes: dict, config: type) -> None:
    known = config()
    for name in changes:
        if not hasattr(known, name):
            raise CourseError(f"{config.__name__} has no setting {name!r}; see its documentation for the names it has.")


def _refuse_half_a_size(name: str, sizes: dict, changes: dict, config: type) -> None:
    """Sizes that belong together come together: else most of a large model would silently be the small one's."""
    given = {own_name(config, change) for change in changes}
    together = [size for size in sizes if size in SIZES and "position" not in size]
    left_out = [f"{size}={sizes[size]}" for size in together if size not in given]
    if left_out and given & set(together) - {"vocab_size"}:
        published = next(known for known, (family, _) in PUBLISHED.items() if family == name)
        raise CourseError(
            f"{name!r} is the course's own small model, and {', '.join(left_out)} would stay; give these too, "
            f"or start from {published!r}, or say with scale=settings.SCALES[…] whose they are."
        )


def _made(config: type, settings: dict, labels: dict) -> "PretrainedConfig":
    try:
        made = config(**settings, **labels)
    except Exception as error:  # Transformers checks by kinds of its own, and names the setting in the last line
        raise CourseError(f"{config.__name__} does not take this: {_last_line(error)}.") from error
    check_sizes(made)
    return made


def _last_line(error: BaseException) -> str:
    return re.sub(r"^\w+Error: ", "", str(error).strip().splitlines()[-1].strip()).rstrip(".")


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
