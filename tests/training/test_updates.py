"""The update alone: every parameter moves, and the clock is given the update and nothing else."""

from functools import partial

import torch

from course_utils import optim, training
from course_utils.training import updates


def make_small_model():
    return torch.nn.Linear(4, 2)


def test_the_update_steps_with_the_gradients_it_is_given():
    model, optimizer, gradients = training.model_with_gradients(partial(optim.SGD, lr=1.0), make_small_model)
    before = [p.detach().clone() for p in model.parameters()]
    training.update(model, optimizer, gradients)
    for old, new, gradient in zip(before, model.parameters(), gradients, strict=True):
        torch.testing.assert_close(new.detach(), old - gradient)


def test_what_is_timed_is_an_update_that_has_its_state(monkeypatch):
    weights = []

    class Watched(optim.Adam):
        def step(self):
            weights.append(len(self.state))
            super().step()

    def count_updates(call):
        call()
        return len(weights)

    monkeypatch.setattr(updates, "seconds_of", count_updates)
    assert training.seconds_of_update(Watched, make_small_model) == 2
    assert weights == [0, 2]
