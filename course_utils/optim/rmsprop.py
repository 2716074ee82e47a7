"""RMSProp: AdaGrad whose sum has become an average, so that it forgets.

Symbols: θ parameter, g gradient, v moving average of g², β how much of it stays (torch calls it `alpha`), ḡ moving average
of g, b momentum buffer, μ `momentum`, α learning rate (`lr`), ε (`eps`), λ (`weight_decay`).
"""

from math import prod

import torch

from course_utils.optim.base import Optimizer, _require


class RMSProp(Optimizer):
    """RMSProp (Tieleman & Hinton 2012, lecture 6.5), on demand centered (Graves 2013, section 4.2) and with momentum.

    Arguments as torch's `RMSprop`; ε stands beside the root. State per parameter tensor: `step` (one float32 on the CPU),
    `square_avg` (v), with `centered` also `grad_avg` (ḡ), with momentum also `momentum_buffer` (b), each in the parameter's
    shape and dtype. Raises `ValueError` for hyper-parameters out of range, in any group.
    """

    def __init__(
        self,
        params,
        lr=1e-2,
        alpha=0.99,
        eps=1e-8,
        weight_decay=0.0,
        momentum=0.0,
        centered=False,
        *,
        maximize=False,
    ):
        defaults = {"lr": lr, "alpha": alpha, "eps": eps, "weight_decay": weight_decay, "momentum": momentum}
        super().__init__(params, {**defaults, "centered": centered, "maximize": maximize})

    @staticmethod
    def state_bytes(shape: tuple[int, ...], itemsize: int = 4, momentum: float = 0.0, centered=False) -> int:
        """Bytes of state for one parameter tensor: v, ḡ and b where there are any, and a 4-byte step counter."""
        return (1 + (momentum > 0) + centered) * prod(shape) * itemsize + 4

    @staticmethod
    def temporary_bytes(shape: tuple[int, ...], itemsize: int = 4, weight_decay: float = 0.0, maximize=False) -> int:
        """Bytes that the update of one parameter tensor needs for a moment.

        They are the denominator, the gradient with λθ where there is decay, the negated one under `maximize`.
        """
        return (1 + (weight_decay > 0) + maximize) * prod(shape) * itemsize

    def new_state(self, parameter):
        """v = 0 in the parameter's memory layout, and a step counter, which nothing here reads, as torch keeps it."""
        return {"step": torch.zeros((), dtype=torch.float32), "square_avg": torch.zeros_like(parameter)}

    def update(self, parameter, gradient, state, group):
        """θ ← θ − α g / (√v + ε), with v ← βv + (1 − β)g²."""
        beta, v = group["alpha"], state["square_avg"]
        gradient = self.decay(parameter, gradient, group)
        state["step"] += 1
        v.mul_(beta).addcmul_(gradient, gradient, value=1 - beta)
        denominator = self.root(gradient, state, group).add_(group["eps"])
        self.move(parameter, gradient, denominator, state, group)

    def root(self, gradient: torch.Tensor, state: dict, group: dict) -> torch.Tensor:
        """√v, or where centered √(v − ḡ²), with ḡ ← βḡ + (1 − β)g; in a new tensor."""
        v = state["square_avg"]
        if not group["centered"]:
            return v.sqrt()
        mean = _kept(state, "grad_avg", v).lerp_(gradient, 1 - group["alpha"])
        return v.addcmul(mean, mean, value=-1).sqrt_()

    def move(self, parameter, gradient, denominator, state, group):
        """θ ← θ − α g / denominator; with momentum b ← μb + g / denominator, then θ ← θ − α b."""
        if not group["momentum"]:
            parameter.addcdiv_(gradient, denominator, value=-group["lr"])
            return
        b = _kept(state, "momentum_buffer", parameter).mul_(group["momentum"]).addcdiv_(gradient, denominator)
        parameter.add_(b, alpha=-group["lr"])

    def check(self, group):
        """As `Optimizer.check`; β in [0, 1), ε and μ not negative."""
        super().check(group)
        _require(0 <= group["alpha"] < 1, "alpha", group["alpha"], "in [0, 1)")
        for name in ("eps", "momentum"):
            _require(group[name] >= 0, name, group[name], "at least 0")

    def __setstate__(self, state):
        """Take over a state of torch's RMSprop too."""
        super().__setstate__(state)
        for group in self.param_groups:
            for name, value in (("momentum", 0.0), ("centered", False), ("maximize", False)):
                group.setdefault(name, value)


def _kept(state: dict, name: str, like: torch.Tensor) -> torch.Tensor:
    """The tensor of that name in `state`, zeros at first."""
    if name not in state:
        state[name] = torch.zeros_like(like)
    return state[name]
