"""Step time of 8-bit AdamW by hand beside bitsandbytes', on DistilBERT-base (65,783,042 parameters)."""

import argparse

import bitsandbytes
import torch

from benchmarks.adamw import stepper
from benchmarks.side_by_side import compare, report
from course_utils import optim


def main():
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    ways = {
        "bitsandbytes, 8 bits": stepper(bitsandbytes.optim.AdamW8bit),
        "by hand, 8 bits": stepper(optim.AdamW8bit),
        "by hand, 32 bits": stepper(optim.AdamW),
        "torch, 32 bits, foreach=False": stepper(torch.optim.AdamW, foreach=False),
    }
    report(compare(ways, parser.parse_args().rounds))


if __name__ == "__main__":
    main()
