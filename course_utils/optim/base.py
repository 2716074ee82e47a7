"""What every optimizer by hand shares: walking the parameters, refusing what it cannot handle, and nothing of the mathematics.

`torch.optim.Optimizer` supplies the bookkeeping that is not the lesson (`param_groups`, `state_dict`, hooks for schedulers).
"""

import torch


class Optimizer(torch.optim.Optimizer):
    """Calls `update` once for each parameter that has a gradient.

    A subclass writes two methods: `new_state`, the tensors it keeps for one parameter, and `update`, its equations.
    One that adds λθ elsewhere than to the gradient changes `decay` too.
    """

    def new_state(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """State for a parameter that is updated for the first time."""
        raise NotImplementedError

    def update(self, parameter: torch.Tensor, gradient: torch.Tensor, state: dict, group: dict) -> None:
        """Change `parameter` and `state` in place; `gradient` belongs to the caller and stays as it is."""
        raise NotImplementedError

    def decay(self, parameter, gradient, group):
        """L2 regularization: λθ joins the gradient, and so enters all that is made of it."""
        return gradient.add(parameter, alpha=group["weight_decay"]) if group["weight_decay"] else gradient

    @torch.no_grad()
    def step(self, closure=None):
        """One update of every parameter with a gradient; returns the closure's loss, or None without one.

        All gradients are checked before the first parameter moves, so a refused step changes nothing.
        Raises `TypeError` for sparse or complex gradients and for a gradient of another dtype than its parameter.
        """
        loss = None if closure is None else torch.enable_grad()(closure)()
        ready = [(p, group) for group in self.param_groups for p in group["params"] if p.grad is not None]
        for parameter, _ in ready:
            self._refuse_unfit(parameter)
        for parameter, group in ready:
            self._step_one(parameter, group)
        return loss

    def add_param_group(self, param_group: dict) -> None:
        """Add a group as torch does; its own hyper-parameters are checked too (`ValueError`)."""
        self.check({**self.defaults, **param_group})
        super().add_param_group(param_group)

    def check(self, group: dict) -> None:
        """Raise `ValueError` where a hyper-parameter is out of its range."""
        _require(group["lr"] >= 0, "lr", group["lr"], "at least 0")
        _require(group["weight_decay"] >= 0, "weight_decay", group["weight_decay"], "at least 0")

    def _step_one(self, parameter: torch.Tensor, group: dict) -> None:
        state = self.state[parameter]
        if not state:
            state.update(self.new_state(parameter))
        gradient = -parameter.grad if group["maximize"] else parameter.grad
        self.update(parameter, gradient, state, group)

    def _refuse_unfit(self, parameter: torch.Tensor) -> None:
        name, gradient = type(self).__name__, parameter.grad
        if gradient.layout is not torch.strided:
            raise TypeError(
                f"{name} needs dense gradients, but one is sparse; use sparse=False in the embedding or torch.optim.SparseAdam."
            )
        if parameter.is_complex():
            raise TypeError(
                f"{name} updates real numbers only; give it torch.view_as_real(parameter) for a complex parameter."
            )
        if gradient.dtype != parameter.dtype:
            raise TypeError(
                f"{name} found a {gradient.dtype} gradient on a {parameter.dtype} parameter; convert one of them first."
            )


def _require(holds: bool, name: str, value, allowed: str) -> None:
    if not holds:
        raise ValueError(f"{name}={value} is out of range: it must be {allowed}.")
