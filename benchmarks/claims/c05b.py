"""Chapter 05b: runs of its race with a seed of their own, at the scale that the chapter is stored at."""

from dataclasses import replace
from functools import cache

import torch

from benchmarks.claims import claim
from benchmarks.learning_rates import Task
from course_utils import data
from course_utils.lessons.c05b_choosing import contenders, final_loss
from course_utils.settings import SCALES
from course_utils.training import evaluate

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


@claim("05b-files")
def other_files_make_the_gap(seed):
    """AdamW and Muon: on functions held back from the training files the loss is about that of training, and not on others."""
    task = _task()
    split = task.rows["train"].train_test_split(len(task.rows["train"]) // 6, seed=seed)
    held_out = [data.batches(split["test"], 64), data.batches(task.rows["test"], 64)]
    for name in ("AdamW", "Muon"):
        model = task.model(seed)
        history = contenders()[name].train(model, data.batches(split["train"], task.scale.batch_size, seed=seed), seed)
        unseen, files = (evaluate(model, batches)["loss"] for batches in held_out)
        if not (unseen < final_loss(history) + 0.1 and unseen + 0.2 < files):
            return False
    return True


@claim("05b-step")
def a_step_of_adam_is_bounded(seed):
    """By √(Σ wᵢ² / uᵢ) α: growing gradients reach 2.1 α at step 91 and no drawn ones exceed it; 3,000 of them pass 7 α."""
    drawn = torch.randn(91, 64, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (
        max(_steps(drawn)) < 2.145
        and 2.1 < max(_steps(_growing(91))) < 2.145
        and 7 < max(_steps(_growing(3000))) < 7.27
    )


def _growing(steps: int) -> torch.Tensor:
    """Gradients for which the Cauchy-Schwarz inequality is an equation at the last step: each is β₂/β₁ times the one before."""
    return (0.999 / 0.9) ** torch.arange(1 - steps, 1, dtype=torch.float64).unsqueeze(1)


def _steps(gradients: torch.Tensor) -> list[float]:
    """The largest change of a number in each step of PyTorch's Adam, in units of α."""
    theta = torch.zeros_like(gradients[0], requires_grad=True)
    adam, changes = torch.optim.Adam([theta], lr=1.0, eps=0.0), []
    for theta.grad in gradients:
        before = theta.detach().clone()
        adam.step()
        changes.append((theta.detach() - before).abs().max().item())
    return changes
