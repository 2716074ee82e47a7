"""Training with parameters of 16 bits, by any optimizer: the update is made in float32 and then rounded.

The four classes differ in what becomes of the part that rounding drops: lost, made up for at random, kept apart, or kept whole.
"""

from collections.abc import Callable, Iterable

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from course_utils.precision.formats import FORMATS


class RoundToNearest(torch.optim.Optimizer):
    """Updates a float32 copy of each 16-bit parameter and rounds it to nearest: a small update is lost.

    `make_optimizer(groups)` builds the optimizer of the copies; its state is float32. A copy lives only while its parameter is
    updated. Parameters of 32 bits are updated directly.
    """

    extra_bytes_per_param = 0  # beside the state of the inner optimizer

    def __init__(self, params: Iterable, make_optimizer: Callable[[list[dict]], torch.optim.Optimizer]):
        super().__init__(params, {})
        self._copies = {p: torch.empty(0, device=p.device) for group in self.param_groups for p in group["params"]}
        groups = [{**group, "params": [self._copies[p] for p in group["params"]]} for group in self.param_groups]
        self.inner = make_optimizer(groups)
        for group, inner_group in zip(self.param_groups, self.inner.param_groups, strict=True):
            group.update({name: value for name, value in inner_group.items() if name != "params"})

    def widen(self, theta: Float[Tensor, "*shape"], state: dict) -> Float32[Tensor, "*shape"]:
        """θ in float32, to be updated in place."""
        return theta.float()

    def write_back(self, copy: Float32[Tensor, "*shape"], theta: Float[Tensor, "*shape"], state: dict) -> None:
        """Write the updated copy back into θ."""
        theta.copy_(copy)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Update every parameter that has a gradient; returns the closure's loss, or None without one."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group, inner_group in zip(self.param_groups, self.inner.param_groups, strict=True):
            # A schedule may have changed them.
            inner_group.update({name: value for name, value in group.items() if name != "params"})
            for theta in group["params"]:
                if theta.grad is not None:
                    self._step_alone(theta, self._copies[theta])
        return loss

    def _step_alone(self, theta: Tensor, copy: Tensor) -> None:
        is_16_bit = theta.dtype != torch.float32
        copy.data = self.widen(theta, self.state[theta]) if is_16_bit else theta.data
        copy.grad = theta.grad.float()
        self.inner.state[copy] = self.state[theta]
        self.inner.step()  # It moves this copy alone: no other has a gradient now.
        if is_16_bit:
            self.write_back(copy.data, theta, self.state[theta])
        copy.data = torch.empty(0, device=theta.device)
        copy.grad = None

    def load_state_dict(self, state_dict: dict) -> None:
        """Restore what `state_dict` returned in its own types: the base class would round it to 16 bits."""
        super().load_state_dict(state_dict)
        for number, theta in enumerate(self._copies):
            for name, value in state_dict["state"].get(number, {}).items():
                if isinstance(value, Tensor):
                    self.state[theta][name] = value.to(self.state[theta][name].device, copy=True)


class StochasticRounding(RoundToNearest):
    """Rounds up or down at random, so that a small update is made now and then and the mean is right.

    Gupta et al. (2015); for weights in bfloat16 Zamirai et al. (2021), *Revisiting BFloat16 Training*.
    """

    def __init__(self, params: Iterable, make_optimizer: Callable[[list[dict]], torch.optim.Optimizer], seed: int = 0):
        super().__init__(params, make_optimizer)
        self.generator = torch.Generator(next(iter(self._copies)).device).manual_seed(seed)

    def write_back(self, copy: Float32[Tensor, "*shape"], theta: Float[Tensor, "*shape"], state: dict) -> None:
        """θ becomes one of the two neighbors of the updated copy."""
        fmt = FORMATS["bf16" if theta.dtype == torch.bfloat16 else "fp16"]
        theta.copy_(fmt.stochastic(copy, self.generator))

    def state_dict(self) -> dict:
        return {**super().state_dict(), "generator": self.generator.get_state()}

    def load_state_dict(self, state_dict: dict) -> None:
        super().load_state_dict(state_dict)
        self.generator.set_state(state_dict["generator"].cpu())


class KahanSum(RoundToNearest):
    """Keeps what rounding dropped, and adds it before the next update: compensated summation (Kahan 1965)."""

    extra_bytes_per_param = 2

    def widen(self, theta: Float[Tensor, "*shape"], state: dict) -> Float32[Tensor, "*shape"]:
        """θ and what was dropped, which has 16 bits as well."""
        return theta.float() + state.get("residual", 0)

    def write_back(self, copy: Float32[Tensor, "*shape"], theta: Float[Tensor, "*shape"], state: dict) -> None:
        """Round, and keep the rest."""
        theta.copy_(copy)
        state["residual"] = (copy - theta.float()).to(theta.dtype)


class MasterWeights(RoundToNearest):
    """Keeps every parameter in float32 as well; θ is the rounded copy of this master (Micikevicius et al. 2018)."""

    extra_bytes_per_param = 4

    def widen(self, theta: Float[Tensor, "*shape"], state: dict) -> Float32[Tensor, "*shape"]:
        """The master itself."""
        return state["master"] if "master" in state else theta.float()

    def write_back(self, copy: Float32[Tensor, "*shape"], theta: Float[Tensor, "*shape"], state: dict) -> None:
        """Keep the master, and round it."""
        theta.copy_(copy)
        state["master"] = copy
