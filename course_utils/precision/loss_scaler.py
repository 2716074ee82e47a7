"""Dynamic loss scaling: a factor S that lifts gradients out of fp16's underflow and adapts itself.

Micikevicius et al. (2018), *Mixed Precision Training*, for the loss scale.
"""

import torch
from jaxtyping import Float
from torch import Tensor


class LossScaler:
    """The loss scale S. Each update: `scale(loss).backward()`, `unscale_`, `step`, `update`.

    An update whose gradients are not all finite is skipped, and S is multiplied by `backoff_factor`; after
    `growth_interval` finite updates in a row it is multiplied by `growth_factor`.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ):
        self._scale = torch.tensor(init_scale, dtype=torch.float32)
        self.growth_factor, self.backoff_factor, self.growth_interval = growth_factor, backoff_factor, growth_interval
        self._finite_in_a_row = self.skipped = 0
        self._overflowed: dict[int, bool] = {}  # by optimizer, in this update
        self._stepped: set[int] = set()
        self._scaled = False  # whether a loss was, ever

    def get_scale(self) -> float:
        """S as it is now."""
        return self._scale.item()

    def scale(self, loss: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """S times the loss; by the chain rule every gradient becomes S times as large."""
        self._scaled = True
        return loss * self._scale

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients by S, in place, and note whether all are finite. Clip after it, not before.

        Raises, as torch's does, before any loss was scaled, for a second time in an update, and for gradients of float16.
        """
        if not self._scaled:
            raise RuntimeError("No loss has been scaled; call scale(loss).backward() first.")
        if id(optimizer) in self._overflowed:
            raise RuntimeError("unscale_ has divided these gradients already; call it once before each update().")
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in parameters if p.grad is not None]
        if any(gradient.dtype == torch.float16 for gradient in gradients):
            raise ValueError(
                "Gradients of float16 would underflow again; keep the parameters in float32 and use autocast."
            )
        self._overflowed[id(optimizer)] = not all(gradient.isfinite().all() for gradient in gradients)
        for gradient in gradients:
            gradient.div_(self._scale)

    def overflowed(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether this update's gradients were not all finite; unscales them if that was not done."""
        if id(optimizer) not in self._overflowed:
            self.unscale_(optimizer)
        return self._overflowed[id(optimizer)]

    def step(self, optimizer: torch.optim.Optimizer) -> object:
        """The optimizer's step, or nothing if a gradient is not finite."""
        overflowed = self.overflowed(optimizer)
        if id(optimizer) in self._stepped:
            raise RuntimeError("This update has made its step already; call update() before the next one.")
        self._stepped.add(id(optimizer))
        return None if overflowed else optimizer.step()

    def update(self) -> None:
        """Adapt S at the end of an update."""
        factor = 1.0
        self._finite_in_a_row += 1
        if any(self._overflowed.values()):
            factor = self.backoff_factor
            self._finite_in_a_row = 0
            self.skipped += 1
        elif self._finite_in_a_row == self.growth_interval:
            factor = self.growth_factor
            self._finite_in_a_row = 0
        new_scale = torch.tensor(self.get_scale() * factor, dtype=torch.float32)
        if new_scale.isfinite():
            self._scale = new_scale
        self._overflowed.clear()
        self._stepped.clear()

    def state_dict(self) -> dict:
        """The state for a checkpoint, with the names of PyTorch's scaler, and the number of skipped updates."""
        return {
            "scale": self.get_scale(),
            "growth_factor": self.growth_factor,
            "backoff_factor": self.backoff_factor,
            "growth_interval": self.growth_interval,
            "_growth_tracker": self._finite_in_a_row,
            "skipped": self.skipped,
        }

    def load_state_dict(self, state: dict) -> None:
        """Restore what `state_dict` returned, here or of PyTorch's scaler."""
        self._scale = torch.tensor(state["scale"], dtype=torch.float32)
        self.growth_factor, self.backoff_factor = state["growth_factor"], state["backoff_factor"]
        self.growth_interval = state["growth_interval"]
        self._finite_in_a_row = state["_growth_tracker"]
        self.skipped = state.get("skipped", 0)
