"""The update alone: every parameter moves, and the clock is given the update and nothing else."""

from functools import partial

import torch

from course_utils import optim, training
from course_utils.training import updates


def small(monkeypatch):
    monkeypatch.setattr(updates.models, "distilbert_base", lambda: torch.nn.Linear(4, 2))


def test_the_update_steps_with_the_gradients_it_is_given(monkeypatch):
    small(monkeypatch)
    model, optimizer, gradients = training.model_with_gradients(partial(optim.SGD, lr=1.0))
    before = [p.detach().clone() for p in model.parameters()]
    training.update(model, optimizer, gradients)
    for old, new, gradient in zip(before, model.parameters(), gradients, strict=True):
        torch.testing.assert_close(new.detach(), old - gradient)


def test_what_is_timed_is_an_update_that_has_its_state(monkeypatch):
    small(monkeypatch)
    weights = []

    class Watched(optim.Adam):
        def step(self):
            weights.append(len(self.state))
            super().step()

    monkeypatch.setattr(updates, "seconds_of", lambda call: (call(), len(weights))[1])
    assert training.seconds_of_update(Watched) == 2
    assert weights == [0, 2]
