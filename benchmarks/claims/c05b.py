"""Chapter 05b: runs of its race with a seed of their own, at the scale that the chapter is stored at."""

from dataclasses import replace
from functools import cache, partial

from benchmarks.claims import claim
from benchmarks.learning_rates import Task
from course_utils.lessons.c05b_choosing import contenders, make_pair
from course_utils.lessons.shared import Contender
from course_utils.settings import SCALES

ADAMS = ("Adam", "AdamW")


@cache
def _task() -> Task:
    return Task(SCALES["laptop"])


def _loss(name: str, seed: int, **changes) -> float:
    return _task().run(replace(contenders()[name], **changes), seed)["loss"]


@claim("05b-schedule")
def the_schedule_moves_the_loss_and_the_optimizer_hardly(seed):
    """At Adam's default rate."""
    loss = {(name, cosine): _loss(name, seed, lr=1e-3, cosine=cosine) for name in ADAMS for cosine in (False, True)}
    by_optimizer = max(abs(loss["Adam", cosine] - loss["AdamW", cosine]) for cosine in (False, True))
    return by_optimizer < min(abs(loss[name, True] - loss[name, False]) for name in ADAMS)


@claim("05b-muon")
def muon_ends_below_the_others_at_their_own_rates(seed):
    """The two that come nearest, and AdamW."""
    return _loss("Muon", seed) < min(_loss(name, seed) for name in ("Adafactor", "AdamW", "AdamW, 8 bits"))


@claim("05b-rest")
def a_faster_rest_and_muon_each_lower_the_training_loss(seed):
    """AdamW or Muon on the hidden matrices, AdamW on the rest at its own rate or five times that."""
    loss = {}
    for name, lr in (("AdamW", 2e-3), ("Muon", 1e-2)):
        for rest_lr in (2e-3, 1e-2):
            make = partial(make_pair, use_muon=name == "Muon", rest_lr=rest_lr)
            loss[name, rest_lr] = _task().run(Contender(make, lr), seed)["loss"]
    faster = all(loss[name, 1e-2] < loss[name, 2e-3] for name in ("AdamW", "Muon"))
    return faster and all(loss["Muon", rest_lr] < loss["AdamW", rest_lr] for rest_lr in (2e-3, 1e-2))
