"""Chapter 02: the three runs of *When it fails* with a seed of their own, at the scale that the chapter is stored at."""

from torch.optim.lr_scheduler import LambdaLR

from benchmarks.claims import claim
from course_utils import data, models, optim, training
from course_utils.settings import SCALES

SCALE = SCALES["laptop"]


@claim("02-start")
def the_missing_factor_or_half_the_rate_cures_it(seed):
    """The seed decides the weights and the order of the texts."""
    functions = data.load_functions()
    rows = data.tokenize(functions, data.tokenizer_for(functions, SCALE.vocabulary), SCALE.sequence)["train"]
    labels = functions["train"].features["label"].num_classes

    def final_loss(factor):
        model = models.build("distilbert", labels=labels, scale=SCALE, seed=seed)
        optimizer = optim.RMSProp(model.parameters(), lr=1e-3)
        batches = data.batches(rows.select(range(20 * SCALE.batch_size)), SCALE.batch_size, seed=seed)
        history = training.train(model, optimizer, batches, epochs=4, schedule=LambdaLR(optimizer, factor))
        return history.frame()["loss"][-5:].mean()

    corrected, halved = final_loss(lambda update: (1 - 0.99 ** (update + 1)) ** 0.5), final_loss(lambda update: 0.5)
    return max(corrected, halved) < final_loss(lambda update: 1.0) - 0.5
