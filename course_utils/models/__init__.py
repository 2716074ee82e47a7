"""Models by name and scale, built from their configuration: no download, any machine.

`distilbert`, `gpt2` and `llama` take their size from a `Scale`; a `ConvNet` takes it from a `ConvNetConfig`. The published
sizes in `PUBLISHED` are exact: the same parameter tensors as the model of that name on the Hub, with fresh random values.
"""

from course_utils.models.building import (
    build,
    class_of,
    distilbert_base,
    from_configuration,
    parameter_bytes,
    parameter_count,
    pretrained,
)
from course_utils.models.configurations import (
    FAMILIES,
    NAMES,
    PUBLISHED,
    configuration,
    from_json,
    known_as,
    remarks_on,
    tokenizer_beside,
)
from course_utils.models.convnet import ConvNet, ConvNetConfig
from course_utils.models.public import PUBLIC

__all__ = [
    "FAMILIES",
    "NAMES",
    "PUBLIC",
    "PUBLISHED",
    "ConvNet",
    "ConvNetConfig",
    "build",
    "class_of",
    "configuration",
    "distilbert_base",
    "from_configuration",
    "from_json",
    "known_as",
    "parameter_bytes",
    "parameter_count",
    "pretrained",
    "remarks_on",
    "tokenizer_beside",
]
