"""Adafactor: Adam's second average from the means of its rows and columns, and no first average.

Symbols as in `adam`, and: R and C the averages of the row and column means of g² (`row_var`, `col_var`), ρ the relative step
size, d the threshold of clipping (`d`), ε₁ and ε₂ (`eps`), τ the exponent of β₂'s schedule (`beta2_decay`).

Two versions are in use, PyTorch's and Transformers'. `Adafactor` is PyTorch's by default; `Adafactor.as_in_transformers` sets
the options that make it the other one:

| | PyTorch | Transformers | here |
|---|---|---|---|
| `lr` | upper bound of ρ | ρ itself, or none: ρ is then bounded by 0.01 | `relative_step` |
| ε₁ | floor of mean(R), and of √V̂ | added to g², as in the paper | `eps_in_square` |
| ε₁ by default | the dtype's own: 1.2e-7 in 32 bits | 1e-30 | `eps` |
| factor RMS(θ) | always | may be left out | `scale_parameter` |
| warm-up of ρ | – | 1e-6 t | `warmup_init` |
| first average | – | of the finished update, without bias correction | `beta1` |
| weight decay | `lr` · λθ | αₜλθ | `scale_decay` |
| half precision | kept and computed in it | kept and computed in 32 bits | `float32_state` |

They agree on the rest. Both keep *means* of rows and columns, where the paper keeps sums: that changes R and C, but not V̂.
PyTorch keeps R and C with the dimension that was averaged over (n × 1, 1 × m), Transformers without it, and an RMS(θ) besides.
PyTorch takes the ε₁ of a group's first parameter for all of the group, here each has its own; it matters where dtypes mix.
"""

from math import prod, sqrt

import torch

from course_utils.optim.base import Optimizer, _require
from course_utils.optim.factored import rank_one, rms

_BOUND = 1e-2  # of the relative step size (Shazeer & Stern 2018, Algorithm 6)
_WARMUP = 1e-6  # of the relative step size, for each step taken


class Adafactor(Optimizer):
    """Adafactor (Shazeer & Stern 2018, Algorithms 4 and 5), with the arguments and the state of torch's.

    State per parameter tensor: `step` (one float32 on the CPU); for a matrix `row_var` and `col_var`, for a vector or a number
    `variance`; `exp_avg` in the parameter's shape where `beta1` is given. More than two dimensions: a stack of matrices.
    The options after `*` are Transformers'; the module says what they change. `lr=None` is 0.01, the paper's bound.
    Raises `ValueError` for hyper-parameters out of range, in any group.
    """

    def __init__(
        self,
        params,
        lr=1e-2,
        beta2_decay=-0.8,
        eps=(None, 1e-3),
        d=1.0,
        weight_decay=0.0,
        *,
        maximize=False,
        beta1=None,
        scale_parameter=True,
        relative_step=True,
        warmup_init=False,
        eps_in_square=False,
        scale_decay=False,
        float32_state=False,
    ):
        if lr is None and not relative_step:
            raise ValueError("Without relative steps there is no learning rate: give lr, or set relative_step=True.")
        defaults = {"lr": _BOUND if lr is None else lr, "beta2_decay": beta2_decay, "eps": eps, "d": d}
        defaults |= {"weight_decay": weight_decay, "maximize": maximize, "beta1": beta1}
        defaults |= {"scale_parameter": scale_parameter, "relative_step": relative_step, "warmup_init": warmup_init}
        defaults |= {"eps_in_square": eps_in_square, "scale_decay": scale_decay, "float32_state": float32_state}
        super().__init__(params, defaults)

    @classmethod
    def as_in_transformers(
        cls, params, lr=None, eps=(1e-30, 1e-3), clip_threshold=1.0, decay_rate=-0.8, **options
    ) -> "Adafactor":
        """With the defaults and the names of Transformers' version: `beta1`, `scale_parameter` and the like in `options`."""
        theirs = {"eps_in_square": True, "scale_decay": True, "float32_state": True}
        return cls(params, lr, decay_rate, eps, clip_threshold, **{**theirs, **options})

    @staticmethod
    def state_bytes(shape: tuple[int, ...], itemsize: int = 4, beta1=None) -> int:
        """Bytes of state for one parameter tensor: rows and columns, or a vector's elements, and a 4-byte step counter."""
        return (_kept(shape) + (beta1 is not None) * prod(shape)) * itemsize + 4

    @staticmethod
    def temporary_bytes(shape: tuple[int, ...], itemsize: int = 4, maximize=False) -> int:
        """Bytes that the update of one parameter tensor needs for a moment.

        They are the update U, for matrices R / mean(R) beside it, the negated gradient under `maximize`.
        """
        rows = prod(shape[:-1]) if len(shape) > 1 else 0
        return ((1 + maximize) * prod(shape) + rows) * itemsize

    def new_state(self, parameter):
        """Zero statistics; which ones is decided by the number of dimensions alone."""
        state, shape = {"step": torch.zeros((), dtype=torch.float32)}, parameter.shape
        if parameter.ndim > 1:
            state["row_var"] = parameter.new_zeros((*shape[:-1], 1))
            state["col_var"] = parameter.new_zeros((*shape[:-2], 1, shape[-1]))
        else:
            state["variance"] = torch.zeros_like(parameter)
        return state

    def update(self, parameter, gradient, state, group):
        """θ ← θ − αₜ Û, after θ has decayed; in 32 bits where that is asked for, and so in copies."""
        if group["float32_state"] and parameter.itemsize < 4:
            self._update_in_float32(parameter, gradient, state, group)
        else:
            self._update(parameter, gradient, state, group)

    def _update(self, parameter, gradient, state, group):
        state["step"] += 1
        t = state["step"].item()
        update = self.normalize(gradient, state, self.average(gradient, state, t, group))
        alpha = self.step_size(parameter, t, group)
        self.decay(parameter, alpha, group)
        self.move(parameter, update, alpha / self.clipping(update, group["d"]), state, group["beta1"])

    def average(self, gradient, state, t, group):
        """Rₜ = β₂ₜ Rₜ₋₁ + (1 − β₂ₜ) mean of each row of g², Cₜ alike; of a vector all of v is kept. 1 − β₂ₜ = t^τ.

        Returns the smallest value that mean(R) and √V̂ may have.
        """
        share, eps1 = t ** group["beta2_decay"], group["eps"][0]
        eps1 = torch.finfo(gradient.dtype).eps if eps1 is None else eps1
        added = eps1 if group["eps_in_square"] else 0.0
        for name, dim in (("row_var", -1), ("col_var", -2)):
            if name in state:
                state[name].lerp_(_mean_of_squares(gradient, dim).add_(added), share)
        if "variance" in state:
            state["variance"].mul_(1 - share).addcmul_(gradient, gradient, value=share).add_(share * added)
        return 0.0 if group["eps_in_square"] else eps1

    def normalize(self, gradient, state, floor):
        """U = g / √V̂, with V̂ = R C / mean(R) for a matrix and V̂ = v for a vector; mean(R) and √V̂ are at least `floor`.

        The dtype's smallest number is a floor in any case: where all gradients were 0, U must be 0, and not 0 / 0.
        """
        tiny = torch.finfo(gradient.dtype).tiny
        if "variance" in state:
            estimate = state["variance"].clamp(min=max(floor**2, tiny))
        else:
            estimate = rank_one(state["row_var"], state["col_var"], max(floor, tiny)).clamp_(min=max(floor**2, tiny))
        return estimate.rsqrt_().mul_(gradient)

    def clipping(self, update, d):
        """max(1, RMS(U) / d), by which U is divided: one number for the whole tensor, so that its direction stays."""
        return max(1.0, rms(update) / d)

    def step_size(self, parameter, t, group):
        """αₜ = max(ε₂, RMS(θ)) ρₜ where the parameter's scale counts, otherwise ρₜ."""
        rho = self.relative_step(t, group) if group["relative_step"] else group["lr"]
        return max(group["eps"][1], rms(parameter)) * rho if group["scale_parameter"] else rho

    def relative_step(self, t, group):
        """ρₜ = min(bound, 1 / √t); the bound is `lr`, or 10⁻⁶ t with `warmup_init`."""
        return min(_WARMUP * t if group["warmup_init"] else group["lr"], 1 / sqrt(t))

    def decay(self, parameter, alpha, group):
        """θ ← θ − lr λθ as in torch, or θ − αₜλθ; beside the gradient, as in AdamW."""
        if group["weight_decay"]:
            parameter.mul_(1 - (alpha if group["scale_decay"] else group["lr"]) * group["weight_decay"])

    def move(self, parameter, update, factor, state, beta1):
        """θ ← θ − αₜ Û; with β₁, θ ← θ − m and m ← β₁ m + (1 − β₁) αₜ Û, an average of finished steps."""
        if beta1 is None:
            parameter.sub_(update, alpha=factor)
        else:
            if "exp_avg" not in state:
                state["exp_avg"] = torch.zeros_like(update)
            parameter.sub_(state["exp_avg"].lerp_(update.mul_(factor), 1 - beta1))

    def check(self, group):
        """As `Optimizer.check`, and every hyper-parameter of Adafactor in its range."""
        _require(group["lr"] is not None, "lr", None, "a number in a group of its own; 0.01 is the paper's bound")
        super().check(group)
        _require(group["beta2_decay"] <= 0, "beta2_decay", group["beta2_decay"], "at most 0")
        _require(len(group["eps"]) == 2, "eps", group["eps"], "a pair")
        for i, eps in enumerate(group["eps"]):
            _require((eps is None and i == 0) or eps >= 0, f"eps[{i}]", eps, "at least 0")
        _require(group["d"] > 0, "d", group["d"], "above 0")
        _require(group["beta1"] is None or 0 <= group["beta1"] < 1, "beta1", group["beta1"], "None or in [0, 1)")
        _require(group["relative_step"] or not group["warmup_init"], "warmup_init", True, "off without relative_step")

    def __setstate__(self, state):
        """Take over a state of torch's Adafactor too; the state of another optimizer is refused (`ValueError`)."""
        super().__setstate__(state)
        for group in self.param_groups:
            if not {"beta2_decay", "d"} <= set(group):
                raise ValueError(
                    "This state was saved by another optimizer than this one or torch.optim.Adafactor; continue with that one."
                )
            for name, value in self.defaults.items():
                group.setdefault(name, value)

    def _update_in_float32(self, parameter, gradient, state, group):
        """The same on copies in 32 bits; after a reload, which rounds the state, it is widened again."""
        state.update({name: value.float() for name, value in state.items()})
        wide = parameter.float()
        self._update(wide, gradient.float(), state, group)
        parameter.copy_(wide)


def _mean_of_squares(gradient: torch.Tensor, dim: int) -> torch.Tensor:
    """The means of g² over `dim`, which stays with size 1; g² itself is never in memory."""
    return torch.linalg.vector_norm(gradient, dim=dim, keepdim=True).square_().div_(gradient.size(dim))


def _kept(shape: tuple[int, ...]) -> int:
    """Numbers that stand for the second average of a tensor."""
    return prod(shape[:-1]) + prod(shape[:-2]) * shape[-1] if len(shape) > 1 else prod(shape)
