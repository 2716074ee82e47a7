"""What a change lowers, by the phases of trials before and after it, and which changes exclude each other."""

from dataclasses import replace

import numpy as np
import pytest

from course_utils import models
from course_utils.errors import CourseError
from course_utils.hardware import MACHINES
from course_utils.memory import Recipe
from course_utils.memory.formulas.prediction import Trial
from course_utils.memory.planning.changes import CHANGES
from course_utils.memory.planning.effects import contradictions, effect_of, effects
from course_utils.memory.trace.log import Label, Log
from course_utils.viz import guide


def trial(*events, seconds=1.0):
    """A trial whose `events` in backward are pairs of bytes and kind."""
    labels = tuple(Label("backward", kind, "", "") for _, kind in events)
    log = Log(np.array([size for size, _ in events]), labels)
    return Trial(Recipe(), log, Log.empty(), {("backward", ""): seconds}, {})


def test_a_kind_that_is_only_elsewhere_at_the_new_fullest_instant_is_not_lowered():
    before = trial((90, "activations"), (20, "gradients"), (-80, "activations"))
    assert before.kinds_by_phase["backward"] == {"activations": 90, "gradients": 20}
    shifted = trial((40, "activations"), (-30, "activations"), (20, "gradients"))
    assert shifted.kinds_by_phase["backward"] == {"activations": 40}
    assert shifted.log.most_of_kind() == {("backward", "activations"): 40, ("backward", "gradients"): 20}
    assert effect_of(CHANGES[0], before, shifted).lowers == {"activations": ("backward",)}


def test_a_change_that_no_recipe_knows_is_named(monkeypatch):
    fused = tuple(change for change in CHANGES if change.name == "fused attention")
    monkeypatch.setattr("course_utils.memory.planning.effects.CHANGES", fused)
    sizes = {"hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 8, "num_key_value_heads": 8}
    config = models.configuration("llama", **sizes, num_hidden_layers=1, vocab_size=64, max_position_embeddings=16)
    with pytest.raises(CourseError, match="'fused attention'"):
        effects(config, [Recipe(batch=1, sequence=16)], MACHINES[guide.CARD])


def test_pairs_that_do_not_go_together_have_the_recipes_own_sentence():
    reasons = contradictions(guide.RECIPES)
    fields = {change.name: change for change in CHANGES}
    pairs = [pair for refused in reasons.values() for pair in refused]
    assert ("gradient checkpointing", "activations on the host") in pairs
    for reason, refused in reasons.items():
        for change, other in refused:
            refusals = []
            for recipe in guide.RECIPES:
                try:
                    replace(recipe, **fields[change].apply(recipe), **fields[other].apply(recipe))
                except CourseError as refused:
                    refusals.append(str(refused))
            assert reason in refusals
