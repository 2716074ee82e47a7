"""Chapter 13: a scenario on the reader's own machine, recipes beside their budgets, one of them proved, a trade-off measured."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from random import Random
from typing import NamedTuple

import torch
from matplotlib.figure import Figure
from torch import nn

from course_utils import data, models, training
from course_utils.capstone import Task, accuracy, draw, fresh_model, measured
from course_utils.capstone.scenarios import LAPTOP, Scenario, Weighed, choose, weigh
from course_utils.errors import CourseError
from course_utils.hardware import calibrate
from course_utils.memory.step.recipe import Recipe
from course_utils.memory.step.workload import Workload
from course_utils.memory.trace.measure import Measurement, measure
from course_utils.settings import settings
from course_utils.viz.parts import write_sentence
from course_utils.viz.plots import add_title, bars, panels
from course_utils.viz.tradeoff import Entry

EXAMPLES = 16
# Budgets, as multiples of what plain AdamW takes.
_MEMORY, _SECONDS, _QUICK_SECONDS = 0.5, 1.7, 1.5


@cache
def own_scenario() -> Scenario:
    """The chapter's DistilBERT on this machine: half the bytes of plain AdamW, 1.7 times its seconds.

    It runs on the CPU, whose rates are calibrated; where the settings ask for a GPU, they are those of the graded laptop.
    """
    scale = settings().scale
    machine = calibrate(exchange=False) if settings().device.type == "cpu" else LAPTOP
    without_limits = Scenario(
        "here",
        lambda: models.configuration("distilbert", labels=10, scale=scale),
        machine,
        device="cpu",
        memory=2**40,
        examples=EXAMPLES,
        sequence=scale.sequence,
        seconds=1.0,
        quick=1.0,
        level=1,
    )
    plain = weigh(without_limits, Recipe(batch=EXAMPLES, sequence=scale.sequence))
    limits = {"seconds": _SECONDS * plain.seconds, "quick": _QUICK_SECONDS * plain.seconds}
    return replace(without_limits, memory=int(_MEMORY * plain.estimate.peak), **limits)


def prove(recipe: Recipe) -> Measurement:
    """Run a few updates of `own_scenario` by the recipe, and keep what was measured for the report."""
    work = Workload(own_scenario().source, recipe)
    measurement = measure(work.build(), work.step, timed=7)
    choose(own_scenario(), recipe, measured=(measurement.peak, measurement.seconds))
    return measurement


def budgets_figure(by_name: Mapping[str, Weighed]) -> tuple[Figure, str]:
    """A row for each recipe of one scenario, predicted: bytes by kind at the peak, seconds, and the budgets as lines."""
    scenario = next(iter(by_name.values())).scenario
    figure, (left, right) = panels(1, 2, height=1.9 + 0.42 * len(by_name), sharey=True)
    at_peak = {name: weighed.estimate.peak_instant.by_kind for name, weighed in by_name.items()}
    bars(at_peak, x="bytes at the peak", limit=("budget", scenario.memory), axes=left)
    seconds = {name: weighed.seconds for name, weighed in by_name.items()}
    gray = {"": "predicted"}
    bars(seconds, x="an update", unit="seconds", colors=gray, limit=("budget", scenario.seconds), axes=right)
    count = sum(weighed.fits and weighed.seconds <= scenario.seconds for weighed in by_name.values())
    return add_title(figure, f"Within both budgets (dashed): {count} of {len(by_name)}")


def chosen_figure(
    optimizer: str, precision: str, micro_batch: int, checkpointing: bool, in_backward: bool
) -> tuple[Figure, str]:
    """The recipe in `own_scenario` beside its budgets; where it contradicts itself, the sentence that says so."""
    fields = {"checkpointing": checkpointing, "in_backward": in_backward, "sequence": settings().scale.sequence}
    try:
        recipe = Recipe(optimizer, precision, micro_batch, accumulation=EXAMPLES // micro_batch, **fields)
        return budgets_figure({"yours": weigh(own_scenario(), recipe)})
    except CourseError as error:
        return write_sentence(f"{optimizer} in {precision}, micro-batches of {micro_batch}: no recipe. {error}")


class LibraryRecord(NamedTuple):
    """A run through a library, as its optimizer and its record tell it."""

    optimizer: str
    updates: int
    micro_batches: int
    states: int


def through_libraries(recipe: Recipe, updates: int) -> dict[str, LibraryRecord]:
    """The recipe's micro-batches and AdamW said to Trainer and to Accelerate, for so many updates on the corpus."""
    corpus = data.load_functions()
    corpus["train"] = corpus["train"].select(range(EXAMPLES * updates))
    tokenizer = data.tokenizer_for(corpus, settings().scale.vocabulary)
    rows = data.tokenize(corpus, tokenizer, recipe.sequence)["train"]

    def make_inputs():
        return own_scenario().source.make(), data.batches(rows, recipe.batch)

    model, batches = make_inputs()
    steps = {"gradient_accumulation_steps": recipe.accumulation}
    by_trainer = training.train_with_trainer(model, None, batches, optim="adamw_torch", **steps)
    model, batches = make_inputs()
    by_accelerate = training.train_with_accelerate(model, torch.optim.AdamW(model.parameters()), batches, **steps)
    return {"Trainer": _describe_run(by_trainer), "Accelerate": _describe_run(by_accelerate)}


def _describe_run(history: training.History) -> LibraryRecord:
    state = next(iter(history.optimizer.state.values()))
    tensors = [value for value in state.values() if value.ndim]
    return LibraryRecord(type(history.optimizer).__name__, int(state["step"]), len(history.losses), len(tensors))


class Attempt(NamedTuple):
    """A training: its place among others, and its accuracy in percent on the rows that it saw."""

    entry: Entry
    seen: float


@cache
def task() -> Task:
    """The capstone's task from the settings' seed; at smoke scale with few rows to train on."""
    full_task = draw(Random(settings().seed))
    rows = 256 if settings().scale.name == "smoke" else len(full_task.ids)
    return replace(full_task, ids=full_task.ids[:rows], labels=full_task.labels[:rows])


def attempt(name: str, train: Callable[[nn.Module, torch.Tensor, torch.Tensor], object]) -> Attempt:
    """Train the task's model by `train(model, ids, labels)`; bytes and operations are those of the whole call."""
    of_capstone = task()
    model = fresh_model(of_capstone.weights)
    torch.manual_seed(settings().seed)
    ids, labels = of_capstone.ids, of_capstone.labels
    peak, operations = measured(lambda: train(model, ids, labels), model, (ids, labels))
    unseen = accuracy(model, of_capstone.held_ids, of_capstone.held_labels)
    entry = Entry(name, "", peak, operations, 100 * unseen)
    return Attempt(entry, 100 * accuracy(model, ids, labels))
