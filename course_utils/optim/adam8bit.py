"""Adam and AdamW with 8-bit states: as in `adam`, but between two steps both averages are places in a code book.

Parameters and gradients stay as they are. The states are widened, updated and narrowed again a stretch at a time.
"""

from math import prod, sqrt

import torch

from course_utils.optim import quantization
from course_utils.optim.adam import AdamW
from course_utils.optim.base import Optimizer, _require

_BOOK_BYTES = 256 * 4
_ON_CPU, _ELSEWHERE = 2**16, 2**24
"""Elements handled at once: few enough for a processor's cache; many on a GPU, where each launch of work costs."""


class Adam8bit(AdamW):
    """Adam with block-wise dynamic 8-bit states (Dettmers et al. 2022); decay is decoupled, as in the library, default 0.

    State per parameter tensor, by the library's names: `step` (a Python number); `state1` and `state2` (m and v as uint8
    places in a code book, in the parameter's shape); `absmax1` and `absmax2` (a float32 scale for each block of
    `block_size` values); `qmap1` and `qmap2` (the code books, one of each for all tensors). Tensors of fewer than
    `min_8bit_size` elements keep m and v in 32 bits (64 if they have 64), without scales and books. Both settings belong
    to a group, so that one group can be kept in 32 bits. Raises `ValueError` for settings out of range.
    """

    def __init__(
        self,
        params,
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
        weight_decay=0.0,
        *,
        min_8bit_size=4096,
        block_size=quantization.BLOCK,
        maximize=False,
    ):
        settings = {"min_8bit_size": min_8bit_size, "block_size": block_size, "maximize": maximize}
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, **settings}
        Optimizer.__init__(self, params, defaults)

    @staticmethod
    def state_bytes(shape: tuple[int, ...], itemsize: int = 4, min_8bit_size: int = 4096, block_size: int = 256) -> int:
        """Bytes of state for one parameter tensor, without the two books, which all tensors share (`shared_bytes`)."""
        elements = prod(shape)
        if elements < min_8bit_size:
            return 2 * elements * max(4, itemsize)
        return 2 * (elements + 4 * quantization.block_count(elements, block_size))

    @staticmethod
    def shared_bytes() -> int:
        """Bytes of the two code books."""
        return 2 * _BOOK_BYTES

    @staticmethod
    def temporary_bytes(shape: tuple[int, ...], itemsize: int = 4, weight_decay: float = 0.0, maximize=False) -> int:
        """Bytes that the update of one 32-bit tensor needs for a moment on the CPU: 17 for each element of a stretch.

        Both averages widened, and while one is narrowed four bytes each for the interval and the threshold of its
        look-up and one for their comparison. A small tensor needs its denominator only. Scales, 4 bytes a block, not counted.
        """
        elements = prod(shape)
        negated = maximize * elements * itemsize
        return negated + (4 * elements if elements < 4096 else 17 * min(elements, _ON_CPU))

    def new_state(self, parameter):
        """The count of steps; the averages come with the first update, which knows the group's settings."""
        return {"step": 0}

    def books(self, device):
        """The code books of m, which has both signs, and of v, which is never negative."""
        return quantization.dynamic_book(True, device), quantization.dynamic_book(False, device)

    def new_averages(self, parameter, group) -> dict:
        """Both averages at zero: places in the code books with scales of 0, or a small tensor's in 32 bits."""
        if parameter.numel() < group["min_8bit_size"]:
            wide = _wide(parameter.dtype)
            return {name: torch.zeros_like(parameter, dtype=wide) for name in ("state1", "state2")}
        averages, blocks = {}, quantization.block_count(parameter.numel(), group["block_size"])
        for number, book in enumerate(self.books(parameter.device), start=1):
            averages[f"state{number}"] = torch.zeros(parameter.shape, dtype=torch.uint8, device=parameter.device)
            averages[f"absmax{number}"] = torch.zeros(blocks, device=parameter.device)
            averages[f"qmap{number}"] = book.codes
        return averages

    def update(self, parameter, gradient, state, group):
        """One step of Adam in 32 bits for a small tensor, else a stretch of blocks at a time."""
        if "state1" not in state:
            state.update(self.new_averages(parameter, group))
        state["step"] += 1
        if state["state1"].dtype == torch.uint8:
            self._update_in_stretches(parameter, gradient, state, group)
        else:
            self.move(parameter, gradient, state["state1"], state["state2"], state["step"], group)

    def move(self, parameter, gradient, m, v, t, group):
        """AdamW's equations on averages in full precision, in place: m, v, then θ ← θ − αλθ − α m̂ / (√v̂ + ε)."""
        (beta1, beta2), theta, g = group["betas"], parameter.to(m.dtype), gradient.to(m.dtype)
        self.decay(theta, g, group)
        m.lerp_(g, 1 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        denominator = v.sqrt().div_(sqrt(1 - beta2**t)).add_(group["eps"])
        theta.addcdiv_(m, denominator, value=-group["lr"] / (1 - beta1**t))
        if theta is not parameter:  # it was widened
            parameter.copy_(theta)

    def narrow(self, values, book, places, absmax, block_size):
        """An average back into 8 bits: `values` (flat, used up) into `places` and `absmax`, by nearest entries."""
        quantization.pack(values, book, places, absmax, block_size)

    def _update_in_stretches(self, parameter, gradient, state, group):
        theta, flat = parameter.reshape(-1), gradient.reshape(-1)
        for stretch, blocks in _stretches(parameter, group["block_size"]):
            self._update_stretch(
                theta[stretch], flat[stretch], self._parts(state, stretch, blocks, group), group, state
            )
        if not parameter.is_contiguous():  # then `theta` is a copy
            parameter.copy_(theta.view(parameter.shape))

    def _parts(self, state, stretch, blocks, group):
        """For m and for v, the arguments of `narrow`: the book, places and scales of one stretch, the size of a block."""
        return [
            (book, state[f"state{number}"].view(-1)[stretch], state[f"absmax{number}"][blocks], group["block_size"])
            for number, book in enumerate(self.books(state["state1"].device), start=1)
        ]

    def _update_stretch(self, theta, gradient, parts, group, state):
        """Widen both averages, move θ, narrow them again."""
        wide = _wide(theta.dtype)
        m, v = (quantization.unpack(places, absmax, book, size, wide) for book, places, absmax, size in parts)
        self.move(theta, gradient, m, v, state["step"], group)
        for values, part in zip((m, v), parts, strict=True):
            self.narrow(values, *part)

    def check(self, group):
        """As `Adam.check`, and whole numbers for the two settings of 8 bits."""
        super().check(group)
        _require(group["min_8bit_size"] >= 0, "min_8bit_size", group["min_8bit_size"], "at least 0")
        size = group["block_size"]
        _require(isinstance(size, int) and size >= 1, "block_size", size, "a whole number, at least 1")

    def __setstate__(self, state):
        """As Adam's; a state of the library's, which has no settings in its groups, gets the defaults."""
        super().__setstate__(state)
        for group in self.param_groups:
            group.setdefault("min_8bit_size", 4096)
            group.setdefault("block_size", quantization.BLOCK)

    def load_state_dict(self, state_dict):
        """Continue from a saved state, also from the library's; places stay 8-bit integers, and the books stay shared.

        (torch would turn every tensor of the state into the parameter's dtype.) Raises `ValueError` where the state
        was saved with another code book.
        """
        super().load_state_dict(state_dict)
        order = [number for group in state_dict["param_groups"] for number in group["params"]]
        parameters = [p for group in self.param_groups for p in group["params"]]
        for number, parameter in zip(order, parameters, strict=True):
            if number in state_dict["state"]:
                self.state[parameter] = _restored(
                    state_dict["state"][number], parameter.device, self.books(parameter.device)
                )


class AdamW8bit(Adam8bit):
    """`Adam8bit` with a default λ of 0.01. Nothing else differs, since the decay of both is decoupled."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=1e-2, **settings):
        super().__init__(params, lr, betas, eps, weight_decay, **settings)


def _stretches(parameter: torch.Tensor, block_size: int):
    """Slices of whole blocks (the last may be shorter), each with the slice of its scales."""
    most = _ON_CPU if parameter.device.type == "cpu" else _ELSEWHERE
    blocks = max(1, most // block_size)
    for first in range(0, quantization.block_count(parameter.numel(), block_size), blocks):
        yield slice(first * block_size, (first + blocks) * block_size), slice(first, first + blocks)


def _restored(saved: dict, device: torch.device, books: tuple) -> dict:
    """One parameter's state as it was saved, on `device`, the books being those that all share."""
    flat = {}
    for name, value in saved.items():  # the library hides tensors in a dict inside, from FSDP
        flat.update(value if isinstance(value, dict) else {name: value})
    for number, book in enumerate(books, start=1):
        name = f"qmap{number}"
        if name in flat and not torch.equal(flat[name].to(device), book.codes):
            raise ValueError(f"The state's {name} is another code book; continue with the optimizer that saved it.")
        if name in flat:
            flat[name] = book.codes
    return {name: value if name.startswith("qmap") else _copied(value, device) for name, value in flat.items()}


def _copied(value, device: torch.device):
    return value.to(device, copy=True) if isinstance(value, torch.Tensor) else value


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
