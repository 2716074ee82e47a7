"""Models with fresh weights from a configuration; and the parameters of any model, counted."""

from copy import deepcopy
from typing import TYPE_CHECKING

import torch
from torch import nn

from course_utils.data import hub
from course_utils.errors import CourseError, first_line
from course_utils.models.configurations import configuration
from course_utils.models.convnet import ConvNet, ConvNetConfig
from course_utils.settings import Scale, settings

if TYPE_CHECKING:
    from transformers import PretrainedConfig


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

    >>> model = build("gpt2", seed=0, vocab_size=1000, n_embd=64, n_inner=256, n_layer=2, n_head=4)
    >>> parameter_count(model)
    172288
    """
    return from_configuration(configuration(name, labels=labels, scale=scale, **changes), seed)


def distilbert_base() -> nn.Module:
    """DistilBERT-base with two labels, whose steps chapters time; at the smoke scale the small model."""
    return build("distilbert" if settings().scale.name == "smoke" else "distilbert-base-cased", labels=2)


def from_configuration(config: "PretrainedConfig | ConvNetConfig", seed: int | None = None) -> nn.Module:
    """A model with fresh weights from a configuration: a `ConvNetConfig`, or Transformers'.

    Its class is the architecture that the configuration names, else the family's language model, or what the family is for.
    All of it is of torch's default dtype, whatever its parts were published in. Weights, training mode, seed as in `build`.
    Raises `CourseError` when Transformers has no such model, or when that needs a package that is not installed.
    """
    model_class = ConvNet if isinstance(config, ConvNetConfig) else class_of(config)
    with torch.random.fork_rng([torch.cuda.current_device()] if torch.cuda.is_available() else []):
        torch.manual_seed(settings().seed if seed is None else seed)
        try:
            return model_class(_drop_dtypes(config)).train()
        except ImportError as error:
            reason = first_line(error).rstrip(".")
            message = f"{model_class.__name__} needs a package that is not installed ({reason}); install it."
            raise CourseError(message) from error


def _drop_dtypes(config: "PretrainedConfig | ConvNetConfig"):
    """Returns the configuration without the dtypes of its parts, in which Transformers would make these."""
    parts = [name for name in getattr(config, "sub_configs", ()) if hasattr(getattr(config, name, None), "to_dict")]
    if not parts:
        return config
    config = deepcopy(config)
    for name in parts:
        part = _drop_dtypes(getattr(config, name))
        part.dtype = None
        setattr(config, name, part)
    return config


def load_pretrained(config: "PretrainedConfig", weights: str) -> nn.Module:
    """The model of a configuration, in training mode and torch's default dtype, with `weights` from a folder or the Hub.

    Raises `CourseError` if there are no weights, or if they are another model's.
    """
    model_class = class_of(config)
    is_offline = not hub.is_reachable()
    options = {"config": deepcopy(config), "dtype": torch.get_default_dtype(), "local_files_only": is_offline}
    try:
        model, report = model_class.from_pretrained(weights, output_loading_info=True, **options)
    except Exception as error:  # Transformers raises many kinds
        reason = first_line(error).rstrip(".")
        raise CourseError(
            f"There are no weights of {model_class.__name__} to be had from {weights} ({reason}); give a folder that "
            "save_pretrained wrote, or a name on the Hub that can be reached."
        ) from error
    others = sorted(map(str, [*report["missing_keys"], *report["unexpected_keys"], *report["mismatched_keys"]]))
    if others:
        raise CourseError(
            f"The weights in {weights} are those of another model: {others[0]} and {len(others) - 1} more do not fit; give the "
            "model whose they are."
        )
    return model.train()


def class_of(config: "PretrainedConfig") -> type[nn.Module]:
    """Transformers' class of the configuration's model; where it names none, a classifier where it names classes, else the
    family's language model, or what the family is for. Raises `CourseError` where there is no such class."""
    import transformers

    architecture = (getattr(config, "architectures", None) or [""])[0]
    name = architecture if hasattr(transformers, architecture) else _find_in_any_case(architecture)
    if name:
        return getattr(transformers, name)
    if not architecture:
        for task in (*_CLASSIFIERS, *_TASKS) if _has_names_of_classes(config) else _TASKS:
            classes = getattr(transformers, f"AutoModelFor{task}")._model_mapping
            if type(config) in classes:
                model_class = classes[type(config)]
                return model_class[0] if isinstance(model_class, tuple) else model_class
    raise CourseError(
        f"Transformers has no model {architecture or 'for ' + type(config).__name__}; set the configuration's architectures to "
        "the name of one of its classes, or give a function that makes the model."
    )


def _find_in_any_case(architecture: str) -> str | None:
    """The name as Transformers spells it today: Llama's first files say LLaMAForCausalLM."""
    import transformers

    return next((name for name in dir(transformers) if name.lower() == architecture.lower()), None)


def _has_names_of_classes(config: "PretrainedConfig") -> bool:
    return any(not str(name).startswith("LABEL_") for name in (getattr(config, "id2label", None) or {}).values())


_CLASSIFIERS = ("SequenceClassification", "ImageClassification")
_TASKS = ("CausalLM", "Seq2SeqLM", "MaskedLM", "SpeechSeq2Seq", "ImageClassification", "ZeroShotImageClassification")


def parameter_count(model: nn.Module) -> int:
    """Elements in all parameters of `model`, shared ones once."""
    return sum(p.numel() for p in model.parameters())


def parameter_bytes(model: nn.Module) -> int:
    """Bytes of all parameters of `model`, shared ones once."""
    return sum(p.nbytes for p in model.parameters())
