"""What the models' pages show: the bytes of `course plan`, for the recipe of the command beside them."""

import argparse
import shlex
from random import Random

import pytest

from course_staff.site.cost_tables import BATCHES, LEVELS, METHODS, MODELS, command, lengths_of, need_of, rows_of
from course_utils.cli import plan as command_line
from course_utils.hardware import MACHINES
from course_utils.memory.formulas.trial import try_recipe
from course_utils.memory.planning.need import FITS, Need
from course_utils.memory.step.model import source_of

QUESTIONS = 200


def draw_questions(count: int) -> list[tuple]:
    random = Random(count)
    questions = []
    for _ in range(count):
        model = random.choice(MODELS)
        questions.append((model, random.choice(METHODS), random.choice(BATCHES), random.choice(lengths_of(model))))
    return questions


def check(model, method, batch, sequence) -> None:
    """The planner's own trial of this very step, by no formula."""
    log = try_recipe(source_of(model), method.recipe(batch, sequence), traffic=False).log
    assert need_of(model, method, batch, sequence) == Need.from_log(log, "cuda"), (model, method.name, batch, sequence)


@pytest.mark.parametrize("question", draw_questions(2), ids=str)
def test_a_cell_holds_what_the_planner_says(question):
    check(*question)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_two_hundred_cells_hold_what_the_planner_says():
    for question in dict.fromkeys(
        (model, METHODS.index(method), b, s) for model, method, b, s in draw_questions(QUESTIONS)
    ):
        model, place, batch, sequence = question
        check(model, METHODS[place], batch, sequence)


def test_there_are_at_least_twelve_methods_and_every_model_has_a_length():
    assert len(METHODS) >= 12
    assert len({method.name for method in METHODS}) == len(METHODS)
    assert all(lengths_of(model) for model in MODELS)
    assert lengths_of("gpt2-small") == [512]  # it has 1,024 positions
    assert lengths_of("llama-3.1-8b") == [512, 2048, 8192]


def test_what_disturbs_least_comes_first():
    levels = [method.level for method in METHODS]
    assert levels == sorted(levels)
    assert set(levels) == set(range(len(LEVELS)))
    assert METHODS[0].fields == {}
    assert METHODS[-1].fields["quantized"] == "nf4"


def test_a_row_names_the_cards_of_least_memory_and_what_they_lack():
    for row in rows_of(MODELS[0], 1, 512):
        fitting = [card for card in MACHINES.values() if Need(row["least"], row["most"]).verdict(card.memory) == FITS]
        assert (row["fits"] == "none") == (not fitting)
        for card in fitting:
            is_named = card.name in row["fits"].partition(" and ")[0].replace(" (no bfloat16)", "").split(", ")
            assert is_named == (card.memory == fitting[0].memory)
    lacking = [row["fits"] for row in rows_of("llama-3.2-1b", 1, 2048) if "T4" in row["fits"]]
    assert lacking
    assert all("T4 (no bfloat16)" in fits for fits in lacking)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_the_command_sets_what_the_method_does(method):
    parser = argparse.ArgumentParser()
    command_line.add_arguments(parser)
    arguments = parser.parse_args(shlex.split(command(MODELS[0], method, 4, 512))[2:])
    for name, value in {**method.fields, "batch": 4, "sequence": 512}.items():
        assert getattr(arguments, name) == value
