"""Chapter 04: what the mixed terms of a batch's gradient add to the error of rows and columns; what ε₁ and clipping do.

At laptop scale, whatever the scale asked for: after less training hardly any error is left without the mixed terms.
"""

import torch

from benchmarks.claims import claim
from course_utils import data, models, optim, training
from course_utils.lessons import c04_adafactor as lesson
from course_utils.optim import adafactor
from course_utils.settings import SCALES

SCALE = SCALES["laptop"]


@claim("04-mixed")
def mixed_terms_add_to_the_error(seed):
    """After two epochs."""
    model, batches = _model(seed), _batches(seed)
    training.train(model, optim.AdamW(model.parameters(), lr=1e-3), batches, epochs=2, progress=False)
    layer = model.distilbert.transformer.layer[0].ffn.lin1
    factors = lesson.outer_products(model.eval(), layer, next(iter(batches)))
    squares_of = {mixed: lesson.squared_sum(*factors, mixed=mixed) for mixed in (True, False)}
    errors = {mixed: lesson.relative_error(squares, lesson.estimate(squares)) for mixed, squares in squares_of.items()}
    return 0.05 < errors[False] < errors[True]


@claim("04-clipping")
def without_clipping_it_learns_at_a_lower_rate(seed):
    """By the mean loss of the last ten of 60 steps, with a small ε₁: lower at 0.03 than at 0.1, where clipping ends lower."""
    without, low = {"d": 1e9}, {}
    for name, options in {
        "0.03": {"lr": 0.03, **without},
        "0.1": {"lr": 0.1, **without},
        "clipped": {"lr": 0.1},
    }.items():
        model = _model(seed)
        optimizer = optim.Adafactor(model.parameters(), eps=(1e-12, 1e-3), **options)
        low[name] = training.train(model, optimizer, _batches(0), epochs=3, seed=seed, progress=False)
    low = {name: lesson.last_ten([history])[0] for name, history in low.items()}
    return max(low["0.03"], low["clipped"]) < low["0.1"] and low["0.03"] < low["clipped"] + 0.2


@claim("04-bfloat16")
def bfloat16_shortens_pytorchs_steps(seed):
    """By 8 for gradients of 10⁻³, by 800 for 10⁻⁵, unless ε₁ is small; every size of gradient drawn anew."""
    torch.manual_seed(seed)
    for size, shorter in ((1e-3, 8), (1e-5, 800)):
        steps = {}
        for eps1 in (None, 1e-12):
            theta = torch.zeros(64, 32, dtype=torch.bfloat16, requires_grad=True)
            theta.grad = (size * torch.randn(64, 32)).bfloat16()
            torch.optim.Adafactor([theta], eps=(eps1, 1e-3)).step()
            steps[eps1] = adafactor.rms(theta.detach().float()) / 1e-5
        if not (0.9 < steps[None] * shorter < 1.1 and 0.9 < steps[1e-12] < 1.1):
            return False
    return True


def _model(seed: int):
    labels = data.load_functions()["train"].features["label"].num_classes
    return models.build("distilbert", labels=labels, seed=seed, scale=SCALE)


def _batches(seed: int):
    functions = data.load_functions()
    rows = data.tokenize(functions, data.tokenizer_for(functions, SCALE.vocabulary), SCALE.sequence)
    return data.batches(rows["train"].select(range(20 * SCALE.batch_size)), SCALE.batch_size, seed=seed)
