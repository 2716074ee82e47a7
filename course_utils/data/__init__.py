"""Real data, as `datasets.Dataset`: the bundled corpus, GLUE's MRPC, a tokenizer trained on the spot, and batches.

Names are imported when they are first used, so that `corpus` runs on any Python, without the libraries of the rest.
"""

from importlib import import_module

_HOME = {
    "EpochSampler": "batching",
    "batches": "batching",
    "card": "tasks",
    "load": "tasks",
    "load_functions": "tasks",
    "load_language": "tasks",
    "load_mrpc": "mrpc",
    "majority_share": "tasks",
    "metrics": "scoring",
    "tokenize": "batching",
    "tokenizer_for": "tokenizer",
}

__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return [*globals(), *__all__]
