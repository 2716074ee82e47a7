"""Step time and state bytes of each optimizer by hand beside the libraries', on the 104 tensors of DistilBERT-base.

Every group is timed in one run, its variants in turn; the first of a group is what the others are divided by.
"""

from collections.abc import Callable, Iterator

import torch

from benchmarks.side_by_side import compare, print_tables, summarize
from course_utils import memory, models, optim
from course_utils.settings import settings
from course_utils.units import MiB

Contender = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]


def groups() -> dict[str, dict[str, Contender]]:
    """Name to what makes the same step: torch's plain loop or the library first, then by hand."""
    import bitsandbytes as bnb
    import transformers

    return {
        "SGD": torch_and_ours(torch.optim.SGD, optim.SGD, lr=1e-5),
        "SGD, momentum": torch_and_ours(torch.optim.SGD, optim.SGD, lr=1e-5, momentum=0.9),
        "SGD, Nesterov": torch_and_ours(torch.optim.SGD, optim.SGD, lr=1e-5, momentum=0.9, nesterov=True),
        "AdaGrad": torch_and_ours(torch.optim.Adagrad, optim.AdaGrad, lr=1e-5),
        "RMSProp": torch_and_ours(torch.optim.RMSprop, optim.RMSProp, lr=1e-5),
        "Adam": torch_and_ours(torch.optim.Adam, optim.Adam, lr=1e-5),
        "AdamW": torch_and_ours(torch.optim.AdamW, optim.AdamW, lr=1e-5),
        "Adafactor": torch_and_ours(torch.optim.Adafactor, optim.Adafactor, lr=1e-5)
        | {"Transformers": lambda p: transformers.Adafactor(p, lr=1e-5, relative_step=False, scale_parameter=False)},
        "AdamW, 8 bits": {
            "bitsandbytes": lambda p: bnb.optim.AdamW8bit(p, lr=1e-5),
            "by hand": lambda p: optim.AdamW8bit(p, lr=1e-5),
            "torch's AdamW, 32 bits": lambda p: torch.optim.AdamW(p, lr=1e-5, foreach=False),
        },
    }


def torch_and_ours(theirs: type, ours: type, **options) -> dict[str, Contender]:
    """torch's with `foreach` off and on, and ours."""
    return {
        "torch, foreach=False": lambda p: theirs(p, **options, foreach=False),
        "by hand": lambda p: ours(p, **options),
        "torch, foreach=True": lambda p: theirs(p, **options, foreach=True),
    }


def rows(contenders: dict[str, Contender], rounds: int) -> Iterator[str]:
    """A table row for each optimizer: median time, ratio to the first one round by round, bytes of state and their ratio."""
    optimizers = {name: make(_parameters()) for name, make in contenders.items()}
    seconds = compare({name: _stepper(optimizer) for name, optimizer in optimizers.items()}, rounds)
    sizes = {name: memory.optimizer_state_size(optimizer).bytes for name, optimizer in optimizers.items()}
    first = next(iter(sizes.values()))
    for name, (median, ratio) in summarize(seconds).items():
        relative = f"{sizes[name] / first:.4f}" if first else "–"
        yield f"| {name} | {median} | {ratio} | {sizes[name] / MiB:.2f} | {relative} |"


def _parameters() -> list[torch.nn.Parameter]:
    model = models.build("distilbert-base-cased", labels=2).to(settings().device)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    return list(model.parameters())


def _stepper(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    def step():
        optimizer.step()
        if settings().device.type == "cuda":
            torch.cuda.synchronize()

    return step


def main():
    """Print a table per group."""
    print_tables(
        __doc__, groups(), "| | step | its ratio to the first: median (min to max) | state, MiB | ratio |", rows
    )


if __name__ == "__main__":
    main()
