"""What training a model would take: a memory calculator to play with, over the formulas of `memory.estimate`."""

import re
import textwrap
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, NamedTuple, Union

from IPython.display import Markdown
from matplotlib.figure import Figure

from course_utils import models
from course_utils.errors import CourseError
from course_utils.memory.estimate import Estimate, Term, estimate, parameter_shapes
from course_utils.memory.optimizers import COSTS
from course_utils.memory.recipe import DEVICES, PRECISIONS, STAGES, Recipe
from course_utils.settings import Scale, settings
from course_utils.units import format_bytes, format_count, three_digits
from course_utils.viz.display import play
from course_utils.viz.memory import instants_figure
from course_utils.viz.parts import subplots
from course_utils.viz.style import COLORS

if TYPE_CHECKING:
    from transformers import LlamaConfig, PretrainedConfig

CALCULATOR_MODELS = (*models.PUBLISHED, *models.FAMILIES, "convnet")
OWN = "your own (Llama-like)"
_TERMS_IN_TEXT = 5
_LONGEST = 2**16  # tokens; rotary positions have no parameters, so that this costs nothing


@dataclass(frozen=True)
class LlamaSizes:
    """The sizes of a language model built as Llama is; where nothing is said, of one with 1.3 billion parameters.

    `kv_heads` are the heads of keys and values, which several heads may share.
    """

    layers: int = 24
    width: int = 2048
    heads: int = 16
    kv_heads: int = 16
    inner_width: int = 5504
    vocabulary: int = 32_000

    def configuration(self) -> "LlamaConfig":
        """Transformers' configuration; raises `CourseError` for sizes that do not go together."""
        for field in fields(self):
            if getattr(self, field.name) < 1:
                name, _ = LLAMA_SIZES[field.name]
                raise CourseError(
                    f"The number in the field {name!r} must be 1 or more, not {getattr(self, field.name)}."
                )
        if self.width % (2 * self.heads):
            raise CourseError(
                f"A width of {self.width:,} does not divide into {self.heads} heads of an even width each, as rotary "
                "positions need; change the width or the heads."
            )
        return models.configuration(
            "llama-7b",
            num_hidden_layers=self.layers,
            hidden_size=self.width,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.width // self.heads,
            intermediate_size=self.inner_width,
            vocab_size=self.vocabulary,
            max_position_embeddings=_LONGEST,
        )


LLAMA_SIZES = {
    "layers": ("layers", 200),
    "width": ("width", 10**6),
    "heads": ("heads", 1_000),
    "kv_heads": ("heads of keys and values", 1_000),
    "inner_width": ("inner width", 10**6),
    "vocabulary": ("vocabulary", 10**7),
}
"""What the calculator calls the fields of `LlamaSizes`, and the largest number that can be typed there."""

Model = Union[str, LlamaSizes, models.ConvNetConfig, "PretrainedConfig"]


def memory_calculator() -> None:
    """Show the calculator: controls, the bytes at each instant of a step, and the sum behind the fullest instant."""
    from ipywidgets import Checkbox, Dropdown, SelectionSlider, ToggleButtons

    from course_utils.viz.picker import ModelPicker

    powers = [2**n for n in range(17)]
    stage = ToggleButtons(options=STAGES, description="ZeRO stage (0: none)")
    ranks = SelectionSlider(options=powers[:11], value=8, description="devices (ranks)", disabled=True)
    stage.observe(lambda _: ranks.set_trait("disabled", not stage.value), names="value")
    play(
        calculator_figure,
        calculator_working,
        model=ModelPicker(_labeled_models(), OWN, LlamaSizes, LLAMA_SIZES),
        optimizer=Dropdown(options=tuple(COSTS), value="adamw", description="optimizer"),
        precision=ToggleButtons(options=PRECISIONS, description="precision"),
        batch=SelectionSlider(options=powers[:11], value=8, description="examples of a micro-batch"),
        sequence=SelectionSlider(options=powers[3:], value=128, description="tokens of an example"),
        accumulation=SelectionSlider(options=powers[:7], value=1, description="accumulated micro-batches"),
        checkpointing=Checkbox(False, description="gradient checkpointing"),
        zero_stage=stage,
        ranks=ranks,
        device=ToggleButtons(options=DEVICES, description="kind of device"),
    )


def calculator_figure(model: Model = "distilbert-base-cased", **recipe) -> tuple[Figure, str]:
    """Bytes by kind at each instant of a step, the peak in the title, its formulas in the text.

    `model` is one of `CALCULATOR_MODELS` (the DistilBERTs classify into two classes as in the chapters, the ConvNet is the
    course's own, the others are language models; those without a published size have the settings' scale), or `LlamaSizes`,
    or any configuration that `memory.estimate` takes. `recipe` are the fields of `memory.Recipe`; without a `zero_stage`
    nothing is shared, whatever `ranks` says. Where there is no answer, the picture is the sentence that says why.
    """
    try:
        answer = _answer(model, recipe)
    except CourseError as error:
        return _sentence_figure(str(error)), str(error)
    where = f", on each of {recipe['ranks']} devices" if recipe.get("zero_stage") else ""
    result, title = answer.estimate, f"{answer.model}: peak {format_bytes(answer.estimate.peak)}{where}"
    figure, alt = instants_figure(result.by_instant(), title)
    return figure, f"{alt} {_peak_in_words(result)}"


def calculator_working(model: Model = "distilbert-base-cased", **recipe) -> Markdown:
    """The sum at the fullest instant as a table, a row per term with its formula; above it what the letters stand for.

    Arguments as of `calculator_figure`; empty where there is no answer, as the picture then says why.
    """
    try:
        answer = _answer(model, recipe)
    except CourseError:
        return Markdown("")
    result, terms = answer.estimate, answer.estimate.peak_instant.terms
    size = f"{format_bytes(result.peak)} for a model of {_in_words(answer.parameters)} parameters"
    head = f"**{result.peak_instant.name}: {size}**, with {_letters(result, terms)}."
    rows = [f"| {t.name} | `{t.formula}` | {_unbroken(t.bytes)} |" for t in terms]
    return Markdown("\n".join([f"{head}\n", "| what | formula, in bytes | size |", "|:--|:--|--:|", *rows]))


class _Answer(NamedTuple):
    model: str
    parameters: int
    estimate: Estimate


def _answer(model: Model, recipe: dict) -> _Answer:
    """Raises `CourseError` where there is none."""
    alone = {} if recipe.get("zero_stage") else {"ranks": 1}
    work_out = _worked_out if isinstance(model, Hashable) else _worked_out.__wrapped__
    return work_out(model, settings().scale, Recipe(**{**recipe, **alone}))


@lru_cache(maxsize=8)  # the picture and the table below it are of the same estimate
def _worked_out(model: Model, scale: Scale, recipe: Recipe) -> _Answer:
    config = _configuration(model, scale)
    result = estimate(config, recipe)
    return _Answer(_called(model, scale), sum(map(prod, parameter_shapes(config).values())), result)


def _configuration(model: Model, scale: Scale):
    if isinstance(model, LlamaSizes):
        return model.configuration()
    if model == "convnet":
        return models.ConvNetConfig()
    if not isinstance(model, str):
        return model
    return models.configuration(model, scale=scale, labels=2 if model.startswith("distilbert") else None)


def _labeled_models() -> list[tuple[str, str]]:
    return [(_called(name, settings().scale), name) for name in CALCULATOR_MODELS]


def _called(model: Model, scale: Scale) -> str:
    """The model's name; of a toy that it is one, since somebody may look for the real one."""
    if isinstance(model, LlamaSizes):
        return OWN
    if model == "convnet":
        return "convnet (toy)"
    if not isinstance(model, str):
        return type(model).__name__
    return f"{model} (toy, {scale.name} scale)" if model in models.FAMILIES else model


def _in_words(count: int) -> str:
    """Three digits are enough: `1.35 billion`."""
    for name, size in (("billion", 1e9), ("million", 1e6)):
        if count >= size:
            return f"{three_digits(count / size)} {name}"
    return format_count(count)


def _unbroken(size: int) -> str:
    return format_bytes(size).replace(" ", "\N{NO-BREAK SPACE}")


def _peak_in_words(result: Estimate) -> str:
    terms = result.peak_instant.terms
    words = "; ".join(f"{term.name}: {term.formula} = {format_bytes(term.bytes)}" for term in terms[:_TERMS_IN_TEXT])
    rest = len(terms) - _TERMS_IN_TEXT
    more = f"; and {rest} smaller terms" if rest > 0 else ""
    letters = _letters(result, terms[:_TERMS_IN_TEXT])
    return f"At the peak, {result.peak_instant.name}, in bytes: {words}{more}; with {letters}."


def _letters(result: Estimate, terms: Sequence[Term]) -> str:
    """What the letters in the formulas of `terms` stand for, and no others."""
    used = {letter for term in terms for letter in re.findall(r"[A-Za-z]\d*", term.formula)}
    shown = {letter: value for letter, value in result.sizes.items() if letter in used}
    return ", ".join(f"{letter} = {value:,} ({result.letters[letter]})" for letter, value in shown.items())


def _sentence_figure(sentence: str) -> Figure:
    figure, axes = subplots(figsize=(7.6, 1.6))
    axes.axis("off")
    axes.text(0, 0.5, textwrap.fill(sentence, 80), va="center", fontsize=11, color=COLORS["ink"])
    return figure
