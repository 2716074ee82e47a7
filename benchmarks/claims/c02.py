"""Chapter 02: the runs of *When it fails* with a seed of their own, at the scale that the chapter is stored at."""

from collections.abc import Callable

from torch.optim.lr_scheduler import LambdaLR

from benchmarks.claims import claim
from course_utils import data, models, optim, training
from course_utils.settings import SCALES

SCALE = SCALES["laptop"]


def _missing(update: int) -> float:
    return (1 - 0.99 ** (update + 1)) ** 0.5


def _final_loss(factor: Callable[[int], float], seed: int) -> float:
    functions = data.load_functions()
    rows = data.tokenize(functions, data.tokenizer_for(functions, SCALE.vocabulary), SCALE.sequence)["train"]
    model = models.build("distilbert", labels=functions["train"].features["label"].num_classes, scale=SCALE, seed=seed)
    optimizer = optim.RMSProp(model.parameters(), lr=1e-3)
    batches = data.batches(rows.select(range(20 * SCALE.batch_size)), SCALE.batch_size, seed=seed)
    schedule = LambdaLR(optimizer, factor)
    history = training.train(model, optimizer, batches, epochs=4, schedule=schedule, seed=seed, progress=False)
    return history.frame()["loss"][-5:].mean()


@claim("02-start")
def the_missing_factor_or_half_the_rate_cures_it(seed):
    """The seed decides the weights, the order of the texts and dropout."""
    cured = max(_final_loss(_missing, seed), _final_loss(lambda update: 0.5, seed))
    return cured < _final_loss(lambda update: 1.0, seed) - 0.5


@claim("02-first-twenty")
def the_first_updates_are_not_the_whole_fault(seed):
    """Corrected in the first 20 updates alone, three runs end above both cures in the mean."""

    def mean_loss(factor):
        return sum(_final_loss(factor, seed + offset) for offset in (0, 10, 20)) / 3

    cured = max(mean_loss(_missing), mean_loss(lambda update: 0.5))
    return cured < mean_loss(lambda update: _missing(update) if update < 20 else 1.0)
