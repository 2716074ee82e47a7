"""Models to predict: given as a configuration, a name, a module or a function that makes one, with examples to train on."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

import torch
from torch import nn

from course_utils import models
from course_utils.errors import CourseError
from course_utils.memory.step.blocks import MIN_REPETITIONS, Blocks, count_blocks, describe_structure
from course_utils.memory.step.examples import random_batch
from course_utils.memory.step.recipe import Recipe
from course_utils.memory.trace.fake import fake_tensors, is_fake
from course_utils.models import ConvNetConfig

if TYPE_CHECKING:
    from transformers import PretrainedConfig

WHY_COMPILED_IS_UNKNOWN = (
    "What a compiled step takes is unknown, since the compiler chooses what is kept and what is computed again; "
    "run it and read torch.cuda.max_memory_allocated(), or leave compiled out."
)

_TOY_NOTES = {
    "gpt2": "the Hub's GPT-2 with 124 million parameters is gpt2-small",
    "llama": "the first Llama with 7 billion parameters is llama-7b",
    "distilbert": "the Hub's is distilbert-base-cased",
}
# Families whose first token has the position after the padding token's number, so that 514 positions are 512 tokens.
_FAMILIES_WITH_PADDED_POSITIONS = {
    "camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke", "markuplm", "mpnet",
    "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """A model that can be made again and again by `make()`, with one micro-batch by `batch(model, recipe)`."""

    name: str
    make: Callable[[], nn.Module]
    batch: Callable[[nn.Module, Recipe], Any]
    config: Any = None
    configured: bool = False  # whether the model is made from `config` alone
    limit: int | None = None  # without `config`, the most tokens that an example may have

    @property
    def positions(self) -> int | None:
        """The most tokens that an example may have; None if nothing limits them."""
        text = self.config.get_text_config(decoder=True) if hasattr(self.config, "get_text_config") else self.config
        positions = getattr(text, "max_position_embeddings", getattr(text, "max_target_positions", None))
        if type(positions) is not int or positions <= 0:  # XLNet's -1 is no limit
            return self.limit
        return positions - text.pad_token_id - 1 if text.model_type in _FAMILIES_WITH_PADDED_POSITIONS else positions

    @property
    def key(self) -> str | None:
        """A key of the model, equal for equal configurations; None for a module or a function."""
        if self.config is None or self.batch is not random_batch or not self.configured:
            return None
        settings = self.config.to_json_string(False) if hasattr(self.config, "to_dict") else repr(self.config)
        return f"{type(self.config).__name__} {settings}"

    @property
    def remarks(self) -> list[str]:
        """Sentences for the printed answer: which model was taken, and which fields of its configuration are not used."""
        remarks = []
        if self.name in _TOY_NOTES:
            remarks.append(f"by the name {self.name} the course has a small model of its own; {_TOY_NOTES[self.name]}")
        if self._structure.recurrent:
            remarks.append("its recurrent layers are planned by the CPU's kernels; a GPU's keep other workspaces")
        if not hasattr(self.config, "to_dict"):
            return remarks
        if self.configured and not getattr(self.config, "architectures", None):
            class_name = models.class_of(self.config).__name__
            remarks.append(f"the model is a {class_name}: the configuration names no class in architectures")
        return remarks + models.remarks_on(self.config)

    @staticmethod
    def loss(outputs: object, batch: object) -> torch.Tensor:
        """The loss in what the model returned, a tensor with one element. Raises `CourseError` if there is none."""
        first = outputs[0] if isinstance(outputs, tuple) and outputs else outputs
        loss = outputs.get("loss") if isinstance(outputs, dict) else getattr(outputs, "loss", first)
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            return loss
        raise CourseError(
            "The model returns no loss: let it return one number, a tuple that begins with it, or a dictionary or an object that "
            "has a loss; or wrap it in a module that does; in a configuration set architectures to a class with the head that "
            "you train, such as BertForMaskedLM for BertModel."
        )

    def require(self, recipe: Recipe) -> None:
        """Raise `CourseError` if the recipe's sequences do not suit model and ranks, or if the step is compiled."""
        if recipe.compiled:
            raise CourseError(WHY_COMPILED_IS_UNKNOWN)
        parts = 2 * recipe.context_parallel
        if recipe.context_parallel > 1 and recipe.sequence % parts:
            raise CourseError(
                f"A sequence of {recipe.sequence} tokens does not divide into two stretches for each of "
                f"{recipe.context_parallel} ranks; take a multiple of {parts}."
            )
        if recipe.sequence > (self.positions or recipe.sequence):
            raise CourseError(
                f"A sequence of {recipe.sequence} tokens is longer than the model's {self.positions} positions; "
                "shorten it, or give the configuration more."
            )

    def with_config(self, config: "PretrainedConfig") -> "Source":
        """The same kind of model with another configuration."""
        return _from_config(config, self.batch, self.name)

    @cached_property
    def blocks(self) -> Blocks | None:
        """The model's equal blocks; None if it has too few of them."""
        return self._structure.blocks

    @property
    def warning_of_slowness(self) -> str:
        """A warning if every recipe runs all of many blocks, else empty."""
        depth = self._structure.depth
        if self.blocks is not None or depth < MIN_REPETITIONS:
            return ""
        seconds = f"{0.2 * depth:.0f} s a recipe"
        return f"None of its {depth} blocks can be left out: all are run, which takes about {seconds}"

    def with_blocks(self, count: int) -> "Source":
        """The same model with this many repetitions of its blocks."""
        if not self._structure.by_config:
            return replace(self, make=lambda: self.blocks.shorten(self.make(), count), configured=False)
        config = deepcopy(self.config)
        self.blocks.shorten_config(config, count)
        return self.with_config(config)

    @cached_property
    def _structure(self) -> "_Structure":
        if self.key in _structures:
            return _structures[self.key]
        try:
            with fake_tensors():
                model = self.make()
                recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
                structure = _Structure(Blocks.from_model(model), depth=count_blocks(model), recurrent=recurrent)
                if structure.blocks is not None and self.configured:
                    config = deepcopy(self.config)
                    structure.blocks.shorten_config(config, 3)
                    shorter = describe_structure(structure.blocks.shorten(model, 3))
                    by_config = describe_structure(self.with_config(config).make()) == shorter
                    structure = replace(structure, by_config=by_config)
        except Exception:  # the dry run will say what is wrong with the model
            structure = _Structure()
        if self.key is not None:
            _structures[self.key] = structure
        return structure


ModelLike = Union[Source, "PretrainedConfig", ConvNetConfig, nn.Module, str, Path, Callable[[], nn.Module]]
"""What `source_of` takes."""


@dataclass(frozen=True)
class _Structure:
    """What repeats in a model."""

    blocks: Blocks | None = None
    by_config: bool = False  # whether a shorter configuration makes the same model with fewer blocks
    depth: int = 0  # the number of blocks
    recurrent: bool = False  # whether the model has recurrent layers


# What this process has found out, by `Source.key`.
_structures: dict[str, _Structure] = {}


def source_of(model: ModelLike, batch: Callable[[int, int], Any] | None = None) -> Source:
    """The `Source` of a model as `memory.estimate` takes it; raises `CourseError` for anything else."""
    if isinstance(model, Source):
        return model
    examples = random_batch if batch is None else lambda _, recipe: batch(recipe.batch, recipe.sequence)
    class_name = type(model).__name__
    if isinstance(model, nn.Module):
        return Source(class_name, lambda: _copy(model), examples, getattr(model, "config", None))
    if isinstance(model, str | Path):
        config = _config_of(model)
        return _from_config(config, examples, "" if Path(model).exists() else models.canonical_name(str(model)))
    if isinstance(model, ConvNetConfig) or hasattr(model, "to_dict"):
        return _from_config(model, examples)
    if callable(model):
        return Source(getattr(model, "__name__", class_name), model, examples, limit=_positions_made_by(model))
    raise CourseError(
        f"{class_name} is no model; give a configuration, a config.json, a name, a module, or a function that makes one."
    )


def _positions_made_by(make: Callable[[], nn.Module]) -> int | None:
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            configs = (getattr(module, "config", None) for module in make().modules())
            limits = (getattr(config, "max_position_embeddings", None) for config in configs)
            return min((limit for limit in limits if type(limit) is int and limit > 0), default=None)
    except Exception:  # the dry run will say what is wrong with the model
        return None


def _from_config(config: "PretrainedConfig | ConvNetConfig", examples: Callable, name: str = "") -> Source:
    def make() -> nn.Module:
        return _move_to_default_device(models.from_configuration(deepcopy(config)))

    return Source(name or type(config).__name__.removesuffix("Config"), make, examples, config, configured=True)


def with_head(model: str, head: str, labels: int | None = None) -> Source:
    """The model of that name or `config.json` with another head.

    `head` is a class of Transformers, or one that chooses a class by the model's family (`AutoModelForTokenClassification`).
    `labels` is the number of classes, by default the configuration's. Raises `CourseError` if Transformers has no such class.
    """
    import transformers

    config = deepcopy(_config_of(model))
    model_class = getattr(transformers, head, None)
    by_family = getattr(model_class, "_model_mapping", None)
    if by_family is not None:
        model_class = by_family.get(type(config), None)
        model_class = model_class[0] if isinstance(model_class, tuple) else model_class
    if model_class is None or not issubclass(model_class, transformers.PreTrainedModel):
        raise CourseError(
            f"Transformers has no {head} for {model}; for a class of your own give a function that makes it, FILE.py:FUNCTION."
        )
    config.architectures = [model_class.__name__]
    if config.pad_token_id is None:  # a classifier finds the end of each text by it, so scripts set it
        config.pad_token_id = 0
    if labels is not None:
        config.num_labels = labels
    return _from_config(config, random_batch, model_class.__name__)


def _config_of(name: str | Path) -> "PretrainedConfig | ConvNetConfig":
    """A configuration by name, or from a `config.json` or the folder that has one."""
    path = Path(name)
    if path.is_dir():
        path /= "config.json"
    if path.suffix == ".json" or path.is_file():
        return models.from_json(path)
    similar = get_close_matches(path.name, (file.name for file in path.parent.glob("*.json")), 1, cutoff=0.8)
    if similar and models.canonical_name(str(name)) not in models.NAMES:
        raise CourseError(f"There is no file {path}; did you mean {path.with_name(similar[0])}?")
    return models.configuration(str(name))


def _copy(module: nn.Module) -> nn.Module:
    """A copy of the module without gradients. Under fake tensors it is fake and on their device."""
    copy = deepcopy(module)
    for parameter in copy.parameters():
        parameter.grad = None
    return _move_to_default_device(copy)


def _move_to_default_device(module: nn.Module) -> nn.Module:
    """The module; under fake tensors moved to their device, since `torch.Tensor(…)` makes tensors elsewhere."""
    probe = torch.empty(0)
    return module.to(probe.device) if is_fake(probe) else module
