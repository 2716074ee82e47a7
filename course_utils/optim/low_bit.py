"""AdamW with averages of 16 and of 4 bits: its own update, between widening and rounding."""

from collections.abc import Sequence
from functools import cache
from math import prod

import torch
from jaxtyping import BFloat16, Float, Float32, UInt8
from torch import Tensor

from course_utils.optim.adam import AdamW
from course_utils.optim.adam8bit import AdamW8bit
from course_utils.optim.codebook import dynamic_codebook


def round_to_bf16(values: Float32[Tensor, "*shape"]) -> BFloat16[Tensor, "*shape"]:
    """Each float32 as one of the two bfloat16 numbers around it, the farther from 0 with a chance that makes the mean right.

    A bfloat16 is the upper half of a float32's bits. A random number added to the lower half carries into the upper one as
    often as it should.
    """
    noise = torch.randint(0, 2**16, values.shape, dtype=torch.int32, device=values.device)
    return (values.view(torch.int32) + noise & -(2**16)).view(torch.float32).bfloat16()


class AdamW16bit(AdamW):
    """AdamW whose averages are bfloat16, rounded at random, or with `stochastic=False` to nearest."""

    by_element = False
    defaults = {**AdamW.defaults, "stochastic": True}

    def new_state(self, parameter: Tensor, group: dict) -> dict:
        """Averages in bfloat16."""
        state = super().new_state(parameter, group)
        return {name: t if name == "step" else t.bfloat16() for name, t in state.items()}

    def update(self, parameter: Tensor, gradient: Tensor, state: dict, group: dict) -> None:
        """AdamW's, on float32 copies of both averages."""
        wide = {name: tensor.float() for name, tensor in state.items()}
        super().update(parameter, gradient, wide, group)
        for name in ("exp_avg", "exp_avg_sq"):
            state[name].copy_(round_to_bf16(wide[name]) if group["stochastic"] else wide[name])

    @classmethod
    def state_bytes(cls, shape: Sequence[int], itemsize: int = 4, **options) -> int:
        """Bytes of state for one parameter tensor, whatever its own type: two averages of 2 bytes, and a step counter."""
        return super().state_bytes(shape, 2)

    @classmethod
    def temporary_bytes(cls, shape: Sequence[int], itemsize: int = 4, **options) -> int:
        """Bytes that the update of one float32 tensor needs for a moment: both averages, and three steps of rounding one."""
        return 5 * 4 * prod(shape)


class AdamW4bit(AdamW8bit):
    """AdamW with 4-bit averages (Li et al. 2023) as torchao has it: `AdamW8bit` with 16 numbers, and two codes to a byte.

    m has a dynamic codebook, v equal steps without 0, which would divide by nearly nothing. A block of 128 has a scale.
    """

    defaults = {**AdamW8bit.defaults, "block_size": 128}

    def codebooks(self, device: torch.device) -> dict[int, Tensor]:
        """The codebooks of m and v."""
        return {1: dynamic_codebook(True, 4, 3, device=device), 2: steps_above_zero(device)}

    def new_state(self, parameter: Tensor, group: dict) -> dict:
        """Both averages at zero, with half as many bytes for codes."""
        state = super().new_state(parameter, group)
        for number in self.names:
            if f"absmax{number}" in state:
                state[f"state{number}"] = pack_nibbles(state[f"state{number}"])
        return state

    def update(self, parameter: Tensor, gradient: Tensor, state: dict, group: dict) -> None:
        """The 8-bit update, with a byte for each code while it lasts."""
        narrow = [name for name in ("state1", "state2") if state[name].dtype == torch.uint8]
        wide = {**state, **{name: unpack_nibbles(state[name], parameter.numel()) for name in narrow}}
        super().update(parameter, gradient, wide, group)
        state.update({name: pack_nibbles(wide[name]) for name in narrow})

    @classmethod
    def state_bytes(cls, shape: Sequence[int], itemsize: int = 4, **options) -> int:
        """Bytes of state for one parameter tensor: half a byte for each code, 4 for each scale, without the codebooks."""
        options = {**cls.defaults, **options}
        elements = prod(shape)
        if elements < options["min_8bit_size"]:
            return super().state_bytes(shape, itemsize, **options)
        return 2 * (-(-elements // 2) + 4 * -(-elements // options["block_size"]))

    @classmethod
    def temporary_bytes(cls, shape: Sequence[int], itemsize: int = 4, device: str = "cpu", **options) -> int:
        """Bytes that the update of one 32-bit tensor needs for a moment: a byte for each code, and packing or 8-bit AdamW."""
        elements = prod(shape)
        update_bytes = super().temporary_bytes(shape, itemsize, device, **options)
        if elements < {**cls.defaults, **options}["min_8bit_size"]:
            return update_bytes
        return 2 * elements + max(update_bytes, 5 * elements // 2)


@cache
def steps_above_zero(device: torch.device | str = "cpu") -> Float[Tensor, " 16"]:
    """1/16, 2/16, … 1: float32 (16,). The tensor is made once and shared: do not change it."""
    return torch.arange(1, 17, device=device) / 16


def pack_nibbles(codes: UInt8[Tensor, "..."]) -> UInt8[Tensor, " bytes"]:
    """Codes below 16, two to a byte, the first in the upper half; a last one alone is followed by 0."""
    upper, lower = torch.nn.functional.pad(codes.flatten(), (0, codes.numel() % 2)).view(-1, 2).unbind(1)
    return upper << 4 | lower


def unpack_nibbles(packed: UInt8[Tensor, " bytes"], count: int) -> UInt8[Tensor, " {count}"]:
    """The first `count` codes, a byte each."""
    return torch.stack([packed >> 4, packed & 15], 1).flatten()[:count]
