"""Time and peak of a step of a small DistilBERT with each technique of a single device, alone and combined.

Every group is timed in one run, its variants in turn; the first of a group is what the others are divided by. All variants
train the same model on the same batch, which is large enough for activations to count. The peak is the allocator's, and beside
it stands what `memory.estimate` says of it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from benchmarks.side_by_side import compare, print_tables, summarize
from course_utils import memory, models
from course_utils.memory.step.examples import random_batch
from course_utils.memory.step.optimizers import factory_of
from course_utils.settings import settings
from course_utils.techniques import checkpoint, checkpoint_blocks, checkpoint_by_hooks
from course_utils.training import Autocast, accumulated_step
from course_utils.units import MiB

K = 4
SIZES = {"dim": 256, "hidden_dim": 1024, "n_layers": 4, "n_heads": 8, "vocab_size": 8000}


@dataclass(frozen=True)
class Variant:
    """A variant of the same step: `k` micro-batches of an update, how blocks are checkpointed, and whether under autocast."""

    k: int = 1
    checkpoint: Callable | None = None
    autocast: bool = False
    batch: int = 16
    sequence: int = 128

    @property
    def recipe(self) -> memory.Recipe:
        """This variant for `memory.estimate`."""
        return memory.Recipe(
            precision="autocast" if self.autocast else "fp32",
            batch=self.batch // self.k,
            sequence=self.sequence,
            accumulation=self.k,
            checkpointing=self.checkpoint is not None,
            device=settings().device.type,
        )

    def checkpointed(self, model: torch.nn.Module) -> AbstractContextManager:
        """The model with every block checkpointed, or as it is."""
        return checkpoint_blocks(model, using=self.checkpoint) if self.checkpoint else nullcontext()

    def step(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: dict) -> None:
        """Make one update from the whole batch."""
        parts = [
            dict(zip(batch, rows, strict=True)) for rows in zip(*(v.chunk(self.k) for v in batch.values()), strict=True)
        ]
        with self.checkpointed(model):
            accumulated_step(model, optimizer, parts, [Autocast()] if self.autocast else [])
        if settings().device.type == "cuda":
            torch.cuda.synchronize()


def groups() -> dict[str, dict[str, Variant]]:
    """Groups by name: torch's way of checkpointing before the same by hand, and every combination of the three techniques."""
    by_hooks = {"checkpoint": checkpoint_by_hooks}
    return {
        "Checkpointing every block, re-entrant": {
            "torch": Variant(checkpoint=partial(torch_checkpoint, use_reentrant=True)),
            "by hand": Variant(checkpoint=checkpoint),
        },
        "Checkpointing every block, by saved-tensor hooks": {
            "torch": Variant(checkpoint=partial(torch_checkpoint, use_reentrant=False)),
            "by hand": Variant(checkpoint=checkpoint_by_hooks),
        },
        "Alone and combined": {
            "none": Variant(),
            "accumulation": Variant(K),
            "checkpointing": Variant(**by_hooks),
            "autocast": Variant(autocast=True),
            "accumulation, checkpointing": Variant(K, **by_hooks),
            "accumulation, autocast": Variant(K, autocast=True),
            "checkpointing, autocast": Variant(**by_hooks, autocast=True),
            "all three": Variant(K, **by_hooks, autocast=True),
        },
    }


def rows(variants: Mapping[str, Variant], rounds: int) -> Iterator[str]:
    """A table row for each variant: median time, ratio to the first one round by round, peak, predicted peak and its error."""
    model = (
        models.from_configuration(models.configuration("distilbert", labels=10, **SIZES)).to(settings().device).train()
    )
    optimizer = factory_of(Variant().recipe.optimizer)(model.parameters())
    batch = {name: value.to(settings().device) for name, value in random_batch(model, Variant().recipe).items()}
    steps = {name: partial(variant.step, model, optimizer, batch) for name, variant in variants.items()}
    peaks = {name: memory.measure((model, optimizer), step, timed=0).peak for name, step in steps.items()}
    for name, (median, ratio) in summarize(compare(steps, rounds)).items():
        predicted = memory.estimate(model.config, variants[name].recipe).peak
        sizes = f"{peaks[name] / MiB:.1f} | {predicted / MiB:.1f} | {predicted / peaks[name] - 1:+.2%}"
        yield f"| {name} | {median} | {ratio} | {sizes} |"


def main():
    """Print a table per group."""
    print_tables(
        __doc__,
        groups(),
        "| | step | its ratio to the first: median (min to max) | peak, MiB | predicted | off by |",
        rows,
    )


if __name__ == "__main__":
    main()
