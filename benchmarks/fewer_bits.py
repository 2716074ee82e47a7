"""Loss after one epoch for each optimizer of chapter 11b, and for students with and without a teacher; `--save` stores them.

Run at the scale that the comparison is stored at: `COURSE_SCALE=laptop python -m benchmarks.fewer_bits`. A run takes ten to
fifteen seconds on one thread, all of them about half an hour.
"""

import argparse
import json
from math import inf

from benchmarks.learning_rates import Task
from course_utils.lessons import c11b_fewer_bits as lesson

RATES = {
    "SGD": (1.0, 3.0, 10.0),
    "AdamW": (1e-3, 2e-3, 4e-3),
    "GaLore": (5e-3, 1e-2, 2e-2, 4e-2),
    "APOLLO": (2e-3, 5e-3, 1e-2, 2e-2),
    "LoRA": (1e-3, 3e-3, 1e-2, 3e-2),
}
"""Of each kind; AdamW's on fewer bits take AdamW's best."""


def main():
    """Print a line for each run: by optimizer the sweep, then the race at the best rate; then the students."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", action="store_true", help="store the runs for the chapter")
    save, runs, task = parser.parse_args().save, [], Task()

    def note(**row) -> None:
        runs.append(row)
        print(json.dumps(row), flush=True)

    best = {}
    for name, low in lesson.low_states(lesson.hidden_shapes(task.model(0))).items():
        kind = name.split(",")[0]
        if kind != "AdamW" or kind == name:
            losses = {}
            for lr in RATES[kind]:
                for seed in lesson.SWEEP_SEEDS:
                    scores = task.run(low.contender.at(lr), seed)
                    losses[lr] = losses.get(lr, 0) + (inf if scores["loss"] is None else scores["loss"])
                    note(name=name, lr=lr, seed=seed, **scores)
            best[kind] = min(losses, key=losses.get)
        for seed in lesson.RACE_SEEDS:
            note(name=name, lr=best[kind], seed=seed, **task.run(low.contender.at(best[kind]), seed))
    master = lesson.teacher()
    note(name="teacher", seed=lesson.TEACHER_SEED, test=round(lesson.told(master), 4))
    ways = {f"taught, T = {t:g}": {"taught": lesson.from_teacher(master, t)} for t in (1.0, 2.0, 4.0)}
    for name, options in ({"alone": {}, "alone, twice as long": {"epochs": 2}} | ways).items():
        for seed in lesson.RACE_SEEDS:
            note(name=name, seed=seed, test=round(lesson.told(lesson.student(seed, **options)), 4))
    if save:
        lines = ",\n".join(map(json.dumps, runs))
        lesson.RUNS.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
