"""The blocks of a model, checkpointed in segments of consecutive ones."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial

from torch import Tensor, nn

from course_utils.errors import CourseError
from course_utils.techniques.checkpointing import checkpoint_by_hooks


def segment_ranges(blocks: int, segments: int) -> list[range]:
    """The numbers 0 … `blocks` − 1 in `segments` runs, as equally long as possible and the longer ones first.

    Raises `CourseError` for a number of segments out of range.
    """
    if not 1 <= segments <= blocks:
        raise CourseError(f"{blocks} blocks cannot be cut into {segments} segments; give a number from 1 to {blocks}.")
    length, longer = divmod(blocks, segments)
    starts = [index * length + min(index, longer) for index in range(segments + 1)]
    return [range(start, end) for start, end in zip(starts, starts[1:], strict=False)]


def blocks_of(model: nn.Module) -> nn.ModuleList:
    """The longest list of modules in `model`: a transformer's blocks. Raises `CourseError` where there is none."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    if not lists:
        raise CourseError(
            "This model has no blocks in an nn.ModuleList to recompute: leave gradient checkpointing out, or pass its blocks."
        )
    return max(lists, key=len)


def checkpoint_blocks(
    model: nn.Module,
    segments: int | None = None,
    using: Callable[..., Tensor] = checkpoint_by_hooks,
    blocks: Iterable[nn.Module] | None = None,
) -> ExitStack:
    """Checkpoint the blocks of `model` in `segments`, by default each block alone; undone at the end of a `with`.

    The first block of a segment does the work of all, and the others hand on what they get. `using(function, hidden)` is the
    checkpoint. `blocks` are called one after the other, each with the result of the last.
    """
    undo = ExitStack()
    blocks = list(blocks or blocks_of(model))
    for run in segment_ranges(len(blocks), segments or len(blocks)):
        first, *others = [blocks[index] for index in run]
        first.forward = partial(run_checkpointed, using, [blocks[index].forward for index in run])
        for block in others:
            block.forward = lambda hidden, *args, **kwargs: hidden
    for block in blocks:
        undo.callback(delattr, block, "forward")  # the class's forward is found again
    if hasattr(model, "config") and hasattr(model.config, "use_cache") and model.config.use_cache:
        # Run twice, a block would write its keys and values into a cache twice.
        model.config.use_cache = False
        undo.callback(setattr, model.config, "use_cache", True)
    return undo


def run_checkpointed(
    using: Callable[..., Tensor], forwards: list[Callable[..., Tensor]], hidden: Tensor, *args, **kwargs
) -> Tensor:
    """Run all `forwards` one after the other behind one checkpoint; `args` and `kwargs`, such as a mask, go to each."""

    def segment(hidden: Tensor) -> Tensor:
        for forward in forwards:
            hidden = forward(hidden, *args, **kwargs)
        return hidden

    return using(segment, hidden)
