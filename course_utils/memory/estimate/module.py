"""A model that is already there, held against what the formulas would take it for."""

from copy import copy

import torch
from torch import nn

from course_utils.errors import CourseError
from course_utils.memory.recipe import Recipe
from course_utils.models import ConvNetConfig

_ANY_MODEL = "memory.dry_run(build, step) takes any model, built inside"


def configuration_of(model: nn.Module):
    """The model's configuration, with the model's own class as its architecture; raises `CourseError` where it has none."""
    config = getattr(model, "config", None)
    if config is None:
        raise CourseError(f"A {type(model).__name__} carries no configuration for the formulas; {_ANY_MODEL}.")
    if not isinstance(config, ConvNetConfig):
        config = copy(config)
        config.architectures = [type(model).__name__]
    return config


def refuse_what_the_formulas_do_not_know(model: nn.Module, shapes: dict[str, tuple], recipe: Recipe) -> None:
    """Raise `CourseError` where `model` is trained otherwise than by `recipe` with parameters of `shapes`, all of them."""
    parameters = dict(model.named_parameters())
    frozen = [name for name, parameter in parameters.items() if not parameter.requires_grad]
    if frozen:
        raise CourseError(
            f"{len(frozen)} of {len(parameters)} parameter tensors are frozen, such as {frozen[0]}, and the formulas train "
            f"all; {_ANY_MODEL}, with what is frozen there; or give model.config to have all trained."
        )
    real = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    others = sorted(dict(real.items() ^ shapes.items()))
    if others:
        raise CourseError(
            f"The model's parameters are not those of its configuration, such as {others[0]}; {_ANY_MODEL}."
        )
    for field, value in _says(model, list(parameters.values())).items():
        if getattr(recipe, field) != value:
            raise CourseError(
                f"The model has {field}={value!r} and the recipe {field}={getattr(recipe, field)!r}; "
                f"write Recipe({field}={value!r}), or give model.config to ask what this recipe would take."
            )


def _says(model: nn.Module, parameters: list[nn.Parameter]) -> dict:
    """Fields of a recipe that the model itself decides, where it has decided otherwise than a plain recipe."""
    dtypes = {parameter.dtype for parameter in parameters}
    if dtypes not in ({torch.float32}, {torch.bfloat16}):
        names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        raise CourseError(f"The parameters are {names}, and the formulas know float32 or bfloat16; {_ANY_MODEL}.")
    decided = {
        "precision": ("bf16", dtypes == {torch.bfloat16}),
        "checkpointing": (True, any(getattr(module, "gradient_checkpointing", False) for module in model.modules())),
        "attention": ("eager", getattr(model.config, "_attn_implementation", None) == "eager"),
        "device": ("cuda", parameters[0].device.type == "cuda"),
    }
    return {field: value for field, (value, so) in decided.items() if so}
