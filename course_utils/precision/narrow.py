"""Training with parameters of 16 bits, by any optimizer: the update is made in float32 and then rounded.

The four classes differ in what happens to the part that rounding drops: it is lost, kept by chance, kept in a second
16-bit number, or never dropped.
"""

from collections.abc import Callable, Iterable

import torch

from course_utils.errors import CourseError
from course_utils.precision.formats import FORMATS, Format

_FORMAT_OF = {torch.bfloat16: FORMATS["bf16"], torch.float16: FORMATS["fp16"]}


def format_of(dtype: torch.dtype) -> Format:
    """The format of a 16-bit type; raises `CourseError` for another."""
    if dtype not in _FORMAT_OF:
        raise CourseError(f"{dtype} is not a type of 16 bits; build the model in torch.bfloat16 or torch.float16.")
    return _FORMAT_OF[dtype]


class RoundToNearest(torch.optim.Optimizer):
    """Moves 16-bit parameters by an optimizer of float32 copies, and rounds to nearest: a small update is lost.

    `make(groups)` builds that optimizer. Its state is float32; a copy lives only while its parameter is updated. Parameters
    of 32 bits are moved as they are. Raises `CourseError` for those of 64.
    """

    kept_bytes = 0
    """Bytes for each 16-bit parameter beside the state of the optimizer inside."""

    def __init__(self, params: Iterable, make: Callable[[list[dict]], torch.optim.Optimizer]):
        groups = list(params)
        groups = groups if groups and isinstance(groups[0], dict) else [{"params": groups}]
        groups = [{**group, "params": list(group["params"])} for group in groups]
        self._wide = {theta: _nothing(theta) for group in groups for theta in group["params"]}
        for theta in self._wide:
            if theta.dtype != torch.float32:
                format_of(theta.dtype)
        self.kept: dict[torch.Tensor, dict[str, torch.Tensor]] = {}
        self.inner = make([{**group, "params": [self._wide[p] for p in group["params"]]} for group in groups])
        super().__init__(groups, self.inner.defaults)

    def new_kept(self, theta: torch.Tensor) -> dict[str, torch.Tensor]:
        """What is kept beside a parameter: nothing."""
        return {}

    def widen(self, theta: torch.Tensor, kept: dict) -> torch.Tensor:
        """θ in float32, to be updated in place."""
        return theta.float()

    def narrow(self, wide: torch.Tensor, theta: torch.Tensor, kept: dict) -> None:
        """Write the updated θ back."""
        theta.copy_(wide)

    @torch.no_grad()
    def step(self, closure=None):
        """One update of every parameter with a gradient; returns the closure's loss, or None without one."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group, inside in zip(self.param_groups, self.inner.param_groups, strict=True):
            inside.update({name: value for name, value in group.items() if name != "params"})  # a schedule's changes
        for theta, wide in self._wide.items():
            if theta.grad is not None:
                self._step_one(theta, wide)
        return loss

    @property
    def state(self) -> dict:
        """By parameter: the inner optimizer's state, and what is kept here."""
        return {
            theta: {**self.inner.state.get(wide, {}), **self.kept.get(theta, {})}
            for theta, wide in self._wide.items()
            if wide in self.inner.state
        }

    @state.setter
    def state(self, _):
        """The base class makes a state, which nothing uses."""

    def state_dict(self) -> dict:
        """The inner optimizer's, and what is kept here in the order of the parameters."""
        return {"inner": self.inner.state_dict(), "kept": [self.kept.get(theta, {}) for theta in self._wide]}

    def load_state_dict(self, state_dict: dict) -> None:
        """Take over what `state_dict` gave; raises `ValueError` where it is of another number of parameters."""
        for theta, wide in self._wide.items():
            wide.data = theta.detach().float()  # the inner optimizer gives its state its parameter's type
        self.inner.load_state_dict(state_dict["inner"])
        for theta, wide in self._wide.items():
            wide.data = _nothing(theta)
        pairs = zip(self._wide, state_dict["kept"], strict=True)
        self.kept = {theta: {name: value.to(theta.device) for name, value in kept.items()} for theta, kept in pairs}
        for group, inside in zip(self.param_groups, self.inner.param_groups, strict=True):
            group.update({name: value for name, value in inside.items() if name != "params"})

    def _step_one(self, theta: torch.Tensor, wide: torch.Tensor) -> None:
        if theta.dtype == torch.float32:
            wide.data, wide.grad = theta.data, theta.grad
            self.inner.step()
        else:
            kept = self.kept.get(theta) or self.kept.setdefault(theta, self.new_kept(theta))
            wide.data, wide.grad = self.widen(theta, kept), theta.grad.float()
            self.inner.step()  # moves this one alone: no other copy has a gradient now
            self.narrow(wide.data, theta, kept)
        wide.data, wide.grad = _nothing(theta), None


class RoundStochastically(RoundToNearest):
    """Rounds up or down by chance, so that a small update is made now and then and the mean is right.

    Gupta et al. (2015); for weights in bfloat16 Zamirai et al. (2021), *Revisiting BFloat16 Training*. `seed` of the draws.
    """

    def __init__(self, params, make, seed: int = 0):
        super().__init__(params, make)
        self.generators = {theta.device: torch.Generator(theta.device).manual_seed(seed) for theta in self._wide}

    def narrow(self, wide, theta, kept):
        """θ is one of the two neighbors of the updated θ."""
        theta.copy_(format_of(theta.dtype).by_chance(wide, self.generators[theta.device]))

    def state_dict(self):
        """With the state of the random numbers."""
        draws = [generator.get_state() for generator in self.generators.values()]
        return {**super().state_dict(), "draws": draws}

    def load_state_dict(self, state_dict):
        """With the state of the random numbers."""
        super().load_state_dict(state_dict)
        for generator, state in zip(self.generators.values(), state_dict["draws"], strict=True):
            generator.set_state(state.cpu())


class KeepResidual(RoundToNearest):
    """Keeps what rounding dropped, and adds it before the next update: compensated summation (Kahan 1965).

    The residual has the parameter's own type, so θ and residual together hold about twice its mantissa.
    """

    kept_bytes = 2

    def new_kept(self, theta):
        """The residual, 0 at first."""
        return {"residual": torch.zeros_like(theta)}

    def widen(self, theta, kept):
        """θ + residual."""
        return theta.float() + kept["residual"]

    def narrow(self, wide, theta, kept):
        """Round, and keep the rest."""
        theta.copy_(wide)
        kept["residual"].copy_(wide - theta.float())


class KeepMasters(RoundToNearest):
    """Keeps every parameter in float32 as well, the *master weights*; θ is their rounded copy (Micikevicius et al. 2018)."""

    kept_bytes = 4

    def new_kept(self, theta):
        """The master of a parameter, equal to it at first."""
        return {"master": theta.float()}

    def widen(self, theta, kept):
        """The master itself."""
        return kept["master"]


def unmoved_share(before: list[torch.Tensor], after: list[torch.Tensor]) -> float:
    """The share of all elements that are the same in both lists of tensors."""
    same = sum((b == a).sum().item() for b, a in zip(before, after, strict=True))
    return same / sum(b.numel() for b in before)


def _nothing(theta: torch.Tensor) -> torch.Tensor:
    return torch.empty(0, device=theta.device)
