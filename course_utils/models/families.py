"""The course's own families, `distilbert`, `gpt2` and `llama`, sized by a scale, and published models of them."""

from collections.abc import Callable
from dataclasses import dataclass

from course_utils.settings import Scale


@dataclass(frozen=True)
class Family:
    """Names of Transformers' classes, and what the configuration's sizes are at a scale."""

    config: str
    classifier: str
    language_model: str
    sizes: Callable[[Scale], dict]


def _distilbert(s: Scale) -> dict:
    sizes = {"vocab_size": s.vocabulary, "dim": s.width, "hidden_dim": 4 * s.width, "n_layers": s.layers}
    return {**sizes, "n_heads": s.heads, "max_position_embeddings": max(s.sequence, 128)}


def _gpt2(s: Scale) -> dict:
    sizes = {"vocab_size": s.vocabulary, "n_embd": s.width, "n_layer": s.layers, "n_head": s.heads}
    return {**sizes, "n_positions": max(s.sequence, 128), "bos_token_id": None, "eos_token_id": None}


def _llama(s: Scale) -> dict:
    sizes = {"vocab_size": s.vocabulary, "hidden_size": s.width, "intermediate_size": 4 * s.width}
    sizes |= {"num_hidden_layers": s.layers, "num_attention_heads": s.heads}
    return {**sizes, "max_position_embeddings": max(s.sequence, 128), "bos_token_id": None, "eos_token_id": None}


FAMILIES = {
    "distilbert": Family(
        "DistilBertConfig", "DistilBertForSequenceClassification", "DistilBertForMaskedLM", _distilbert
    ),
    "gpt2": Family("GPT2Config", "GPT2ForSequenceClassification", "GPT2LMHeadModel", _gpt2),
    "llama": Family("LlamaConfig", "LlamaForSequenceClassification", "LlamaForCausalLM", _llama),
}
PUBLISHED = {
    "distilbert-base-cased": ("distilbert", {"vocab_size": 28_996}),
    "gpt2-large": ("gpt2", {"n_embd": 1280, "n_layer": 36, "n_head": 20}),
    "llama-7b": ("llama", {}),
}
"""Models of these families; those of others are in `public`."""
