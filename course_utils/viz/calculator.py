"""What training a model would take: a memory calculator to play with, over the formulas of `memory.estimate`."""

import textwrap
from functools import lru_cache

from IPython.display import Markdown
from matplotlib.figure import Figure

from course_utils import models
from course_utils.errors import CourseError
from course_utils.memory.estimate import Estimate, estimate
from course_utils.memory.optimizers import COSTS
from course_utils.memory.recipe import DEVICES, PRECISIONS, STAGES, Recipe
from course_utils.settings import Scale, settings
from course_utils.units import format_bytes
from course_utils.viz.display import play
from course_utils.viz.memory import instants_figure
from course_utils.viz.parts import subplots
from course_utils.viz.style import COLORS

CALCULATOR_MODELS = (*models.PUBLISHED, *models.FAMILIES, "convnet")
_TERMS_IN_TEXT = 5


def memory_calculator() -> None:
    """Show the calculator: controls, the bytes at each instant of a step, and the sum behind the fullest instant."""
    from ipywidgets import Checkbox, Dropdown, SelectionSlider, ToggleButtons

    powers = [2**n for n in range(14)]
    play(
        calculator_figure,
        calculator_working,
        model=Dropdown(options=CALCULATOR_MODELS, description="model"),
        optimizer=Dropdown(options=tuple(COSTS), value="adamw", description="optimizer"),
        precision=ToggleButtons(options=PRECISIONS, description="precision"),
        batch=SelectionSlider(options=powers[:11], value=8, description="examples of a micro-batch"),
        sequence=SelectionSlider(options=powers[3:], value=128, description="tokens of an example"),
        accumulation=SelectionSlider(options=powers[:7], value=1, description="accumulated micro-batches"),
        checkpointing=Checkbox(False, description="gradient checkpointing"),
        zero_stage=ToggleButtons(options=STAGES, description="ZeRO stage"),
        ranks=SelectionSlider(options=powers[:11], value=8, description="devices (ranks)"),
        device=ToggleButtons(options=DEVICES, description="kind of device"),
    )


def calculator_figure(model: str = "distilbert-base-cased", **recipe) -> tuple[Figure, str]:
    """Bytes by kind at each instant of a step, the peak in the title, its formulas in the text.

    `model` is one of `CALCULATOR_MODELS`: the DistilBERTs classify into two classes as in the chapters, the ConvNet is the
    course's own, the others are language models; those without a published size have the settings' scale. `recipe` are the
    fields of `memory.Recipe`. Where there is no answer, the picture is the sentence that says why.
    """
    try:
        result = _estimated(model, settings().scale, **recipe)
    except CourseError as error:
        return _sentence_figure(str(error)), str(error)
    where = f", on each of {recipe['ranks']} devices" if recipe.get("zero_stage") else ""
    figure, alt = instants_figure(result.by_instant(), f"{model}: peak {format_bytes(result.peak)}{where}")
    return figure, f"{alt} {_peak_in_words(result)}"


def calculator_working(model: str = "distilbert-base-cased", **recipe) -> Markdown:
    """The sum at the fullest instant as a table, a row per term with its formula; above it what the letters stand for.

    Arguments as of `calculator_figure`; where there is no answer, the sentence that says why.
    """
    try:
        result = _estimated(model, settings().scale, **recipe)
    except CourseError as error:
        return Markdown(str(error))
    head = f"**{result.peak_instant.name}: {format_bytes(result.peak)}**, with {_letters(result)}."
    rows = [f"| {t.name} | `{t.formula}` | {_unbroken(t.bytes)} |" for t in result.peak_instant.terms]
    return Markdown("\n".join([f"{head}\n", "| what | bytes | size |", "|:--|:--|--:|", *rows]))


def _unbroken(size: int) -> str:
    return format_bytes(size).replace(" ", "\N{NO-BREAK SPACE}")


@lru_cache(maxsize=8)  # the picture and the table below it are of the same estimate
def _estimated(model: str, scale: Scale, **recipe) -> Estimate:
    return estimate(_configuration(model, scale), Recipe(**recipe))


def _configuration(model: str, scale: Scale):
    if model == "convnet":
        return models.ConvNetConfig()
    return models.configuration(model, scale=scale, labels=2 if model.startswith("distilbert") else None)


def _peak_in_words(result: Estimate) -> str:
    terms = result.peak_instant.terms
    words = "; ".join(f"{term.name}: {term.formula} = {format_bytes(term.bytes)}" for term in terms[:_TERMS_IN_TEXT])
    rest = len(terms) - _TERMS_IN_TEXT
    more = f"; and {rest} smaller terms" if rest > 0 else ""
    return f"At the peak, {result.peak_instant.name}, in bytes: {words}{more}; with {_letters(result)}."


def _letters(result: Estimate) -> str:
    return ", ".join(f"{letter} = {value:,} ({result.letters[letter]})" for letter, value in result.sizes.items())


def _sentence_figure(sentence: str) -> Figure:
    figure, axes = subplots(figsize=(7.6, 1.6))
    axes.axis("off")
    axes.text(0, 0.5, textwrap.fill(sentence, 80), va="center", fontsize=11, color=COLORS["ink"])
    return figure
