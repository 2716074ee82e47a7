"""Accumulation as it goes wrong: each slip as a difference to `Accumulate`, found in published code or in practice."""

from contextlib import nullcontext

import torch

from course_utils.training.accumulation import Accumulate


class StepsAtBatchZero(Accumulate):
    """`if not i % k:` with i from 0: the first update has one micro-batch, and what comes last is left over."""

    def should_step(self, run):
        """True for i = 0, k, 2k, …"""
        return run.step % self.k == 0


class DividesByK(Accumulate):
    """A mean of means: `loss / k`, whatever the micro-batches hold and however many came."""

    def scale_loss(self, run, loss):
        """The micro-batch's mean, a k-th of it."""
        super().scale_loss(run, loss)
        return loss / self.k

    def before_update(self, run):
        """Leave the gradients as they are."""
        self._begin_group()


class DropsLastGroup(Accumulate):
    """No update for what is left at the end of a pass; its gradients wait, and join the next pass or are lost."""

    def should_step(self, run):
        """After the k-th micro-batch only."""
        return self._seen >= self.k


class ForgetsToZero(Accumulate):
    """No `zero_grad`: every update gets the gradients of those before it once more."""

    _left = ()

    def before_update(self, run):
        """Finish the gradient, and add the one before, which the loop has dropped."""
        super().before_update(run)
        for parameter, gradient in self._left:
            parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient

    def update(self, run, step):
        """Remember the gradients that the loop is about to drop."""
        made = step()
        self._left = [(p, p.grad) for p in run.model.parameters() if p.grad is not None]
        return made


class ZeroesEachTime(Accumulate):
    """`zero_grad` with every micro-batch: an update sees the last one only."""

    def forward(self, run):
        """Drop what was added up so far."""
        run.optimizer.zero_grad()
        return nullcontext()


class ClipsEachTime(Accumulate):
    """The sum so far is clipped after every micro-batch, not once when it is whole.

    The sum is in units of T₁, about k times the mean that it becomes; so the bound is k times `max_norm` until then.
    """

    def __init__(self, k: int, max_norm: float):
        super().__init__(k)
        self.max_norm = max_norm

    def should_step(self, run):
        """Clip, then decide as ever."""
        torch.nn.utils.clip_grad_norm_(run.model.parameters(), self.k * self.max_norm)
        return super().should_step(run)


class SchedulesEachTime(Accumulate):
    """The schedule steps with every micro-batch: it is through after a k-th of the run."""

    def should_step(self, run):
        """Step where the loop will not."""
        wanted = super().should_step(run)
        if not wanted and run.schedule is not None:
            run.schedule.step()
        return wanted
