"""The blocks of a model, checkpointed in segments of consecutive ones."""

from collections.abc import Callable, Sequence
from functools import partial

from torch import nn

from course_utils.errors import CourseError
from course_utils.techniques.checkpointing import checkpoint_by_hooks


def segment_ranges(blocks: int, segments: int) -> list[range]:
    """The numbers 0 … `blocks` − 1 in `segments` runs, as equally long as possible and the longer ones first.

    Raises `CourseError` where there are fewer blocks than segments, or no segment.
    """
    if not 1 <= segments <= blocks:
        raise CourseError(f"{blocks} blocks cannot be cut into {segments} segments; give a number from 1 to {blocks}.")
    length, longer = divmod(blocks, segments)
    starts = [index * length + min(index, longer) for index in range(segments + 1)]
    return [range(start, end) for start, end in zip(starts, starts[1:], strict=False)]


def blocks_of(model: nn.Module) -> nn.ModuleList:
    """The longest list of modules in `model`: a transformer's blocks. Raises `CourseError` where there is no list."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module)]
    if not lists:
        raise CourseError("The model has no nn.ModuleList of blocks that could be checkpointed; pass its blocks.")
    return max(lists, key=len)


class checkpoint_blocks:  # noqa: N801 used like a function: its value is rarely kept
    """Checkpoint the blocks of `model` in `segments` runs of consecutive blocks; every block alone by default.

    At once, and until `remove()` or the end of a `with` block. `using(function, *args, **kwargs)` is how a run of blocks is
    called. `blocks` are by default `blocks_of(model)`; they must be called one after the other, each with the result of
    the last as its first argument and otherwise with the same arguments. A block in the middle of a segment hands its
    argument on, since the first one has done its work; so hooks on it see the segment's result. The model's cache of keys
    and values is off meanwhile, for running again would write into it twice.

    Raises `CourseError` for a number of segments out of range, and where the blocks are checkpointed already.
    """

    def __init__(
        self,
        model: nn.Module,
        segments: int | None = None,
        using: Callable = checkpoint_by_hooks,
        blocks: Sequence[nn.Module] | None = None,
    ):
        self.blocks = list(blocks_of(model) if blocks is None else blocks)
        ranges = segment_ranges(len(self.blocks), len(self.blocks) if segments is None else segments)
        self.forwards = [block.forward for block in self.blocks]
        if any(isinstance(forward, _Stand) for forward in self.forwards):
            raise CourseError("These blocks are checkpointed already; remove() the first checkpoints before.")
        for run in ranges:
            _join([self.blocks[index] for index in run], using)
        self.config = _config_with_cache(model)
        if self.config is not None:
            self.config.use_cache = False

    def remove(self) -> None:
        """The model as it was; a second time does nothing."""
        for block, forward in zip(self.blocks, self.forwards, strict=True):
            del block.forward
            if block.forward != forward:  # it had been replaced before
                block.forward = forward
        if self.config is not None:
            self.config.use_cache = True
        self.blocks, self.forwards, self.config = [], [], None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.remove()


class ForwardCount:
    """Counts, between `with` and its end, how often each of `blocks` computes, in forward and again in backward.

    Counted is the first innermost module of each, which runs even where recomputation stops early. `calls` has a number
    per block.
    """

    def __init__(self, blocks: Sequence[nn.Module]):
        self.first = [next(module for module in block.modules() if not list(module.children())) for block in blocks]
        self.calls = [0] * len(self.first)

    def __enter__(self):
        self.calls = [0] * len(self.first)
        self._hooks = [module.register_forward_pre_hook(partial(self._count, i)) for i, module in enumerate(self.first)]
        return self

    def __exit__(self, *_):
        for hook in self._hooks:
            hook.remove()

    def _count(self, index: int, *_):
        self.calls[index] += 1


def _join(blocks: list[nn.Module], using: Callable) -> None:
    """Let the first block do the work of all, checkpointed, and the others hand on what they get."""
    first, *others = blocks
    forwards = [block.forward for block in blocks]

    def run(hidden, *args, **kwargs):
        for forward in forwards:
            hidden = forward(hidden, *args, **kwargs)
        return hidden

    first.forward = _Stand(partial(using, run))
    for block in others:
        block.forward = _Stand(lambda hidden, *args, **kwargs: hidden)


class _Stand:
    """What stands in for a block's forward."""

    def __init__(self, call: Callable):
        self.call = call

    def __call__(self, *args, **kwargs):
        return self.call(*args, **kwargs)

    def __deepcopy__(self, _):
        # The copy's blocks would compute with the parameters of the original.
        raise CourseError(
            "A model cannot be copied while its blocks are checkpointed; remove() the checkpoints before."
        )


def _config_with_cache(model: nn.Module):
    """The configuration of a model that keeps keys and values, or None."""
    config = model.config if hasattr(model, "config") else None
    return config if hasattr(config, "use_cache") and config.use_cache else None
