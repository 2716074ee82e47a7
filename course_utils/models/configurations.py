"""The configuration of a model by its name, or from its `config.json`; sizes that make no model are refused."""

import json
import re
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from course_utils.errors import CourseError, require_count
from course_utils.models.families import FAMILIES, PUBLISHED
from course_utils.models.public import PUBLIC, public_configuration
from course_utils.models.sizes import SIZES, check_sizes, own_name
from course_utils.settings import Scale, settings

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def configuration(name: str, *, labels: int | None = None, scale: Scale | None = None, **changes) -> "PretrainedConfig":
    """What `build` builds from, with the model's class in `architectures`; arguments and errors as there.

    `name` may also be one of `PUBLIC`, models of others, which take no labels and no scale.
    """
    import transformers

    if name in PUBLIC:
        return public_configuration(name, changes)
    if "num_labels" in changes or not (labels is None or (type(labels) is int and labels > 0)):
        raise CourseError(
            "The number of classes is labels=…, a whole number from 1 on; leave it out for a language model."
        )
    family_name, sizes = _family_and_sizes(name, scale)
    family = FAMILIES[family_name]
    kind = getattr(transformers, family.config)
    _check_changes(changes, kind)
    if name in FAMILIES and scale is None:
        _refuse_half_a_size(name, sizes, changes, kind)
    try:
        config = kind(**{**sizes, **changes}, **({} if labels is None else {"num_labels": labels}))
    except Exception as error:  # Transformers checks by kinds of its own, and names the setting in the last line
        raise CourseError(f"{kind.__name__} does not take this: {_last_line(error)}.") from error
    check_sizes(config)
    if config.pad_token_id is None:
        config.pad_token_id = 0
    config.architectures = [family.language_model if labels is None else family.classifier]
    return config


def from_json(path: Path) -> "PretrainedConfig":
    """The configuration in a model's `config.json`; raises `CourseError` where that holds none, or of an unknown family."""
    from transformers import CONFIG_MAPPING

    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        family = found.pop("model_type")
    except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise CourseError(
            f"{path} could not be read as a model's config.json, an object with a model_type ({_last_line(error)})."
        ) from error
    if family not in CONFIG_MAPPING:
        near = ", ".join(get_close_matches(str(family), CONFIG_MAPPING, 3)) or "none"
        raise CourseError(
            f"This version of Transformers knows no family {family!r} (nearest: {near}); update it, or give a function that "
            "makes the model."
        )
    try:
        return CONFIG_MAPPING[family](**found)
    except Exception as error:  # Transformers checks by kinds of its own
        raise CourseError(f"{path} is no configuration of {family}: {_last_line(error)}.") from error


def _family_and_sizes(name: str, scale: Scale | None) -> tuple[str, dict]:
    if not isinstance(scale, Scale | None):
        raise CourseError(f"scale={scale!r} is no Scale; give one of settings.SCALES, such as SCALES['smoke'].")
    if name in FAMILIES:
        return name, FAMILIES[name].sizes(scale or settings().scale)
    if name in PUBLISHED:
        return PUBLISHED[name]
    known = (*FAMILIES, *PUBLISHED, *PUBLIC)
    near = get_close_matches(name.lower(), known, 3) or known
    raise CourseError(f"No model is called {name!r}; choose one of {', '.join(near)}, or give its config.json.")


def _check_changes(changes: dict, kind: type) -> None:
    known = kind()
    for name, value in changes.items():
        if not hasattr(known, name):
            raise CourseError(f"{kind.__name__} has no setting {name!r}; see its documentation for the names it has.")
        if name in SIZES and value is not None:  # as GPT-2's inner width may be, and Llama's width of a head
            require_count(name, value)


def _refuse_half_a_size(name: str, sizes: dict, changes: dict, kind: type) -> None:
    """Sizes that belong together come together: else most of a large model would silently be the small one's."""
    given = {own_name(kind, change) for change in changes}
    together = [size for size in sizes if size in SIZES and "position" not in size]
    left_out = [f"{size}={sizes[size]}" for size in together if size not in given]
    if left_out and given & set(together) - {"vocab_size"}:
        published = next(known for known, (family, _) in PUBLISHED.items() if family == name)
        raise CourseError(
            f"{name!r} is the course's own small model, and {', '.join(left_out)} would stay; give these too, "
            f"or start from {published!r}, or say with scale=settings.SCALES[…] whose they are."
        )


def _last_line(error: BaseException) -> str:
    return re.sub(r"^\w+Error: ", "", str(error).strip().splitlines()[-1].strip()).rstrip(".")
