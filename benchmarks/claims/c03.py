"""Chapter 03: its experiment with noise and its training runs with a seed of their own, at the scale that it is stored at."""

import torch
from torch.optim.lr_scheduler import LambdaLR

from benchmarks.claims import claim
from course_utils import data, models, optim, training
from course_utils.lessons import c03_adamw as lesson
from course_utils.settings import SCALES

SCALE = SCALES["laptop"]


@claim("03-division")
def only_what_is_divided_depends_on_the_scale(seed):
    """The seed decides the noise."""
    options = {"lr": 0.01, "weight_decay": 0.1}
    kinds = {
        "L2": lambda p: optim.Adam(p, **options),
        "AdamW": lambda p: optim.AdamW(p, **options),
        "undivided": lambda p: torch.optim.SGD(p, **options, momentum=0.9, dampening=0.9),
    }
    left = {name: lesson.left_after_noise(kind, lesson.GRADIENT_SCALES, 500, seed=seed) for name, kind in kinds.items()}
    spread = {name: (shares.max() - shares.min()).item() for name, shares in left.items()}
    return spread["L2"] > 0.9 and max(spread["AdamW"], spread["undivided"]) < 1e-6


class Uncorrected(optim.AdamW):
    """Without bias correction: the step counter starts where both corrections are 1."""

    def new_state(self, parameter, group):
        """A state that has counted a million steps."""
        return super().new_state(parameter, group) | {"step": torch.tensor(1e6)}


def _texts(split: str, count: int):
    functions = data.load_functions()
    rows = data.tokenize(functions, data.tokenizer_for(functions, SCALE.vocabulary), 32)[split].select(range(count))
    return rows, functions["train"].features["label"].num_classes


def _train(
    kind,
    seed: int,
    epochs: int,
    weight_decay: float,
    lr: float,
    factor=lambda update: 1.0,
    dtype=torch.float32,
    **options,
):
    texts, labels = _texts("train", 320)
    model = models.build("distilbert", labels=labels, scale=SCALE, seed=seed).to(dtype)
    optimizer = kind(optim.decay_groups(model, weight_decay), lr=lr, eps=options.pop("eps", 1e-8))
    schedule, order = LambdaLR(optimizer, factor), data.batches(texts, 16, seed=seed)
    return training.train(
        model, optimizer, order, epochs=epochs, schedule=schedule, seed=seed, progress=False, **options
    )


@claim("03-buys")
def decay_lowers_the_late_loss(seed):
    """The seed decides weights, order and dropout. Single evaluations jump, so the means of the last four count."""
    look = data.batches(_texts("validation", 200)[0], 100)
    runs = {decay: _train(optim.AdamW, seed, 8, decay, 1e-3, evaluate_on=look) for decay in (0, 10)}
    final_loss = {decay: run.evaluation_frame()["loss"][-4:].mean() for decay, run in runs.items()}
    return final_loss[10] < final_loss[0]


@claim("03-undo")
def the_inverse_of_the_curve_undoes_the_damage(seed):
    """In 64-bit floats all losses agree up to rounding, and the run without correction ends above them."""
    run = {"weight_decay": 0, "lr": 1.5e-3, "eps": 1e-30, "seed": seed, "epochs": 4, "dtype": torch.float64}
    right, wrong = _train(optim.AdamW, **run), _train(Uncorrected, **run)
    undone = _train(
        Uncorrected, factor=lambda update: (1 - 0.999 ** (update + 1)) ** 0.5 / (1 - 0.9 ** (update + 1)), **run
    )
    largest_error = max(abs(b / a - 1) for a, b in zip(right.losses, undone.losses, strict=True))
    ends = [sum(run.losses[-5:]) / 5 for run in (right, wrong, undone)]
    return largest_error < 1e-4 and ends[1] > 1.8 and max(ends[0], ends[2]) < ends[1] - 0.3
