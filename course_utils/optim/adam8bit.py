"""Adam and AdamW with 8-bit states: Adam's own update, between `dequantize` and `quantize`."""

from collections.abc import Sequence
from math import inf, prod

import torch
from jaxtyping import Float
from torch import Tensor

from course_utils.optim.adam import AdamW
from course_utils.optim.codebook import dynamic_codebook
from course_utils.optim.quantization import BLOCK, dequantize, quantize


class Adam8bit(AdamW):
    """Adam with block-wise dynamic 8-bit states (Dettmers et al. 2022); decay is decoupled, as in bitsandbytes, default 0.

    State per parameter tensor, by bitsandbytes' names: `step` (a Python number); `state1` and `state2` (the codes of m and v,
    uint8, in the parameter's shape); `absmax1` and `absmax2` (a float32 scale for each block); `qmap1` and `qmap2` (the
    codebooks, which all tensors share). Tensors of fewer than `min_8bit_size` elements keep m and v in 32 bits.
    """

    by_element = False
    defaults = {**AdamW.defaults, "weight_decay": 0.0, "min_8bit_size": 4096, "block_size": BLOCK}
    ranges = {**AdamW.ranges, "min_8bit_size": (0, inf), "block_size": (1, inf)}
    names = {1: "exp_avg", 2: "exp_avg_sq"}

    def codebooks(self, device: torch.device) -> dict[int, Tensor]:
        """The codebooks of m, which has both signs, and of v, which is never negative."""
        return {1: dynamic_codebook(True, device=device), 2: dynamic_codebook(False, device=device)}

    def new_state(self, parameter: Tensor, group: dict) -> dict:
        """Both averages at zero: codes of 0 with scales of 0, or a small tensor's in 32 bits."""
        state = {"step": 0}
        for number, codebook in self.codebooks(parameter.device).items():
            if parameter.numel() < group["min_8bit_size"]:
                state[f"state{number}"] = parameter.new_zeros(parameter.shape, dtype=_widen(parameter.dtype))
            else:
                blocks = -(-parameter.numel() // group["block_size"])
                state[f"state{number}"] = parameter.new_zeros(parameter.shape, dtype=torch.uint8)
                state[f"absmax{number}"] = torch.zeros(blocks, device=parameter.device)
                state[f"qmap{number}"] = codebook
        return state

    def decay(self, parameter: Tensor, gradient: Tensor, group: dict) -> Tensor:
        """The gradient as it is: `update_wide` decays, in 32 bits."""
        return gradient

    def update(self, parameter: Tensor, gradient: Tensor, state: dict, group: dict) -> None:
        """Adam's update on 32-bit averages: a small tensor's own, or those that its codes stand for."""
        theta, gradient = parameter.reshape(-1), gradient.reshape(-1)
        if "qmap1" in state:
            self.update_in_stretches(theta, gradient, state, group)
        else:
            averages = {name: state[f"state{number}"].view(-1) for number, name in self.names.items()}
            self.update_wide(theta, gradient, {"step": state["step"], **averages}, group)
        if not parameter.is_contiguous():  # such as a convolution's in channels_last: θ is a copy
            parameter.copy_(theta.view(parameter.shape))

    def update_in_stretches(
        self, theta: Float[Tensor, " n"], gradient: Float[Tensor, " n"], state: dict, group: dict
    ) -> None:
        """Stretch by stretch: dequantize both averages, update, quantize them again."""
        block = group["block_size"]
        blocks = max(1, stretch_on(theta.device.type) // block)
        for first in range(0, len(state["absmax1"]), blocks):
            part = slice(first * block, (first + blocks) * block)
            scales = slice(first, first + blocks)
            averages = {"step": state["step"]}
            for number, name in self.names.items():
                codes = state[f"state{number}"].view(-1)[part]
                absmax = state[f"absmax{number}"][scales]
                averages[name] = dequantize(codes, absmax, state[f"qmap{number}"], block, _widen(theta.dtype))
            self.update_wide(theta[part], gradient[part], averages, group)
            for number, name in self.names.items():
                # Popped, the average is freed as soon as it is scaled.
                codes, absmax = quantize(averages.pop(name), state[f"qmap{number}"], block)
                state[f"state{number}"].view(-1)[part] = codes
                state[f"absmax{number}"][scales] = absmax

    def update_wide(
        self, theta: Float[Tensor, " n"], gradient: Float[Tensor, " n"], averages: dict, group: dict
    ) -> None:
        """AdamW's own equations in the averages' dtype, also where θ has 16 bits."""
        wide = theta.to(averages["exp_avg"].dtype)
        super().decay(wide, gradient, group)
        super().update(wide, gradient.to(wide.dtype), averages, group)
        theta.copy_(wide)

    def load_state_dict(self, state_dict: dict) -> None:
        """Load the state as it was saved: torch's method turns the codes into the parameter's dtype."""
        super().load_state_dict(state_dict)
        for number, parameter in enumerate(p for group in self.param_groups for p in group["params"]):
            saved = dict(state_dict["state"].get(number, {}))
            for name, value in saved.items():
                saved[name] = value.to(parameter.device, copy=True) if isinstance(value, Tensor) else value
            shared = {f"qmap{average}": codebook for average, codebook in self.codebooks(parameter.device).items()}
            saved.update({name: codebook for name, codebook in shared.items() if name in saved})
            self.state[parameter] = saved

    @classmethod
    def state_bytes(cls, shape: Sequence[int], itemsize: int = 4, **options) -> int:
        """Bytes of state for one parameter tensor, without the two codebooks, which all tensors share (`shared_bytes`)."""
        options = {**cls.defaults, **options}
        elements = prod(shape)
        if elements < options["min_8bit_size"]:
            return 2 * elements * max(4, itemsize)
        return 2 * (elements + 4 * -(-elements // options["block_size"]))

    @staticmethod
    def shared_bytes() -> int:
        """Bytes of the two codebooks of 256 float32."""
        return 2 * 256 * 4

    @classmethod
    def temporary_bytes(cls, shape: Sequence[int], itemsize: int = 4, device: str = "cpu", **options) -> int:
        """Bytes that the update of one 32-bit tensor needs for a moment, on a device of that type.

        For each element of a stretch they are 17: while one average is quantized, the other, its own scaled values and their
        look-up; and 4 for each block. A small tensor needs its denominator only.
        """
        options = {**cls.defaults, **options}
        elements = prod(shape)
        if elements < options["min_8bit_size"]:
            return 4 * elements
        stretch = min(elements, stretch_on(device))
        return 17 * stretch + 4 * -(-stretch // options["block_size"])


class AdamW8bit(Adam8bit):
    """`Adam8bit` with a default λ of 0.01. Nothing else differs, since the decay of both is decoupled."""

    defaults = {**Adam8bit.defaults, "weight_decay": 1e-2}


def stretch_on(device: str) -> int:
    """Elements that are updated at a time: few fit a CPU's cache, a GPU's kernels want many."""
    return 2**16 if device == "cpu" else 2**24


def _widen(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)
