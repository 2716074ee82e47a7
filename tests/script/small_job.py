"""A small language model, a text for it, and what ranks bring home from training it."""

from pathlib import Path

import torch

from course_utils.lessons import c12_engines
from course_utils.script import Job, train

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 259,
    "max_position_embeddings": 64,
    "attention_dropout": 0.1,
}


def write_small_model(folder: Path, **fields) -> dict:
    """The model's configuration and a text of functions in `folder`, as fields of a job beside those given."""
    return {**c12_engines.write_small_model(folder, **SIZES), "tokenizer": "bytes", **fields}


def parameters(engine) -> dict[str, torch.Tensor]:
    """Whole parameters by name, wherever their parts are."""
    state = engine.plain.state_dict()
    return {name: (t.full_tensor() if hasattr(t, "full_tensor") else t).clone() for name, t in state.items()}


def run_job(fields: dict) -> tuple[dict[str, torch.Tensor], dict[int, float], list[str]]:
    """Parameters after training, this rank's losses, and what was said."""
    lines = []
    result = train(Job(**fields), say=lines.append)
    return parameters(result.engine), result.losses, lines


def run_jobs(jobs: dict[str, dict]) -> dict[str, tuple]:
    """The results of several jobs, one after the other, so that they share the start of their ranks."""
    return {name: run_job(fields) for name, fields in jobs.items()}


def largest_difference(state: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """The largest difference between parameters of one name."""
    assert state.keys() == expected.keys()
    return max(float((state[name] - expected[name]).abs().max()) for name in expected)
