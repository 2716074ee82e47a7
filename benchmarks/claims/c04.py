"""Chapter 04: what the mixed terms of a batch's gradient add to the error of rows and columns."""

from benchmarks.claims import claim
from course_utils import data, models, optim, training
from course_utils.lessons import c04_adafactor as lesson
from course_utils.settings import SCALES


@claim("04-mixed")
def mixed_terms_add_to_the_error(seed):
    """Two epochs at laptop scale, whatever the scale asked for: after less training hardly any error is left without them."""
    scale, functions = SCALES["laptop"], data.load_functions()
    rows = data.tokenize(functions, data.tokenizer_for(functions, scale.vocabulary), scale.sequence)
    batches = data.batches(rows["train"].select(range(20 * scale.batch_size)), scale.batch_size, seed=seed)
    labels = functions["train"].features["label"].num_classes
    model = models.build("distilbert", labels=labels, seed=seed, scale=scale)
    training.train(model, optim.AdamW(model.parameters(), lr=1e-3), batches, epochs=2, progress=False)
    layer = model.distilbert.transformer.layer[0].ffn.lin1
    factors = lesson.outer_products(model.eval(), layer, next(iter(batches)))
    found = {mixed: lesson.squared_sum(*factors, mixed=mixed) for mixed in (True, False)}
    errors = {mixed: lesson.relative_error(squares, lesson.estimate(squares)) for mixed, squares in found.items()}
    return 0.05 < errors[False] < errors[True]
