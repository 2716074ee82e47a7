"""Chapter 04: what the mixed terms of a batch's gradient add to the error of rows and columns; what ε₁ and clipping do.

At laptop scale, whatever the scale asked for: after less training hardly any error is left without the mixed terms.
"""

from functools import partial

import torch

from benchmarks.claims import claim
from course_utils import data, models, optim, training
from course_utils.lessons import c04_adafactor as lesson
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
    estimates = {mixed: lesson.estimate_from_means(squares) for mixed, squares in squares_of.items()}
    errors = {mixed: lesson.relative_error(estimates[mixed], squares) for mixed, squares in squares_of.items()}
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
    low = {name: lesson.mean_of_last_ten([history])[0] for name, history in low.items()}
    return max(low["0.03"], low["clipped"]) < low["0.1"] and low["0.03"] < low["clipped"] + 0.2


@claim("04-bfloat16")
def bfloat16_turns_pytorchs_steps_and_then_shortens_them(seed):
    """At 10⁻² more than half of the step is another, at nearly its length; at 10⁻⁴ it is the gradient, and short."""
    torch_s, small = torch.optim.Adafactor, partial(torch.optim.Adafactor, eps=(1e-12, 1e-3))
    middle, low = (lesson.step_in_bfloat16(torch_s, size, seed) for size in (1e-2, 1e-4))
    turned = middle["change"] > 0.5 and middle["length"] > 0.75 and middle["cosine"] < 0.95
    cured = all(lesson.step_in_bfloat16(small, size, seed)["change"] < 0.02 for size in (1e-2, 1e-4))
    return turned and low["cosine"] > 0.999 and low["length"] < 0.2 and cured


def _model(seed: int):
    labels = data.load_functions()["train"].features["label"].num_classes
    return models.build("distilbert", labels=labels, seed=seed, scale=SCALE)


def _batches(seed: int):
    functions = data.load_functions()
    rows = data.tokenize(functions, data.tokenizer_for(functions, SCALE.vocabulary), SCALE.sequence)
    return data.batches(rows["train"].select(range(20 * SCALE.batch_size)), SCALE.batch_size, seed=seed)
