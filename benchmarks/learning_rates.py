"""Which learning rate suits each optimizer of the comparison: loss at the end of one pass, for a grid of rates.

Run at the scale that the comparison is stored at: `COURSE_SCALE=laptop python -m benchmarks.learning_rates`.
"""

import argparse

from course_utils import data, models
from course_utils.lessons.c05b_choosing import contenders
from course_utils.settings import settings

SEED, LAST = 100, 20  # a seed that no comparison uses
GRID = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)


def main():
    """Print a row per optimizer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="beginnings of names; by default all")
    wanted = tuple(parser.parse_args().names)
    scale = settings().scale
    functions = data.load_functions()
    rows = data.tokenize(functions, data.tokenizer_for(functions, scale.vocabulary), scale.sequence)
    batches = data.batches(rows["train"], scale.batch_size, seed=SEED)
    labels = functions["train"].features["label"].num_classes
    print(f"mean loss of the last {LAST} of {len(batches)} steps\n\n| | {' | '.join(f'{lr:g}' for lr in GRID)} |")
    for name, contender in contenders().items():
        if not wanted or name.startswith(wanted):
            losses = []
            for lr in GRID:
                model = models.build("distilbert", labels=labels, seed=SEED).to(settings().device)
                losses.append(sum(contender.at(lr).train(model, batches, SEED).losses[-LAST:]) / LAST)
            print(f"| {name} | {' | '.join(f'{loss:.2f}' for loss in losses)} |", flush=True)


if __name__ == "__main__":
    main()
