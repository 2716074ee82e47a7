"""Variables that remember how they were made, and the walk back that gives their gradients. Names are torch's."""

import numpy as np
from numpy.typing import ArrayLike

Gradients = tuple[np.ndarray | None, ...]
"""One for each input, in its shape; None where none is wanted."""


class Variable:
    """A number or an array, and how it came about. `requires_grad=False` is for data, of which no gradient is wanted."""

    def __init__(self, value: ArrayLike, name: str = "", *, requires_grad: bool = True):
        value = np.asarray(value)
        self.value = value if value.dtype.kind == "f" else value.astype(np.float64)
        self.name, self.requires_grad = name, requires_grad
        self.grad: np.ndarray | None = None
        self.grad_fn: Context | None = None  # None for a leaf
        self.version = [0]  # how often the value was changed in place, shared with what was saved of it

    def backward(self, gradient: ArrayLike | None = None, *, retain_graph: bool = False) -> None:
        """Add ∂self/∂leaf to the `grad` of every leaf that requires it, and free what forward saved.

        With `retain_graph` it stays, and the variables in between get their `grad` too. `gradient` is that of `self`.
        """
        gradients = {self: np.ones_like(self.value) if gradient is None else np.asarray(gradient, self.value.dtype)}
        for variable in backward_order(self):
            if variable not in gradients:
                continue
            gradient = gradients.pop(variable)
            ctx = variable.grad_fn
            if ctx is None:
                variable.grad = np.array(gradient if variable.grad is None else variable.grad + gradient)
                continue
            for x, share in zip(ctx.inputs, ctx.function.backward(ctx, gradient), strict=True):
                if isinstance(x, Variable) and x.requires_grad:
                    share = sum_to_shape(share, x.value.shape)
                    gradients[x] = gradients[x] + share if x in gradients else share
            if retain_graph:
                variable.grad = gradient
            else:
                ctx.saved = None

    def assign_(self, value: ArrayLike) -> None:
        """Change the value in place: the array stays where it is, its numbers are new."""
        self.value[...] = value
        self.version[0] += 1

    def __repr__(self):
        return f"{self.name or 'Variable'}({self.value})"


class Context:
    """One use of a function in the graph: its inputs, and what it saves from forward to backward."""

    def __init__(self, function: "type[Function]", inputs: tuple):
        self.function, self.inputs = function, inputs
        self.needs_input_grad = tuple(isinstance(x, Variable) and x.requires_grad for x in inputs)
        # (value, its name, its version, the version when it was saved)
        self.saved: list[tuple] | None = []

    @property
    def parents(self) -> list[Variable]:
        """The inputs that are variables."""
        return [x for x in self.inputs if isinstance(x, Variable)]

    def save_for_backward(self, *values: np.ndarray | float | None) -> None:
        """Keep arrays or numbers; None holds a place where nothing is needed."""
        symbol = self.function.symbol
        names = {id(x.value): (x.name or "an unnamed variable", x.version) for x in self.parents}
        for value in values:
            name, version = names.get(id(value), (f"the output of {symbol}", [0]))
            self.saved.append((value, name, version, version[0]))

    @property
    def saved_values(self) -> tuple:
        """What `save_for_backward` was given. Raises `RuntimeError` where it was freed, or changed in place since."""
        symbol = self.function.symbol
        if self.saved is None:
            raise RuntimeError(
                f"What {symbol} saved was freed by an earlier backward; pass retain_graph=True to that one."
            )
        for _, name, version, before in self.saved:
            if version[0] != before:
                raise RuntimeError(f"{symbol} saved {name} for backward, and it has been changed in place since.")
        return tuple(value for value, *_ in self.saved)


class Function:
    """An operation that knows its derivative; a subclass writes `forward` and `backward`, as in torch."""

    symbol = "?"

    @classmethod
    def apply(cls, *inputs: "Variable | ArrayLike") -> Variable:
        """The output for variables or plain numbers; recorded only where a gradient will be wanted."""
        ctx = Context(cls, inputs)
        result = cls.forward(ctx, *(x.value if isinstance(x, Variable) else x for x in inputs))
        output = Variable(result, requires_grad=any(ctx.needs_input_grad))
        if output.requires_grad:
            output.grad_fn = ctx
            for i, (value, name, _, _) in enumerate(ctx.saved):
                if value is result:  # a change of the output is one of what was saved
                    ctx.saved[i] = output.value, name, output.version, 0
        return output


def backward_order(output: Variable) -> list[Variable]:
    """Every variable that `output` was computed from, itself first, each after all that use it."""
    finished, seen = [], set()
    stack = [(output, False)]
    while stack:  # no recursion: a graph may be deeper than Python's stack
        variable, inputs_done = stack.pop()
        if inputs_done:
            finished.append(variable)
        elif variable not in seen:
            seen.add(variable)
            stack.append((variable, True))
            stack += [(x, False) for x in (variable.grad_fn.parents if variable.grad_fn else ())]
    return finished[::-1]


def sum_to_shape(gradient: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The gradient of an array that was broadcast: each copy of a number counts."""
    gradient = np.sum(gradient, axis=tuple(range(np.ndim(gradient) - len(shape))))
    repeated_axes = tuple(axis for axis, size in enumerate(shape) if size == 1 and gradient.shape[axis] != 1)
    return gradient.sum(axis=repeated_axes, keepdims=True) if repeated_axes else gradient
