"""Loss after one pass for each optimizer of chapter 05b, over learning rates and seeds; `--save` stores the runs for the chapter.

Run at the scale that the comparison is stored at: `COURSE_SCALE=laptop python -m benchmarks.learning_rates`. A run takes
about ten seconds on one thread, all of them about half an hour.
"""

import argparse
import json
from dataclasses import replace
from functools import partial
from math import isfinite
from pathlib import Path

from torch import nn

from course_utils import data, models
from course_utils.lessons import c05b_choosing as lesson
from course_utils.lessons.shared import Contender
from course_utils.settings import Scale, settings
from course_utils.training import evaluate

GRIDS = {
    "SGD, Nesterov": (1e-3, 1e-2, 1e-1, 3e-1, 1.0),
    "Adafactor": (1e-3, 1e-2, 3e-2, 1e-1, 3e-1),
    "Muon": (1e-3, 3e-3, 1e-2, 3e-2, 1e-1),
}
ADAMS = (3e-4, 1e-3, 2e-3, 3e-3, 1e-2)


def contenders_by_schedule() -> dict[tuple[str, str], Contender]:
    """The contenders by name and schedule: all with the cosine, Adam and AdamW with a constant rate, too."""
    cosine = {(name, "cosine"): contender for name, contender in lesson.contenders().items()}
    return cosine | {(name, "constant"): replace(cosine[name, "cosine"], cosine=False) for name in ("Adam", "AdamW")}


class Task:
    """The chapter's task at a scale, by default the settings', prepared once."""

    def __init__(self, scale: Scale | None = None):
        self.scale, functions = scale or settings().scale, data.load_functions()
        self.rows = data.tokenize(functions, data.tokenizer_for(functions, self.scale.vocabulary), self.scale.sequence)
        self.labels = functions["train"].features["label"].num_classes

    def model(self, seed: int) -> nn.Module:
        """The model before training."""
        return models.build("distilbert", labels=self.labels, scale=self.scale, seed=seed).to(settings().device)

    def run(self, contender: Contender, seed: int) -> dict[str, float]:
        """Loss over the last steps of a pass, and on the test split afterwards. The seed decides weights, order and dropout."""
        examples = self.rows["train"].select(range(min(self.scale.train_rows, len(self.rows["train"]))))
        model = self.model(seed)
        history = contender.train(model, data.batches(examples, self.scale.batch_size, seed=seed), seed)
        test = evaluate(model, data.batches(self.rows["test"], 64))["loss"]
        losses = {"loss": lesson.final_loss(history), "test": test}
        return {name: round(value, 4) if isfinite(value) else None for name, value in losses.items()}


def store(path: Path, runs: list[dict]) -> None:
    """Write runs as JSON, a line each."""
    lines = ",\n".join(map(json.dumps, runs))
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def main():
    """Print a line for each run: the sweep, the race at the best rates, and the race with the rates of the rest crossed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", action="store_true", help="store the runs for the chapter")
    save, task, runs = parser.parse_args().save, Task(), []

    def note(name: str, schedule: str, lr: float, seed: int, contender: Contender, **extra: float) -> None:
        row = {"name": name, "schedule": schedule, "lr": lr} | extra | {"seed": seed}
        runs.append(row | task.run(contender.with_lr(lr), seed))
        print(json.dumps(runs[-1]), flush=True)

    for (name, schedule), contender in contenders_by_schedule().items():
        for seed in lesson.SWEEP_SEEDS:
            for lr in GRIDS.get(name, ADAMS):
                note(name, schedule, lr, seed, contender)
    for name, contender in lesson.contenders().items():
        for seed in lesson.RACE_SEEDS:
            note(name, "cosine", contender.lr, seed, contender)
    for seed in lesson.RACE_SEEDS:
        for name, lr, rest_lr in lesson.PAIRS:
            pair = Contender(partial(lesson.make_pair, use_muon=name == "Muon", rest_lr=rest_lr), lr)
            note(name, "cosine", lr, seed, pair, rest=rest_lr)
    if save:
        store(lesson.RUNS_FILE, runs)


if __name__ == "__main__":
    main()
