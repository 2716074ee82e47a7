"""Which blocks of a model are alike, and the model with fewer of them.

Blocks are taken out of the lists of the model itself, so that its class, head, dtypes, adapters and hooks, and what is trained,
stay the same.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from transformers import PretrainedConfig

MIN_REPETITIONS = 5
"""The fewest repetitions of which some are left out."""
_COUNT_NAMES = (
    "num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers",
    "encoder_layers", "decoder_layers", "n_blocks",
)  # fmt: skip
_INDEX_NAME = re.compile(r"(layer|block)_?(idx|id|index|number|num)$")
_PLAIN_TYPES = (bool, int, float, str, type(None), torch.dtype)


@dataclass(frozen=True)
class Stretch:
    """The repeating part of a list of `length` blocks: from `start` on, `count` times a pattern of `period` blocks."""

    length: int
    start: int
    period: int
    count: int

    def dropped(self, count: int) -> slice:
        """The indices of the blocks that are taken out if `count` repetitions stay."""
        return slice(self.start + count * self.period, self.start + self.count * self.period)


@dataclass(frozen=True)
class Blocks:
    """The lists of a model whose patterns repeat equally often, by name."""

    lists: dict[str, Stretch]

    @classmethod
    def from_model(cls, model: nn.Module) -> "Blocks | None":
        """The lists of blocks of a Transformers model; None if no pattern repeats often enough.

        Lists of other models are left out, since their `forward` may not treat equal blocks alike.
        """
        stretches = ((name, _stretch_of(model, name)) for name in _lists_of(model))
        by_list = {name: stretch for name, stretch in stretches if stretch is not None}
        count = max((stretch.count for stretch in by_list.values()), default=0)
        by_list = {name: stretch for name, stretch in by_list.items() if stretch.count == count}
        return cls(by_list) if by_list else None

    @property
    def count(self) -> int:
        """How often the pattern repeats."""
        return next(iter(self.lists.values())).count

    @property
    def period(self) -> int:
        """The number of blocks in the longest pattern of all lists."""
        return max(stretch.period for stretch in self.lists.values())

    def lengths(self, count: int) -> dict[int, int]:
        """The number of blocks of each list in the whole model, by its number if `count` repetitions stay."""
        return {s.length - (s.count - count) * s.period: s.length for s in self.lists.values()}

    def shorten_config(self, config: "PretrainedConfig", count: int) -> None:
        """Set the number of repetitions in `config`, in place; configurations inside it are left as they are."""
        for stretch in self.lists.values():
            _shorten(config, stretch.length, stretch.dropped(count))

    def shorten(self, model: nn.Module, count: int) -> nn.Module:
        """The model with `count` repetitions, changed in place, with copies of its configurations that have this number."""
        _copy_configs(model)
        for name, stretch in self.lists.items():
            dropped = stretch.dropped(count)
            blocks = model.get_submodule(name)
            for owner in [*_modules_above(model, name), *_configs_above(model, name)]:
                _shorten(owner, stretch.length, dropped)
            for block in blocks[dropped.stop :]:
                _count_down(block, dropped.stop - dropped.start)
            del blocks[dropped]
        return model


def depth_of(config: "PretrainedConfig") -> int:
    """The number of blocks in a configuration."""
    return next(getattr(config, name) for name in _COUNT_NAMES if type(getattr(config, name, None)) is int)


def count_blocks(model: nn.Module) -> int:
    """The number of blocks with more than one layer in a Transformers model's lists."""
    lists = (model.get_submodule(name) for name in _lists_of(model))
    return sum(len(blocks) for blocks in lists if any(len(list(block.children())) > 1 for block in blocks))


def _lists_of(model: nn.Module, above: str = "") -> Iterator[str]:
    """Names of the lists whose blocks Transformers' own code runs one after the other; lists inside blocks are left out."""
    for name, child in model.named_children():
        path = f"{above}.{name}" if above else name
        if isinstance(child, nn.ModuleList | nn.Sequential):
            if type(model).__module__.startswith("transformers.models."):
                yield path
        else:
            yield from _lists_of(child, path)


def _stretch_of(model: nn.Module, name: str) -> Stretch | None:
    """The stretch from which most blocks can be taken out; None if no pattern repeats often enough."""
    blocks = model.get_submodule(name)
    shared = Counter(id(tensor) for _, tensor in model.named_parameters(remove_duplicate=False))
    lists = [
        value
        for config in _configs_above(model, name)
        for value in vars(config).values()
        if isinstance(value, list | tuple) and len(value) == len(blocks)
    ]
    kinds = [
        (describe_structure(block, shared), *(str(values[index]) for values in lists))
        for index, block in enumerate(blocks)
    ]
    stretches = [
        Stretch(len(kinds), start, period, length // period)
        for period in range(1, len(kinds) // MIN_REPETITIONS + 1)
        for start, length in [_longest_repetition(kinds, period)]
        if length // period >= MIN_REPETITIONS
    ]
    return max(stretches, key=lambda stretch: (stretch.count - 1) * stretch.period, default=None)


def _longest_repetition(kinds: list, period: int) -> tuple[int, int]:
    """The start and length of the longest stretch in which each block equals the one `period` blocks before."""
    longest, best_start = 0, 0
    start = 0
    for index in range(len(kinds)):
        if index - start >= period and kinds[index] != kinds[index - period]:
            start = index - period + 1
        if index + 1 - start > longest:
            longest, best_start = index + 1 - start, start
    return best_start, longest


def describe_structure(block: nn.Module, shared: Mapping[int, int] = MappingProxyType({})) -> tuple:
    """A description of a block or a model, equal for two that take the same memory.

    It has modules, their settings and hooks, and shapes of parameters and buffers, but no values. `shared` counts by `id` how
    often a parameter is used; one that is used several times is equal only to itself.
    """
    parts = []
    for name, module in block.named_modules():
        settings = tuple(
            (key, value != 0 if isinstance(value, float) else value)  # dropout takes the same memory, whatever its rate
            for key, value in vars(module).items()
            if isinstance(value, _PLAIN_TYPES) and not _INDEX_NAME.search(key)
        )
        hooks = len(module._forward_hooks), len(module._forward_pre_hooks)
        tensors = [
            (leaf, t.shape, t.dtype, t.requires_grad, id(t) if shared.get(id(t), 1) > 1 else None)
            for list_tensors in (module.named_parameters, module.named_buffers)
            for leaf, t in list_tensors(recurse=False)
        ]
        parts.append((name, type(module), settings, hooks, tuple(tensors)))
    return tuple(parts)


def _copy_configs(model: nn.Module) -> None:
    """Give the model copies of its configurations, since other models may have the same ones."""
    owners = [module for module in model.modules() if hasattr(vars(module).get("config"), "to_dict")]
    for module, config in zip(owners, deepcopy([module.config for module in owners]), strict=True):
        module.config = config  # modules that shared one share its copy, since all were copied together


def _modules_above(model: nn.Module, name: str) -> list[nn.Module]:
    """The modules that contain the list, the outermost first."""
    parts = name.split(".")
    return [model.get_submodule(".".join(parts[:depth])) for depth in range(len(parts))]


def _configs_above(model: nn.Module, name: str) -> list:
    """The configurations of the modules that contain the list, each once."""
    owners = (module for module in _modules_above(model, name) if hasattr(getattr(module, "config", None), "to_dict"))
    return list({id(module.config): module.config for module in owners}.values())


def _shorten(config: "PretrainedConfig | nn.Module", length: int, dropped: slice) -> None:
    """Set the number of blocks in a configuration, or in a module that has the number as an attribute."""
    left = length - len(range(*dropped.indices(length)))
    for name in [name for name in _COUNT_NAMES if getattr(config, name, None) == length]:
        setattr(config, name, left)
    for name, value in [] if isinstance(config, nn.Module) else list(vars(config).items()):
        if isinstance(value, list | tuple) and len(value) == length:
            setattr(config, name, [*value[: dropped.start], *value[dropped.stop :]])


def _count_down(block: nn.Module, by: int) -> None:
    """Lower the numbers that a block keeps of itself by `by`, the number of blocks taken out before it."""
    for module in block.modules():
        for key, value in vars(module).items():
            if _INDEX_NAME.search(key) and type(value) is int:
                setattr(module, key, value - by)
