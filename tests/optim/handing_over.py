"""A run that changes hands in the middle, for the tests of several optimizers."""

import torch


def assert_a_run_can_change_hands(by_hand, oracle, start, gradients, exact, **options):
    """State saved by the oracle continues by hand, and the other way; a third of `gradients` is for each owner."""
    orders = [(oracle, oracle, oracle), (oracle, by_hand, oracle), (by_hand, oracle, by_hand)]
    alone, *others = (_run(order, start, gradients, options) for order in orders)
    for other in others:
        torch.testing.assert_close(other, alone, **exact)


def _run(order, start, gradients, options):
    p, state = start.clone().requires_grad_(), None
    for part, kind in zip(gradients.split(len(gradients) // 3), order, strict=True):
        optimizer = kind([p], lr=0.1, **options)
        if state is not None:
            optimizer.load_state_dict(state)
        for gradient in part:
            p.grad = gradient
            optimizer.step()
        state = optimizer.state_dict()
    return p.detach()
