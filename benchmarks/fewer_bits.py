"""Loss after one epoch for each optimizer of chapter 11b, for students with and without a teacher, and for each way to fine-tune.

Run at the scale that the comparison is stored at: `COURSE_SCALE=laptop python -m benchmarks.fewer_bits`; `--save` stores them. A
run takes five to fifteen seconds on one thread, all of them about three quarters of an hour.
"""

import argparse
import json
from dataclasses import replace
from functools import partial
from math import inf

from benchmarks.learning_rates import Task, store
from course_utils import memory
from course_utils.lessons import c11b_distillation as students
from course_utils.lessons import c11b_fewer_bits as lesson
from course_utils.settings import settings

RATES = {  # by the kind of optimizer
    "SGD": (1.0, 3.0, 10.0),
    "AdamW": (1e-3, 2e-3, 4e-3),
    "GaLore": (5e-3, 1e-2, 2e-2, 4e-2),
    "APOLLO": (2e-3, 5e-3, 1e-2, 2e-2),
    "LoRA": (1e-3, 3e-3, 1e-2, 3e-2),
}
ADAMWS = (5e-4, 1e-3, 2e-3)
TUNING = {  # by the way to fine-tune; the others have `ADAMWS`
    "half the width": (1e-3, 2e-3, 4e-3),
    "SGD": (1e-2, 3e-2, 1e-1),
    "Adafactor": (1e-2, 3e-2, 1e-1),
    "GaLore, a quarter": (2e-3, 5e-3, 1e-2),
    "LoRA on q v": (1e-3, 3e-3, 1e-2),
    "LoRA on q k v o": (1e-3, 3e-3, 1e-2),
    "LoRA of rank 16": (1e-3, 3e-3, 1e-2),
    "QLoRA of rank 16": (1e-3, 3e-3, 1e-2),
}
TUNED = (lesson.BASELINE, "8-bit AdamW", "4-bit AdamW", *TUNING)
TUNING_SEEDS = (10, 11, 12)


def main():
    """Print a line for each run: by optimizer the sweep, then the race at the best rate; then the students."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", action="store_true", help="store the runs for the chapter")
    save, runs, task = parser.parse_args().save, [], Task()
    note = partial(_note, runs)
    for name, low in lesson.low_states(lesson.hidden_shapes(task.model(0))).items():
        losses = {}
        for lr in RATES[name.split(",")[0]]:
            for seed in lesson.SWEEP_SEEDS:
                scores = task.run(low.contender.with_lr(lr), seed)
                losses[lr] = losses.get(lr, 0) + (inf if scores["loss"] is None else scores["loss"])
                note(name=name, lr=lr, seed=seed, **scores)
        best = min(losses, key=losses.get)
        for seed in lesson.RACE_SEEDS:
            note(name=name, lr=best, seed=seed, **task.run(low.contender.with_lr(best), seed))
    teacher = students.train_teacher()
    note(name="teacher", seed=students.TEACHER_SEED, test=round(students.held_out_token_loss(teacher), 4))
    taught = {f"taught, T = {t:g}": {"loss": students.loss_from_teacher(teacher, t)} for t in (1.0, 2.0, 4.0)}
    for name, options in ({"alone": {}, "alone, twice as long": {"epochs": 2}} | taught).items():
        for seed in lesson.RACE_SEEDS:
            student = students.train_student(seed, **options)
            note(name=name, seed=seed, test=round(students.held_out_token_loss(student), 4))
    tuned = fine_tune()
    if save:
        store(lesson.RACE_FILE, runs)
        store(lesson.TUNING_FILE, tuned)


def _note(runs: list[dict], **row) -> None:
    runs.append(row)
    print(json.dumps(row), flush=True)


def fine_tune() -> list[dict]:
    """Rows of the held-out loss of each stored way at three rates and with three seeds, and of what they started from."""
    scale, runs, pretrained = settings().scale, [], {}
    recipe = memory.Recipe(batch=16, sequence=scale.sequence, device=settings().device.type)
    narrow = replace(scale, width=scale.width // 2)
    note = partial(_note, runs)
    for seed in TUNING_SEEDS:
        pretrained[seed], pretrained[seed, "half"] = lesson.pretrain(scale, seed), lesson.pretrain(narrow, seed)
        note(name="start", lr=None, seed=seed, test=round(lesson.held_out_loss(pretrained[seed], scale), 4))
    methods = lesson.build_methods(pretrained[TUNING_SEEDS[0]], recipe, scale)
    recipes = {name: recipe for name, (_, recipe) in methods.items()}
    for name in TUNED:
        for lr in TUNING.get(name, ADAMWS):
            for seed in TUNING_SEEDS:
                model = pretrained[(seed, "half") if name == "half the width" else seed]
                ended = lesson.fine_tune(model, recipes.get(name, recipe), scale, lr, seed)
                note(name=name, lr=lr, seed=seed, test=round(lesson.held_out_loss(ended, scale), 4))
    return runs


if __name__ == "__main__":
    main()
