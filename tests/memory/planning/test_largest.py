"""The largest sizes that fit, found by formulas or by bisection."""

from dataclasses import replace

import pytest
from transformers import MistralConfig

from course_utils.memory import Recipe
from course_utils.memory.formulas.finder import finder_of
from course_utils.memory.formulas.trial import try_recipe
from course_utils.memory.planning.largest import largest_confirmed, largest_that_fits
from course_utils.memory.step.model import source_of


@pytest.mark.parametrize("largest", [0, 1, 7, 100, 999, 1000])
@pytest.mark.parametrize("start", [1, 8, 700])
def test_the_most_that_fits_is_found_from_anywhere(largest, start):
    assert largest_that_fits(lambda n: n <= largest, start, 1000) == (largest or None)


@pytest.mark.parametrize("start", [700, 900, 1024, 1040, 2048, 5000])
def test_the_most_that_fits_is_one_number_where_not_all_that_is_smaller_fits(start):
    def fits(number):
        return number <= 1100 and not 850 < number < 1000

    assert largest_that_fits(fits, start, 10_000) == 1100
    assert largest_that_fits(lambda number: number == 900, 900, 10_000) == 900, "what was asked for is known to fit"


@pytest.mark.slow
def test_beyond_a_window_of_attention_sizes_are_answered_by_dry_runs():
    """Blocks make a mask only if a row is longer than the window, so that the events differ and no formula describes both."""
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    sizes = {"hidden_size": 32, "intermediate_size": 64, "vocab_size": 20_000, **heads}
    config = MistralConfig(**sizes, num_hidden_layers=5, max_position_embeddings=600, sliding_window=300)
    config.architectures = ["MistralForCausalLM"]
    recipe = Recipe("adamw-foreach", batch=1, sequence=512, precision="bf16", lora=4, checkpointing=True, device="cuda")
    two, three = (try_recipe(source_of(config), replace(recipe, batch=batch)).log.reserved for batch in (2, 3))
    assert two < three
    finder = finder_of(source_of(config), recipe)
    finder.run(1, 512)
    assert largest_confirmed(finder, lambda b: (b, 512), 1, 8, lambda log: log.reserved <= two) == 2
