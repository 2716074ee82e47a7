"""What the course's loop, Accelerate and Trainer add to a loop written bare: same model, batches and optimizer.

All advance step by step in turn. The bare loop stands there twice: its second row says how far apart equals are.
"""

import argparse

import torch
from torch.utils.data import default_collate

from benchmarks.side_by_side import hand_over, report, take_turns
from course_utils import data, models, optim, training
from course_utils.settings import settings


def bare(model, optimizer, batches):
    """The least that trains."""
    torch.manual_seed(0)
    losses = []
    model.train()
    for batch in batches:
        batch = {name: tensor.to(settings().device) for name, tensor in batch.items()}
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return [loss.item() for loss in losses]


def _in_turn(rows):
    hand_over()
    return default_collate(rows)


def main():
    """Run the comparison at the settings' scale."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=90)
    arguments = parser.parse_args()
    scale, functions = settings().scale, data.load_functions()
    rows = data.tokenize(functions, data.tokenizer_for(functions, scale.vocabulary), scale.sequence)
    some = rows["train"].select(range(arguments.steps * scale.batch_size))
    batches = data.batches(some, scale.batch_size, seed=0)
    batches.collate_fn = _in_turn

    def way(train):
        model = models.build("distilbert", labels=10).to(settings().device)
        optimizer = optim.AdamW(model.parameters(), lr=1e-4)
        return lambda: train(model, optimizer, batches)

    ways = {
        "bare loop": way(bare),
        "course_utils.training.train": way(training.train),
        "Accelerate": way(training.train_with_accelerate),
        "Trainer": way(training.train_with_trainer),
        "bare loop again": way(bare),
    }
    print(f"{arguments.steps} steps a run, time per step:")
    report(take_turns(ways, arguments.rounds), unit=arguments.steps)


if __name__ == "__main__":
    main()
