"""Time of a step of a small GPT-2 on two ranks: data parallelism and full sharding by hand beside torch's own.

All ways of a group run in one launch, in turn, on the same batch; the first of a group is what the others are divided by. Ours
have no prefetch. torch's `fully_shard` gathers the root again before backward, as ours does.
"""

from collections.abc import Callable, Iterator, Mapping
from statistics import median

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.side_by_side import compare, print_tables
from course_utils import models, techniques
from course_utils.distributed import DDP, FSDP, launch
from course_utils.memory import Recipe
from course_utils.memory.model import random_batch
from course_utils.units import format_seconds

RANKS = 2
SIZES = {"n_embd": 256, "n_layer": 4, "n_head": 8, "vocab_size": 4000}
RECIPE = Recipe(batch=8, sequence=128)


def torchs_fsdp(model: nn.Module) -> nn.Module:
    """FSDP2 by block."""
    from torch.distributed.fsdp import fully_shard

    for block in techniques.blocks_of(model):
        fully_shard(block)
    return fully_shard(model, reshard_after_forward=True)


def groups() -> dict[str, dict[str, Callable[[nn.Module], nn.Module]]]:
    """By name, what wraps the model."""
    return {
        "Data parallelism": {
            "torch's DDP": nn.parallel.DistributedDataParallel,
            "by hand": DDP,
        },
        "Full sharding": {
            "torch's fully_shard": torchs_fsdp,
            "by hand": lambda model: FSDP(model, techniques.blocks_of(model)),
        },
    }


def on_rank(group: str, rounds: int) -> dict[str, list[float]]:
    """Seconds of every step on this rank."""
    ways = {name: _step_of(wrap) for name, wrap in groups()[group].items()}
    return compare(ways, rounds)


def _step_of(wrap: Callable[[nn.Module], nn.Module]) -> Callable[[], None]:
    plain = models.from_configuration(models.configuration("gpt2", **SIZES), seed=0)
    batch, model = random_batch(plain, RECIPE), wrap(plain)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def step() -> None:
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()

    return step


def rows(group: str, rounds: int) -> Iterator[str]:
    """A table row for each way: median time on rank 0, and its ratio to the first way round by round."""
    seconds = launch(on_rank, RANKS, group, rounds, seconds=3600)[0]
    reference = next(iter(seconds.values()))
    for name, times in seconds.items():
        ratios = sorted(t / r for t, r in zip(times, reference, strict=True))
        spread = f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        of_medians = f"{median(times) / median(reference):.2f}"
        yield f"| {name} | {format_seconds(median(times))} | {of_medians} | {spread} |"


def main():
    """Print a table per group."""
    named: Mapping = {name: name for name in groups()}
    print_tables(__doc__, named, "| | step | ratio of medians | ratio round by round: median (min to max) |", rows)


if __name__ == "__main__":
    from benchmarks.distributed import main as run  # ranks find the functions under this name, not as `__main__`

    run()
