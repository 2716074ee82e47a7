"""The estimate itself: it finds out which model is meant, has the step walked through, and sums."""

from types import SimpleNamespace

from torch import nn

from course_utils import models
from course_utils.errors import CourseError
from course_utils.memory.estimate.convnet import ConvNet
from course_utils.memory.estimate.distilbert import DistilBert
from course_utils.memory.estimate.gpt2 import Gpt2
from course_utils.memory.estimate.llama import Llama
from course_utils.memory.estimate.log import Log
from course_utils.memory.estimate.model import ACTIVATIONS, PencilModel
from course_utils.memory.estimate.module import configuration_of, refuse_what_the_formulas_do_not_know
from course_utils.memory.estimate.report import Book, Estimate
from course_utils.memory.estimate.step import walk
from course_utils.memory.recipe import Recipe, require_positions
from course_utils.models.sizes import check_sizes

ARCHITECTURES = {
    "DistilBertForSequenceClassification": DistilBert,
    "DistilBertForMaskedLM": DistilBert,
    "GPT2LMHeadModel": Gpt2,
    "GPT2ForSequenceClassification": Gpt2,
    "LlamaForCausalLM": Llama,
    "LlamaForSequenceClassification": Llama,
    "ConvNet": ConvNet,
}


def estimate(model_config, recipe: Recipe = Recipe()) -> Estimate:  # noqa: B008 frozen
    """The memory of one training step in its steady state, worked out from formulas: no model is built, nothing is run.

    `model_config` is a Transformers configuration that names its architecture (as `models.configuration` gives), a
    `ConvNetConfig`, or the name of a model in `models.PUBLISHED` (its language model). What is predicted is the step of
    `Workload(model_config, recipe)`: bytes in use on the device of one rank, without the libraries' own workspaces and
    without the buffers of communication. A model itself may be given too, where all of it is trained and the recipe says how.
    Raises `CourseError` for a model it does not know, for one with frozen, added or converted parameters that the formulas would
    overlook, for sizes that make no model, and for a recipe that does not suit the model.
    """
    if not isinstance(recipe, Recipe):
        raise CourseError(f"recipe must be a memory.Recipe, not {recipe!r}; write Recipe(batch=…).")
    config = _configuration(model_config)
    architecture = _architecture(config)
    _check(config, architecture, recipe)
    if isinstance(model_config, nn.Module):
        refuse_what_the_formulas_do_not_know(model_config, parameter_shapes(config), recipe)
    sizes = architecture.sizes_of(config, recipe)
    numeric = architecture(config, recipe, SimpleNamespace(**sizes))
    book = Book(_walked(numeric, numeric, recipe), lambda: _walked(_in_symbols(numeric, sizes), numeric, recipe))
    return Estimate(book.instants(), sizes | ({"N": recipe.ranks} if recipe.zero_stage else {}), recipe)


def parameter_shapes(model_config) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter, by formula, in the order of the real model; shared ones once."""
    config = _configuration(model_config)
    architecture, recipe = _architecture(config), Recipe()
    model = architecture(config, recipe, SimpleNamespace(**architecture.sizes_of(config, recipe)))
    return {named.name: named.shape for named in model.parameters()}


def _walked(model: PencilModel, numeric: PencilModel, recipe: Recipe) -> Log:
    log = Log(grain=512 if recipe.device == "cuda" else 1)  # CUDA's caching allocator gives multiples of 512 bytes
    walk(model, numeric, recipe, log)
    return log


def _in_symbols(model: PencilModel, sizes: dict[str, int]) -> PencilModel:
    import sympy  # slow to import, and only the formulas need it

    letters = {name: sympy.Symbol(name, positive=True, integer=True) for name in sizes}
    return type(model)(model.config, model.recipe, SimpleNamespace(**letters))


def _configuration(given):
    """The configuration itself, or that of the name, or of the model."""
    if isinstance(given, nn.Module):
        return configuration_of(given)
    return models.configuration(given) if isinstance(given, str) else given


def _architecture(config) -> type[PencilModel]:
    named = [type(config).__name__.removesuffix("Config")] if isinstance(config, models.ConvNetConfig) else None
    name = (named or getattr(config, "architectures", None) or [None])[0]
    if name is None:
        raise CourseError(
            f"This {type(config).__name__} does not say which model it is for; set its `architectures`, "
            'as in config.architectures = ["LlamaForCausalLM"].'
        )
    if name not in ARCHITECTURES:
        raise CourseError(
            f"There are no formulas for {name}; take one of {', '.join(ARCHITECTURES)}, or memory.dry_run(build, step), "
            "which takes any model."
        )
    return ARCHITECTURES[name]


def _check(config, architecture: type[PencilModel], recipe: Recipe) -> None:
    if architecture is ConvNet:
        if recipe.checkpointing:
            raise CourseError("A ConvNet has no blocks to checkpoint; leave checkpointing out of the recipe.")
        return
    check_sizes(config)
    require_positions(config, recipe)
    activation = (
        config.activation if architecture is DistilBert else config.hidden_act if architecture is Llama else None
    )
    _check_activation(activation or config.activation_function)


def _check_activation(name: str) -> None:
    if name not in ACTIVATIONS:
        raise CourseError(f"There is no formula for the activation {name!r}; take one of {', '.join(ACTIVATIONS)}.")
