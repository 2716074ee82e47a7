"""The engine: variables that remember how they were made, and the walk back that gives their gradients.

Names are torch's where the thing is the same: `requires_grad`, `grad`, `backward`, `retain_graph`.
"""

from dataclasses import dataclass

import numpy as np

from course_utils.errors import CourseError


@dataclass
class Version:
    """How often an array was changed in place; a variable and all that was saved of it share one."""

    changes: int = 0


@dataclass(frozen=True)
class Saved:
    """What a primitive keeps from forward to backward: an array, or a plain number, which takes no array.

    `name` says whose value it is; `version` is None for an array that no variable shows.
    """

    array: np.ndarray | float | None
    name: str
    version: Version | None = None
    changes: int = 0

    @property
    def changed(self) -> bool:
        """Whether the array is no longer what it was when it was saved."""
        return self.version is not None and self.version.changes != self.changes


class Primitive:
    """One operation that knows its derivative. A subclass writes `forward` and `backward`.

    `forward(*arrays)` computes, and passes to `self.save` what `backward` will need. `backward(gradient)` gets ∂f/∂output
    and returns ∂f/∂input for each input, or None. `needs` says of each input whether its gradient is wanted. An input of
    another shape that was broadcast needs no care: its gradient is summed to its shape afterwards.
    """

    symbol = "?"

    def __init__(self, inputs: tuple):
        self.inputs = inputs
        self.needs = tuple(isinstance(x, Variable) and x.requires_grad for x in inputs)
        self.kept: tuple[Saved, ...] | None = ()

    @classmethod
    def apply(cls, *inputs) -> "Variable":
        """The output for variables or plain numbers; recorded only where a gradient will be wanted."""
        operation = cls(inputs)
        result = operation.forward(*(x.value if isinstance(x, Variable) else x for x in inputs))
        output = Variable(result, requires_grad=any(operation.needs))
        if output.requires_grad:
            output.operation = operation
            operation.kept = tuple(operation._note(array, result, output) for array in operation.kept)
        return output

    def forward(self, *arrays: np.ndarray) -> np.ndarray:
        """The value."""
        raise NotImplementedError

    def backward(self, gradient: np.ndarray) -> tuple:
        """The chain rule: `gradient` times the local derivative, for each input."""
        raise NotImplementedError

    def save(self, *arrays) -> None:
        """Keep `arrays` (inputs, the result, anything) for backward; None holds a place where nothing is needed."""
        self.kept = arrays

    @property
    def saved(self) -> tuple:
        """What was saved; raises `CourseError` where it was freed, or changed in place since."""
        if self.kept is None:
            raise CourseError(
                f"What {self.symbol} saved was freed by an earlier backward; run the forward pass again, "
                "or pass retain_graph=True to the earlier backward."
            )
        for one in self.kept:
            if one.changed:
                raise CourseError(
                    f"{self.symbol} saved {one.name} for backward, and it has been changed in place since; "
                    "make a new variable instead."
                )
        return tuple(one.array for one in self.kept)

    def local_derivatives(self) -> tuple:
        """∂output/∂input for each input: what `backward` gives for a gradient of 1."""
        return self.backward(np.ones(()))

    def _note(self, array, result, output: "Variable") -> Saved:
        """`array` with the version of the variable that shows it, if one does."""
        if array is result:
            return Saved(output.value, f"the output of {self.symbol}", output.version, output.version.changes)
        for x in self.inputs:
            if isinstance(x, Variable) and x.value is array:
                return Saved(array, x.label, x.version, x.version.changes)
        return Saved(array, f"an array of {self.symbol}")


class Variable:
    """A number or an array, and how it came about. `requires_grad=False` is for data, of which no gradient is wanted.

    Integers become float64; float32 and float64 stay. After `backward`, `grad` holds the gradient in the value's shape.
    """

    def __init__(self, value, name: str = "", *, requires_grad: bool = True):
        value = np.asarray(value)
        self.value = value if value.dtype.kind == "f" else value.astype(np.float64)
        self.name, self.requires_grad = name, requires_grad
        self.grad: np.ndarray | None = None
        self.operation: Primitive | None = None
        self.version = Version()

    @property
    def parents(self) -> list["Variable"]:
        """The variables it was computed from directly, as often as each was used."""
        return [x for x in self.operation.inputs if isinstance(x, Variable)] if self.operation else []

    @property
    def label(self) -> str:
        """Its name, or what made it."""
        return self.name or (f"the output of {self.operation.symbol}" if self.operation else "an unnamed variable")

    def named(self, name: str) -> "Variable":
        """Itself, with a name for figures and messages."""
        self.name = name
        return self

    def assign_(self, value) -> None:
        """Change the value in place: the array stays where it is, its numbers are new."""
        self.value[...] = value
        self.version.changes += 1

    def backward(self, gradient=None, *, retain_graph: bool = False) -> None:
        """Add ∂self/∂leaf to the `grad` of every leaf that requires it; what forward saved is freed on the way.

        With `retain_graph` it stays, and the variables in between get their `grad` too, to be looked at. `gradient` is that
        of `self`, 1 by default. Raises `CourseError` for a default where `self` is no scalar, and as `Primitive.saved`.
        """
        pending = {self: self._first_gradient(gradient)}
        for variable in backward_order(self):
            if variable not in pending:
                continue
            arrived = pending.pop(variable)
            if variable.operation is None:
                # an array of its own: what arrives may be another leaf's too, as behind a sum
                variable.grad = np.array(arrived if variable.grad is None else variable.grad + arrived)
                continue
            _hand_on(variable.operation, arrived, pending)
            if retain_graph:
                variable.grad = arrived
            else:
                variable.operation.kept = None

    def _first_gradient(self, gradient) -> np.ndarray:
        if not self.requires_grad:
            raise CourseError("Nothing here requires a gradient; make a variable without requires_grad=False.")
        if gradient is None and self.value.size != 1:
            raise CourseError(
                f"backward() begins at one number, not at an array of shape {self.value.shape}; sum it up, or pass gradient=."
            )
        first = np.ones_like(self.value) if gradient is None else np.asarray(gradient, self.value.dtype)
        return np.broadcast_to(first, self.value.shape)

    def __repr__(self):
        return f"{self.name or 'Variable'}({self.value})"


def backward_order(output: Variable) -> list[Variable]:
    """Every variable that `output` was computed from, itself first, each after all that use it.

    Depth first without recursion, so that a graph may be deeper than Python's stack.
    """
    finished, seen, stack = [], set(), [(output, False)]
    while stack:
        variable, inputs_done = stack.pop()
        if inputs_done:
            finished.append(variable)
        elif variable not in seen:
            seen.add(variable)
            stack.append((variable, True))
            stack += [(x, False) for x in variable.parents]
    return finished[::-1]


def _hand_on(operation: Primitive, gradient: np.ndarray, pending: dict[Variable, np.ndarray]) -> None:
    """Each input's share of `gradient`, added to what other uses of that input have handed it."""
    for x, share in zip(operation.inputs, operation.backward(gradient), strict=True):
        if isinstance(x, Variable) and x.requires_grad:
            share = _summed_to(share, x.value.shape)
            pending[x] = pending[x] + share if x in pending else share


def _summed_to(gradient: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """`gradient` of a broadcast array as that of the array itself: each copy of a number counts."""
    gradient = np.asarray(gradient)
    gradient = gradient.sum(axis=tuple(range(gradient.ndim - len(shape))))
    repeated = tuple(axis for axis, size in enumerate(shape) if size == 1 and gradient.shape[axis] != 1)
    return gradient.sum(axis=repeated, keepdims=True) if repeated else gradient
