"""Convolution, and the copies that the libraries behind it make on the CPU."""

from dataclasses import dataclass
from math import prod

import torch

from course_utils.memory.estimate.operations import FLOAT, HALF, cast
from course_utils.memory.estimate.tape import Gradients, Parameter, Tape, Tensor

SMALLEST_FOR_ONEDNN = 20480
"""Elements of a single picture up to which PyTorch convolves by itself (`ConvParams::use_mkldnn` in its Convolution.cpp)."""


@dataclass(frozen=True)
class Layout:
    """How one layer meets its library: `elements` of its input, `examples`, and where the channels are.

    A tensor of one channel is in both orders at once, and PyTorch takes it for channels first: so a layer that reads one
    channel writes them first (`reads_one`), and the next has to bring them last (`after_one`).
    """

    elements: int
    examples: int
    reads_one: bool = False
    after_one: bool = False


def convolution(tape: Tape, x: Tensor, weight: Parameter, shape: tuple, layout: Layout) -> Tensor:
    """A 3x3 convolution without bias to `shape`, channels last; saves x."""
    if tape.autocast:
        weight, x = cast(tape, weight, HALF), cast(tape, x, HALF)
    kernel = _kernel(tape, x, weight, shape, layout)
    saved = tape.save(x, weight)
    before = kernel.before()
    out = tape.new("convolved", shape, x.itemsize, needs_gradient=True)
    after = kernel.after()
    del before, after
    tape.record([out], [x, weight], saved, kernel.backward)
    return out


def _kernel(tape: Tape, x: Tensor, weight: Parameter, shape: tuple, layout: Layout) -> "_Kernel":
    of_x = (x.shape, x.itemsize) if x.slot else None
    arguments = tape, of_x, (x.shape, x.itemsize), (weight.shape, weight.itemsize), (shape, x.itemsize), layout
    if tape.device == "cuda":
        return _Kernel(*arguments)
    alone = layout.examples == 1 and layout.elements <= SMALLEST_FOR_ONEDNN
    return (_OneDnn if _onednn_takes(x.itemsize) and not alone else _Unfolded)(*arguments)


def _onednn_takes(itemsize: int) -> bool:
    in_half = itemsize < FLOAT
    return torch.backends.mkldnn.enabled and not (in_half and not torch.ops.mkldnn._is_mkldnn_bf16_supported())


@dataclass(frozen=True)
class _Kernel:
    """One way to convolve: here without any copies. Fields are (shape, itemsize); `of_x` is None where x takes no gradient."""

    tape: Tape
    of_x: tuple | None
    x: tuple
    weight: tuple
    out: tuple
    layout: Layout

    def before(self) -> list[Tensor]:
        """Copies made before there is an output, as long as it is computed."""
        return []

    def after(self) -> list[Tensor]:
        """Copies made after that."""
        return []

    def backward(self, gradients: Gradients) -> Gradients:
        """Gradients of x and of the weights."""
        return [self.of_x and self.tape.new("gradient", *self.of_x), self.tape.new("gradient", *self.weight)]

    def _x_brought_last(self) -> list[Tensor]:
        return [self.tape.new("input, channels last", *self.x)] if self.layout.after_one else []


class _Unfolded(_Kernel):
    """PyTorch's own: every window becomes a column of one large matrix."""

    def before(self):
        (examples, _, *sides), itemsize = self.out
        columns = (examples, prod(self.weight[0][1:]), *sides)
        return [*self._x_brought_last(), self.tape.new("windows, unfolded", columns, itemsize)]

    def backward(self, gradients):
        result = super().backward(gradients)
        self.before()
        return result


class _OneDnn(_Kernel):
    """oneDNN takes the weights in an order of its own, for the gradient of x too.

    The gradient of the weights comes in that order first, then in the usual one, then with the channels last.
    """

    def before(self):
        return self._x_brought_last()

    def after(self):
        copies = [self.tape.new("weights, reordered", *self.weight)]
        return [*copies, self.tape.new("output, reordered", *self.out)] if self.layout.reads_one else copies

    def backward(self, gradients):
        copies = self._x_brought_last()
        if self.layout.reads_one:
            copies.append(self.tape.new("gradient, reordered", *self.out))
        result = [self.of_x and self.tape.new("gradient", *self.of_x)]
        if self.of_x:
            self.tape.new("weights, reordered", *self.weight)
        copies += [self.tape.new("gradient, reordered", *self.weight) for _ in range(2)]
        return [*result, self.tape.new("gradient", *self.weight)]
