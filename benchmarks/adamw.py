"""Step time of AdamW by hand beside torch's, on the 104 tensors of DistilBERT-base (65,783,042 parameters)."""

import argparse

import torch

from benchmarks.side_by_side import compare, report
from course_utils import models, optim
from course_utils.settings import settings


def stepper(kind, **options):
    """A function that makes one step of a fresh optimizer on its own copy of the parameters."""
    parameters = list(models.build("distilbert-base-cased", labels=2).to(settings().device).parameters())
    for p in parameters:
        p.grad = torch.randn_like(p)
    optimizer = kind(parameters, lr=1e-5, weight_decay=0.01, **options)

    def step():
        optimizer.step()
        if settings().device.type == "cuda":
            torch.cuda.synchronize()

    return step


def main():
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    ways = {
        "torch, foreach=False": stepper(torch.optim.AdamW, foreach=False),
        "by hand": stepper(optim.AdamW),
        "torch, foreach=True": stepper(torch.optim.AdamW, foreach=True),
        "torch, fused=True": stepper(torch.optim.AdamW, fused=True),
    }
    report(compare(ways, parser.parse_args().rounds))


if __name__ == "__main__":
    main()
