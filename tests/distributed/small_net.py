"""A small net with every difficulty that ranks meet, and its batches, by share and step."""

import torch
from torch import nn


class Net(nn.Module):
    """A layer used twice under two names, a frozen one, one that only even steps of rank 0 use, one that nobody uses."""

    def __init__(self, seed: int = 0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.first, self.frozen = nn.Linear(6, 8), nn.Linear(8, 8)
            self.seldom, self.never, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 6)
            self.tied = nn.Linear(8, 8)
        self.tied_again = self.tied
        self.frozen.requires_grad_(False)
        self.register_buffer("shift", torch.full((8,), float(seed)))

    def forward(self, x, seldom=False):
        hidden = torch.tanh(self.frozen(torch.tanh(self.first(x)))) + self.shift
        hidden = self.tied_again(torch.tanh(self.tied(hidden)))
        return self.last(self.seldom(hidden) if seldom else hidden)


def data(share, step, width=6):
    return torch.randn(5, width, generator=torch.Generator().manual_seed(1000 * share + step))


def uses_seldom(share, step):
    return share == 0 and step % 2 == 0


def fill_with_zeros(module):
    """What no batch used has a zero gradient, as the wrappers give it."""
    for parameter in module.parameters():
        if parameter.requires_grad and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
