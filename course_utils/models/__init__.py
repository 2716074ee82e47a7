"""Models by name and scale, built from their configuration: no download, any machine.

`distilbert`, `gpt2` and `llama` take their size from a `Scale`; a `ConvNet` takes it from a `ConvNetConfig`. The published
sizes in `PUBLISHED` are exact: the same parameter tensors as the model of that name on the Hub, with fresh random values.
"""

from course_utils import import_when_used

_HOMES = {  # those of `building` and `convnet` need torch, which takes a second to import
    "building": (
        *("build", "class_of", "distilbert_base", "from_configuration"),
        *("load_pretrained", "parameter_bytes", "parameter_count"),
    ),
    "configurations": (
        *("FAMILIES", "NAMES", "PUBLISHED", "SETTINGS", "configuration", "from_json"),
        *("is_model", "canonical_name", "remarks_on", "tokenizer_beside"),
    ),
    "convnet": ("ConvNet", "ConvNetConfig"),
    "public": ("PUBLIC",),
}
__getattr__, __dir__, __all__ = import_when_used(__name__, _HOMES)
