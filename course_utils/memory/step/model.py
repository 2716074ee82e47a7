"""What can be predicted: a configuration, a name, a module or a function that makes one, with examples to train it on."""

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
from course_utils.memory.step.blocks import FEWEST, Blocks, blocks_in, make_up
from course_utils.memory.step.examples import random_batch
from course_utils.memory.step.recipe import Recipe
from course_utils.memory.trace.fake import fake_tensors, is_fake
from course_utils.models import ConvNetConfig

if TYPE_CHECKING:
    from transformers import PretrainedConfig

COMPILED = (
    "What a compiled step takes is unknown, since the compiler chooses what is kept and what is computed again; "
    "run it and read torch.cuda.max_memory_allocated(), or leave compiled out."
)

_TOYS = {
    "gpt2": "the Hub's GPT-2 with 124 million parameters is gpt2-small",
    "llama": "the first Llama with 7 billion parameters is llama-7b",
    "distilbert": "the Hub's is distilbert-base-cased",
}
_COUNT_FROM_PADDING = {
    "camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke", "markuplm", "mpnet",
    "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
}  # fmt: skip
"""Families whose first token has the position after the padding token's number, so that 514 positions are 512 tokens."""


@dataclass(frozen=True)
class Source:
    """A model that can be made again and again: `make()`, one micro-batch `batch(model, recipe)`, the loss of what it returns."""

    name: str
    make: Callable[[], nn.Module]
    batch: Callable[[nn.Module, Recipe], Any]
    config: Any = None
    configured: bool = False  # whether `config` is all there is to the model
    limit: int | None = None  # without `config`: how many tokens an example may have

    @property
    def positions(self) -> int | None:
        """Tokens that an example may have at most; None where nothing says so."""
        text = self.config.get_text_config(decoder=True) if hasattr(self.config, "get_text_config") else self.config
        positions = getattr(text, "max_position_embeddings", getattr(text, "max_target_positions", None))
        if type(positions) is not int or positions <= 0:  # XLNet's -1 is no limit
            return self.limit
        return positions - text.pad_token_id - 1 if text.model_type in _COUNT_FROM_PADDING else positions

    @property
    def key(self) -> str | None:
        """A key of the model, equal for equal configurations; None for a module or a function."""
        if self.config is None or self.batch is not random_batch or not self.configured:
            return None
        settings = self.config.to_json_string(False) if hasattr(self.config, "to_dict") else repr(self.config)
        return f"{type(self.config).__name__} {settings}"

    @property
    def remarks(self) -> list[str]:
        """Sentences on which model was taken, and on fields of its configuration that are not used."""
        remarks = []
        if own := _TOYS.get(self.name):
            remarks.append(f"by the name {self.name} the course has a small model of its own; {own}")
        if self._structure.recurrent:
            remarks.append("its recurrent layers are planned by the CPU's kernels; a GPU's keep other workspaces")
        if not hasattr(self.config, "to_dict"):
            return remarks
        if self.configured and not getattr(self.config, "architectures", None):
            kind = models.class_of(self.config).__name__
            remarks.append(f"the model is a {kind}: the configuration names no class in architectures")
        return remarks + models.remarks_on(self.config)

    @staticmethod
    def loss(outputs: object, batch: object) -> torch.Tensor:
        """The number to train on. Raises `CourseError` where the model returns none."""
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
            raise CourseError(COMPILED)
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
        """The same kind of model by another configuration."""
        return _from_config(config, self.batch, self.name)

    @cached_property
    def repeated(self) -> Blocks | None:
        """The model's equal blocks; None if it has too few of them."""
        return self._structure.repeated

    @property
    def warning_of_slowness(self) -> str:
        """A warning if every recipe runs all of many blocks, else empty."""
        depth = self._structure.depth
        if self.repeated is not None or depth < FEWEST:
            return ""
        seconds = f"{0.2 * depth:.0f} s a recipe"
        return f"None of its {depth} blocks can be left out: all are run, which takes about {seconds}"

    def with_blocks(self, count: int) -> "Source":
        """The same model with this many repetitions of its blocks."""
        if not self._structure.by_config:
            return replace(self, make=lambda: self.repeated.shorten(self.make(), count), configured=False)
        config = deepcopy(self.config)
        self.repeated.shorten_config(config, count)
        return self.with_config(config)

    @cached_property
    def _structure(self) -> "_Structure":
        if self.key in _structures:
            return _structures[self.key]
        try:
            with fake_tensors():
                model = self.make()
                recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
                structure = _Structure(Blocks.of(model), depth=blocks_in(model), recurrent=recurrent)
                if structure.repeated is not None and self.configured:
                    config = deepcopy(self.config)
                    structure.repeated.shorten_config(config, 3)
                    shorter = make_up(structure.repeated.shorten(model, 3))
                    by_config = make_up(self.with_config(config).make()) == shorter
                    structure = replace(structure, by_config=by_config)
        except Exception:  # whatever is wrong with it, its dry run says
            structure = _Structure()
        if self.key is not None:
            _structures[self.key] = structure
        return structure


ModelLike = Union[Source, "PretrainedConfig", ConvNetConfig, nn.Module, str, Path, Callable[[], nn.Module]]
"""What `source_of` makes a `Source` of."""


@dataclass(frozen=True)
class _Structure:
    """What repeats in a model."""

    repeated: Blocks | None = None
    by_config: bool = False  # whether a shorter configuration makes the same model with fewer blocks
    depth: int = 0  # how many blocks there are
    recurrent: bool = False  # whether layers are


_structures: dict[str, _Structure] = {}
"""By `Source.key`, what was found out in this process."""


def source_of(what: ModelLike, batch: Callable | None = None) -> Source:
    """The `Source` of a model as `memory.estimate` takes it; raises `CourseError` for what makes no model."""
    if isinstance(what, Source):
        return what
    examples = random_batch if batch is None else lambda model, recipe: batch(recipe.batch, recipe.sequence)
    if isinstance(what, nn.Module):
        return Source(type(what).__name__, lambda: _copy(what), examples, getattr(what, "config", None))
    if isinstance(what, str | Path):
        config = _config_of(what)
        return _from_config(config, examples, "" if Path(what).exists() else models.canonical_name(str(what)))
    if isinstance(what, ConvNetConfig) or hasattr(what, "to_dict"):
        return _from_config(what, examples)
    if callable(what):
        return Source(getattr(what, "__name__", type(what).__name__), what, examples, limit=_positions_made_by(what))
    raise CourseError(
        f"{type(what).__name__} is no model; give a configuration, a config.json, a name, a module, or a function that makes one."
    )


def _positions_made_by(make: Callable) -> int | None:
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            configs = (getattr(module, "config", None) for module in make().modules())
            limits = (getattr(config, "max_position_embeddings", None) for config in configs)
            return min((limit for limit in limits if type(limit) is int and limit > 0), default=None)
    except Exception:  # whatever is wrong with it, its dry run says
        return None


def _from_config(config: "PretrainedConfig | ConvNetConfig", examples: Callable, name: str = "") -> Source:
    name = name or type(config).__name__.removesuffix("Config")
    return Source(
        name, lambda: _move_to_default_device(models.from_configuration(deepcopy(config))), examples, config, True
    )


def with_head(what: str, kind: str, labels: int | None = None) -> Source:
    """The model of that name or `config.json` as `kind` makes it, a class of Transformers or one that chooses it by the family.

    `labels` is the number of classes; without it the configuration's. Raises `CourseError` where Transformers has no such class.
    """
    import transformers

    config = deepcopy(_config_of(what))
    made = getattr(transformers, kind, None)
    by_family = getattr(made, "_model_mapping", None)
    if by_family is not None:
        made = by_family.get(type(config), None)
        made = made[0] if isinstance(made, tuple) else made
    if made is None or not issubclass(made, transformers.PreTrainedModel):
        raise CourseError(
            f"Transformers has no {kind} for {what}; for a class of your own give a function that makes it, FILE.py:FUNCTION."
        )
    config.architectures = [made.__name__]
    if config.pad_token_id is None:  # by which a classifier finds the end of each text, so scripts set it
        config.pad_token_id = 0
    if labels is not None:
        config.num_labels = labels
    return _from_config(config, random_batch, made.__name__)


def _config_of(what: str | Path) -> "PretrainedConfig | ConvNetConfig":
    """A configuration by name, or from a `config.json` or the folder that has one."""
    path = Path(what)
    if path.is_dir():
        path /= "config.json"
    if path.suffix == ".json" or path.is_file():
        return models.from_json(path)
    near = get_close_matches(path.name, (file.name for file in path.parent.glob("*.json")), 1, cutoff=0.8)
    if near and models.canonical_name(str(what)) not in models.NAMES:
        raise CourseError(f"There is no file {path}; did you mean {path.with_name(near[0])}?")
    return models.configuration(str(what))


def _copy(module: nn.Module) -> nn.Module:
    """A copy of the module; under fake tensors a fake one on their device, wherever its own tensors are."""
    copied = deepcopy(module)
    for parameter in copied.parameters():
        parameter.grad = None
    return _move_to_default_device(copied)


def _move_to_default_device(module: nn.Module) -> nn.Module:
    """The module, under fake tensors moved to their device, on which `torch.Tensor(…)` does not make tensors."""
    place = torch.empty(0)
    return module.to(place.device) if is_fake(place) else module
