"""The sizes of a Transformers configuration: which they are, and which make no model."""

from course_utils.errors import CourseError, require_count

SIZES = frozenset(
    (
        *("hidden_size", "n_embd", "dim", "intermediate_size", "n_inner", "hidden_dim"),
        *("num_hidden_layers", "n_layer", "n_layers", "num_attention_heads", "n_head", "n_heads"),
        *("num_key_value_heads", "head_dim", "vocab_size", "max_position_embeddings", "n_positions", "num_labels"),
    )
)
"""The names of sizes in the configurations of Llama, GPT-2 and DistilBERT; several are names of the same."""


def own_name(config, name: str) -> str:
    """The name that `config`, a configuration or its class, itself has for the setting `name`."""
    return config.attribute_map.get(name, name)


def check_sizes(config) -> None:
    """Raise `CourseError` for a size that is no whole number from 1 on, and for heads that do not divide what they share."""
    for name in sorted(SIZES & vars(config).keys()):
        if getattr(config, name) is not None:
            require_count(name, getattr(config, name))
    width, heads = config.hidden_size, config.num_attention_heads
    if getattr(config, "head_dim", None) is None and width % heads:  # Llama's heads have a width of their own
        raise CourseError(f"A width of {width} does not divide by {heads} attention heads; change one of them.")
    of_keys = getattr(config, "num_key_value_heads", None) or heads
    if heads % of_keys:
        raise CourseError(f"{heads} attention heads do not divide by {of_keys} of keys and values; change one of them.")
