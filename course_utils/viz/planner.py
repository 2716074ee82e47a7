"""What training a model would take, and whether it fits on a card: the planner to play with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

import torch
from IPython.display import Markdown
from matplotlib.figure import Figure

from course_utils import models
from course_utils.errors import CourseError
from course_utils.hardware import MACHINES
from course_utils.memory.formulas.estimate import Estimate, Term, estimate
from course_utils.memory.formulas.letters import MEANINGS
from course_utils.memory.planning.need import FITS, Need
from course_utils.memory.step.recipe import DEVICES, OPTIMIZERS, PRECISIONS, STAGES, Recipe
from course_utils.settings import settings
from course_utils.units import format_bytes, format_count, three_digits
from course_utils.viz.display import play
from course_utils.viz.memory import instants_figure
from course_utils.viz.parts import write_sentence

if TYPE_CHECKING:
    from transformers import LlamaConfig, PretrainedConfig

PLANNER_MODELS = (*models.PUBLISHED, "qwen2.5-0.5b", "llama-3.1-8b", "mistral-7b", *models.FAMILIES, "convnet")
CUSTOM_MODEL = "your own (Llama-like)"
NO_CARD = "no card"
_DEVICE_OF_CARDS = "cuda"
_DEVICE_LABEL = "kind of device"
_DEVICE_LABEL_OF_CARD = "kind of device: the card's"
# Below this, bytes without a formula are written as a number.
_MIN_BYTES_AS_SIZE = 2**10
# Tokens; rotary positions have no parameters, so that this costs nothing.
_MAX_POSITIONS = 2**16


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
        for name, value in vars(self).items():
            if value < 1:
                raise CourseError(f"The number in the field {LLAMA_SIZES[name][0]!r} must be 1 or more, not {value}.")
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
            max_position_embeddings=_MAX_POSITIONS,
        )


LLAMA_SIZES = {
    "layers": ("layers", 200),
    "width": ("width", 10**6),
    "heads": ("heads", 1_000),
    "kv_heads": ("heads of keys and values", 1_000),
    "inner_width": ("inner width", 10**6),
    "vocabulary": ("vocabulary", 10**7),
}
"""What the planner calls the fields of `LlamaSizes`, and the largest number that can be typed there."""

PlannerModel = Union[str, LlamaSizes, models.ConvNetConfig, "PretrainedConfig"]


def planner() -> None:
    """Show the planner: controls, the bytes at each instant of a step beside a card's, and the sum behind the fullest instant."""
    from ipywidgets import Checkbox, Dropdown, SelectionSlider, ToggleButtons

    from course_utils.viz.picker import ModelPicker

    powers = [2**n for n in range(17)]
    names = [(_name_of(name), name) for name in PLANNER_MODELS]
    stage = ToggleButtons(options=STAGES, description="ZeRO stage (0: none)")
    ranks = SelectionSlider(options=powers[:11], value=8, description="devices (ranks)", disabled=True)
    stage.observe(lambda _: ranks.set_trait("disabled", not stage.value), names="value")
    card = Dropdown(options=(NO_CARD, *MACHINES), description="card")
    device = ToggleButtons(options=DEVICES, description=_DEVICE_LABEL)

    def follow(change: Mapping[str, str]) -> None:
        """A card runs cuda, so there is nothing to choose beside one."""
        has_card = change["new"] != NO_CARD
        device.disabled = has_card
        device.description = _DEVICE_LABEL_OF_CARD if has_card else _DEVICE_LABEL
        if has_card:
            device.value = _DEVICE_OF_CARDS

    card.observe(follow, names="value")
    play(
        planner_figure,
        planner_working,
        model=ModelPicker(names, CUSTOM_MODEL, LlamaSizes, LLAMA_SIZES),
        card=card,
        optimizer=Dropdown(options=tuple(OPTIMIZERS), value="adamw", description="optimizer"),
        precision=ToggleButtons(options=PRECISIONS, description="precision"),
        batch=SelectionSlider(options=powers[:11], value=8, description="examples of a micro-batch"),
        sequence=SelectionSlider(options=powers[3:], value=128, description="tokens of an example"),
        accumulation=SelectionSlider(options=powers[:7], value=1, description="accumulated micro-batches"),
        checkpointing=Checkbox(False, description="gradient checkpointing"),
        zero_stage=stage,
        ranks=ranks,
        device=device,
    )


def planner_figure(model: PlannerModel = "distilbert-base-cased", card: str = NO_CARD, **recipe) -> tuple[Figure, str]:
    """Bytes by kind at each instant of a step, the peak and whether it fits in the title.

    `model` is one of `PLANNER_MODELS` (the DistilBERTs classify into two classes as in the chapters, the ConvNet is the
    course's own, the others are language models; those without a published size have the settings' scale), or `LlamaSizes`,
    or any configuration that `memory.estimate` takes. `card` is a name in `hardware.MACHINES`; with one the bytes are those of
    cuda, and where `device` is another there is no verdict. `recipe` are the fields of `memory.Recipe`; without a `zero_stage`
    nothing is shared, whatever `ranks` says. Where there is no answer, the picture is the sentence that says why.
    """
    try:
        prediction = _estimate_for(model, card, recipe)
    except CourseError as error:
        return write_sentence(str(error))
    title = f"{_name_of(model)}: peak {format_bytes(prediction.peak)}"
    if recipe.get("zero_stage"):
        title += f", on each of {recipe['ranks']} devices"
    memory = None
    if card != NO_CARD and prediction.recipe.device == _DEVICE_OF_CARDS:
        memory = MACHINES[card].memory
        need = Need.from_log(prediction.log, prediction.recipe.device)
        verdict = need.verdict(memory)
        if verdict != FITS:  # the peak alone may be below the card's line
            title += f"\nIn all {need}"
        title += f", {verdict} on {card}"
    by_instant = {f"fullest in {phase}": parts for phase, parts in prediction.by_instant().items()}
    return instants_figure(by_instant, title, memory)


def planner_working(model: PlannerModel = "distilbert-base-cased", card: str = NO_CARD, **recipe) -> Markdown:
    """The sum at the fullest instant as a table, a row per term with its formula; above it what the letters stand for.

    Arguments as of `planner_figure`; empty where there is no answer, as the picture then says why.
    """
    try:
        prediction = _estimate_for(model, card, recipe)
    except CourseError:
        return Markdown("")
    peak = prediction.peak_instant
    with torch.device("meta"):  # its bytes are shards, some of them gathered, where a stage shares parameters out
        count = models.parameter_count(prediction.finder.source.make())
    units = ((f"{three_digits(count / size)} {name}", size) for name, size in (("billion", 1e9), ("million", 1e6)))
    parameters = next((text for text, size in units if count >= size), format_count(count))
    size = f"{format_bytes(prediction.peak)} for a model of {parameters} parameters"
    head = f"**{peak.name}: {size}**{_with_letters(prediction, peak.terms)}. Known from {prediction.basis}."
    if prediction.recipe.zero_stage > 1:
        head += " Its buffers are nearly all whole parameters, which FSDP2 gathers from all devices."
    sizes = (format_bytes(term.bytes).replace(" ", "\N{NO-BREAK SPACE}") for term in peak.terms)
    rows = [f"| {term.name} | {_formula(term)} | {size} |" for term, size in zip(peak.terms, sizes, strict=True)]
    return Markdown("\n".join([f"{head}\n", "| what | formula, in bytes | size |", "|:--|:--|--:|", *rows]))


def _estimate_for(model: PlannerModel, card: str, recipe: dict) -> Estimate:
    """The estimate for a choice of the planner's controls; raises `CourseError` where the choice is no recipe."""
    if card != NO_CARD:
        recipe = {"device": _DEVICE_OF_CARDS, **recipe}
    if not recipe.get("zero_stage"):
        recipe = {**recipe, "ranks": 1}
    if isinstance(model, LlamaSizes):
        model = model.configuration()
    elif model == "convnet":
        model = models.ConvNetConfig()
    elif isinstance(model, str):
        model = models.configuration(model, labels=2 if model.startswith("distilbert") else None)
    return estimate(model, Recipe(**recipe))


def _formula(term: Term) -> str:
    """A term's formula, or the size of each block where its bytes have none and the number is too long to be read."""
    block_bytes = term.bytes // term.times
    if term.letters or abs(block_bytes) < _MIN_BYTES_AS_SIZE:
        return f"`{term.formula}`"
    return f"{term.times} × {format_bytes(block_bytes)}" if term.times > 1 else ""


def _name_of(model: PlannerModel) -> str:
    """The model's name; of a toy that it is one, since somebody may look for the real one."""
    if isinstance(model, LlamaSizes):
        return CUSTOM_MODEL
    if model == "convnet":
        return "convnet (toy)"
    if not isinstance(model, str):
        return type(model).__name__
    return f"{model} (toy, {settings().scale.name} scale)" if model in models.FAMILIES else model


def _with_letters(prediction: Estimate, terms: Sequence[Term]) -> str:
    """What the letters in the formulas of `terms` stand for, and no others."""
    letters = set().union(*(term.letters for term in terms))
    meanings = [f"{x} = {value:,} ({MEANINGS[x]})" for x, value in prediction.sizes.items() if x in letters]
    return f", with {', '.join(meanings)}" if meanings else ""
