"""The base class of all optimizers by hand, which walks over the parameters, checks, and counts bytes. Mathematics is elsewhere.

`torch.optim.Optimizer` keeps the books: `param_groups`, `state_dict`, and the hooks that schedulers need.
"""

from collections.abc import Callable, Iterable, Sequence
from math import inf, prod

import torch
from torch import Tensor


class Optimizer(torch.optim.Optimizer):
    """Calls `update` for each parameter that has a gradient.

    A subclass names its options with their defaults and `ranges`, the tensors that it keeps for each parameter (`state_bytes`
    counts them) and the number of `temporaries`, and writes `update`.
    """

    defaults = {"lr": 1e-3, "weight_decay": 0.0}
    # The lowest value of an option, and the first above it that is out of range, if any; an option may also be None.
    ranges = {"lr": (0, inf), "weight_decay": (0, inf)}
    state_names = ()
    # Tensors of the parameter's size that an update needs for a moment; L2 regularization needs one more.
    temporaries = 0
    # Each element is updated from its own gradient and state alone, so `course train` may shard the parameters.
    by_element = True

    def __init__(self, params: Iterable, lr: float | None = None, **options):
        if unknown := options.keys() - self.defaults.keys():
            raise TypeError(f"{type(self).__name__} has no option {', '.join(sorted(unknown))}.")
        rate = {} if lr is None else {"lr": lr}
        super().__init__(params, {**self.defaults, **rate, **options})

    def update(self, parameter: Tensor, gradient: Tensor, state: dict, group: dict) -> None:
        """Change `parameter` and `state` in place; `gradient` stays as it is."""
        raise NotImplementedError

    def decay(self, parameter: Tensor, gradient: Tensor, group: dict) -> Tensor:
        """The gradient that `update` gets. Here L2 regularization: λθ is added to it, so it enters the averages too.

        AdamW changes `parameter` instead; optimizers whose `update` decays by itself return the gradient as it is.
        """
        return gradient.add(parameter, alpha=group["weight_decay"]) if group["weight_decay"] else gradient

    def new_state(self, parameter: Tensor, group: dict) -> dict:
        """Zeros in the parameter's shape and dtype, and a step counter as torch keeps it, a float32 on the CPU."""
        return {name: torch.zeros(()) if name == "step" else torch.zeros_like(parameter) for name in self.state_names}

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Update every parameter that has a gradient; returns the closure's loss, or None without one.

        Raises `TypeError` for a sparse gradient, before any parameter has moved.
        """
        loss = None if closure is None else torch.enable_grad()(closure)()
        ready = [(p, group) for group in self.param_groups for p in group["params"] if p.grad is not None]
        if any(parameter.grad.is_sparse for parameter, _ in ready):
            raise TypeError(f"{type(self).__name__} needs dense gradients; use sparse=False in the embedding.")
        for parameter, group in ready:
            state = self.state[parameter]
            if not state:
                state.update(self.new_state(parameter, group))
            if "step" in state:
                state["step"] += 1
            self.update(parameter, self.decay(parameter, parameter.grad, group), state, group)
        return loss

    def add_param_group(self, param_group: dict) -> None:
        """Do as torch's method; raises `ValueError` for an option that is out of range."""
        options = {**self.defaults, **param_group}
        for name, (low, end) in self.ranges.items():
            value = options.get(name)
            for number in value if isinstance(value, tuple) else [value]:
                if number is not None and not (low <= number and (end is None or number < end)):
                    limit = "" if end is None else f" and below {end}"
                    raise ValueError(f"{name}={value} is out of range: it must be at least {low}{limit}.")
        super().add_param_group(param_group)

    @classmethod
    def state_bytes(cls, shape: Sequence[int], itemsize: int = 4, **options) -> int:
        """Bytes of state for one parameter tensor: a 4-byte step counter, and all else in the parameter's shape.

        `options` are those of the optimizer; the others have their defaults.
        """
        return sum(4 if name == "step" else prod(shape) * itemsize for name in cls.state_names)

    @classmethod
    def temporary_bytes(cls, shape: Sequence[int], itemsize: int = 4, **options) -> int:
        """Bytes that the update of one parameter tensor needs for a moment, without L2 regularization."""
        return cls.temporaries * prod(shape) * itemsize
