"""Real data, as `datasets.Dataset`: the bundled corpus, a tokenizer trained on the spot, and batches."""

from course_utils import import_when_used

_HOMES = {
    "batching": ("EpochSampler", "batches", "on_device", "tokenize"),
    "functions": ("load_functions", "majority_share"),
    "scoring": ("metrics",),
    "tokenizer": ("tokenizer_for",),
}

__getattr__, __dir__, __all__ = import_when_used(__name__, _HOMES)
