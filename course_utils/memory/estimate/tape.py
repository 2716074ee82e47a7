"""Reverse mode on sizes alone: operations write down what they save, and going back shows what each gradient needs.

No number is ever computed: a tensor here is a shape, the bytes of one element and the piece of memory behind it. Shapes
are numbers or expressions, so the same walk gives bytes and formulas.
"""

from collections.abc import Callable, Sequence
from math import prod

from course_utils.memory.estimate.log import Log, Piece

Gradients = list["Tensor | None"]
IN_16_BITS = "weights in 16 bits"
"""The part under which autocast's copies of the parameters are booked."""


class Slot:
    """The place where one gradient is gathered on the way back."""

    def __init__(self, shape: tuple, itemsize: int):
        self.shape, self.itemsize = shape, itemsize
        self.gradient: Tensor | None = None


class Tensor:
    """A shape of elements of `itemsize` bytes; `slot` is where its gradient is gathered, None where it needs none.

    `is_view` is said of gradients that show another tensor's memory.
    """

    __slots__ = ("is_view", "itemsize", "piece", "shape", "slot")

    def __init__(self, shape: tuple, itemsize: int, piece: Piece | None, slot: Slot | None = None):
        self.shape, self.itemsize, self.piece, self.slot = shape, itemsize, piece, slot
        self.is_view = False

    def as_view(self) -> "Tensor":
        """Itself, marked as one that shows another tensor's memory."""
        shown = Tensor(self.shape, self.itemsize, self.piece, self.slot)
        shown.is_view = True
        return shown

    def view(self, *shape) -> "Tensor":
        """The same memory and the same gradient in another shape."""
        return Tensor(shape, self.itemsize, self.piece, self.slot)


class Parameter(Tensor):
    """A tensor that is always there; its gradient stays after backward, until `gradient` is set to None."""

    __slots__ = ("gradient", "name", "part", "uses")

    def __init__(self, shape: tuple, itemsize: int, piece: Piece, name: str, part: str):
        super().__init__(shape, itemsize, piece, Slot(shape, itemsize))
        self.name, self.part = name, part
        self.gradient: Piece | None = None
        self.uses = 0  # gradients still to come in this backward pass


class _Stretch:
    """A checkpointed stretch of the forward pass: how to run it again, and how many tensors it saves."""

    def __init__(self, again: Callable[[], object], random_state: int):
        self.again, self.random_state, self.saves = again, random_state, 0
        self.recomputed: list[Piece | None] | None = None


class _Enough(Exception):  # noqa: N818 not an error: PyTorch, too, ends a recomputation by raising
    """The last tensor that backward needs is there."""


class _Node:
    def __init__(self, outputs, inputs, saved, backward, part):
        self.outputs: list[Slot] = outputs
        self.inputs: list[tuple[Slot | None, Parameter | None]] = inputs
        self.saved: list[Piece | tuple[_Stretch, int]] = saved
        self.backward: Callable[[Gradients], Gradients] = backward
        self.part: str = part


class Tape:
    """The operations of one forward pass; `backward` goes back over them. All that they make is booked in `log`.

    `device` is "cpu" or "cuda", whose operators differ; `autocast` says whether matrix products run in bfloat16. Of a
    finished gradient of n bytes `kept(n)` are kept: all, or this rank's part. What is `saved_on_disk` takes no memory.
    """

    def __init__(
        self,
        log: Log,
        device: str = "cpu",
        autocast: bool = False,
        kept: Callable = lambda size: size,
        saved_on_disk: bool = False,
    ):
        self.log, self.device, self.autocast, self._kept, self._on_disk = log, device, autocast, kept, saved_on_disk
        self.part, self._kind = "", "activations"
        self._nodes: list[_Node] = []
        self._stretch: _Stretch | None = None
        self._casts: dict[Parameter, Tensor] = {}

    def new(self, name: str, shape: tuple, itemsize: int, *, needs_gradient: bool = False) -> Tensor:
        """A tensor of new memory."""
        piece = self.log.new(prod(shape) * itemsize, self._kind, name, self.part)
        return Tensor(shape, itemsize, piece, Slot(shape, itemsize) if needs_gradient else None)

    @staticmethod
    def there(shape: tuple, itemsize: int) -> Tensor:
        """A tensor that is booked elsewhere and takes no gradient, such as an input."""
        return Tensor(shape, itemsize, None)

    def save(self, *tensors: Tensor) -> list:
        """Keep `tensors` for the way back; in a checkpointed stretch only their places are noted, for when it runs again."""
        stretch = self._stretch
        if self._on_disk:
            return []
        if stretch is None:
            return [tensor.piece for tensor in tensors]
        if stretch.recomputed is None:
            first, stretch.saves = stretch.saves, stretch.saves + len(tensors)
            return [(stretch, place) for place in range(first, stretch.saves)]
        stretch.recomputed += [tensor.piece for tensor in tensors]
        if tensors and len(stretch.recomputed) == stretch.saves:
            raise _Enough
        return []

    def record(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], saved, backward: Callable) -> None:
        """Write an operation down: `backward` maps the gradients of `outputs` to those of `inputs`, None where there is none.

        It must not hold on to a tensor; what it needs is in `saved`, one or the sum of several answers of `save`.
        """
        if self._stretch is not None and self._stretch.recomputed is not None:
            return  # run again: the nodes of the first time are still there
        parameters = [x if isinstance(x, Parameter) else None for x in inputs]
        for parameter in filter(None, parameters):
            parameter.uses += 1
        targets = [(x.slot, parameter) for x, parameter in zip(inputs, parameters, strict=True)]
        self._nodes.append(_Node([out.slot for out in outputs], targets, saved, backward, self.part))

    def cached_cast(self, parameter: Parameter, cast: Callable[[], Tensor]) -> Tensor:
        """Autocast casts a parameter once and keeps the copy until the forward pass (or a recomputation) ends.

        Backward needs it too, so what it saved keeps it longer; all copies are one part, since they are no small one.
        """
        if parameter not in self._casts:
            copy = self._casts[parameter] = cast()
            copy.piece.become(self._kind, f"{parameter.name} in 16 bits", IN_16_BITS)
        return self._casts[parameter]

    def end_forward(self) -> None:
        """The end of autocast's context, which drops its copies."""
        self._casts.clear()

    def checkpoint(self, run: Callable[[Tensor], Tensor], x: Tensor, random_state: int) -> Tensor:
        """`run(x)`, saving only `x`; on the way back it runs again (Chen et al. 2016; `use_reentrant=False`).

        `random_state` bytes are kept with it, so that dropout falls the same way again.
        """
        state = self.log.new(random_state, self._kind, "state of the random numbers", self.part)
        self._stretch = _Stretch(lambda state=state: run(x), random_state)
        try:
            return run(x)
        finally:
            self._stretch = None

    def backward(self, loss: Tensor) -> None:
        """Go back from `loss`; each node lets go of what it saved as soon as it has run."""
        self._kind, self.part = "temporaries", ""
        loss.slot.gradient = self.new("gradient of the loss", loss.shape, loss.itemsize)
        while self._nodes:
            node = self._nodes.pop()
            gradients = [slot.gradient for slot in node.outputs]
            for slot in node.outputs:
                slot.gradient = None
            if any(gradients):
                self._run(node, gradients)

    def _run(self, node: _Node, gradients: Gradients) -> None:
        if node.part != self.part:
            self.part = node.part
            self.log.mark(f"backward of {node.part}")
        if node.saved and isinstance(node.saved[0], tuple):
            self._recompute(node.saved[0][0])
        results = node.backward(gradients)
        gradients.clear()
        self._release(node)
        targets = list(node.inputs)
        while targets:
            self._deliver(*targets.pop(0), results.pop(0))

    def _recompute(self, stretch: _Stretch) -> None:
        if stretch.recomputed is not None:
            return
        part, self._stretch, self._kind = self.part, stretch, "recomputed"
        stretch.recomputed = []
        state_now = self.log.new(stretch.random_state, self._kind, "state of the random numbers", self.part)
        try:
            stretch.again()
        except _Enough:
            del state_now
        finally:
            self.part, self._stretch, self._kind = part, None, "temporaries"
            self.end_forward()

    @staticmethod
    def _release(node: _Node) -> None:
        for saved in node.saved:
            if isinstance(saved, tuple):
                stretch, place = saved
                stretch.recomputed[place] = None
        node.saved = []

    def _deliver(self, slot: Slot | None, parameter: Parameter | None, gradient: Tensor | None) -> None:
        if slot is None or gradient is None:
            return
        if gradient.itemsize != slot.itemsize:
            gradient = self.new("gradient, cast", slot.shape, slot.itemsize)
        if slot.gradient is None:
            slot.gradient = gradient
        elif slot.gradient.is_view:  # PyTorch adds in place only to memory that nothing else has shown
            slot.gradient = self.new("sum of gradients", slot.shape, slot.itemsize)
        if parameter is not None:
            parameter.uses -= 1
            if not parameter.uses:
                self._finish(parameter, slot)

    def _finish(self, parameter: Parameter, slot: Slot) -> None:
        """The first gradient is kept as it is, or this rank's part of it; the next micro-batch's is added in place."""
        if parameter.gradient is None:
            whole = prod(slot.shape) * slot.itemsize
            kept = self._kept(whole)
            parameter.gradient = slot.gradient.piece if kept is whole else self.log.new(kept, "gradients", "", "")
            parameter.gradient.become("gradients", parameter.name, parameter.part)
        slot.gradient = None
