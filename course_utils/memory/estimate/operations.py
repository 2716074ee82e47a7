"""What each operation allocates, saves for the way back, and allocates there, as PyTorch's operators do.

Every function takes the tape first and returns its output. `p` is a dropout probability.
"""

from collections.abc import Callable

from course_utils.memory.estimate.tape import Gradients, Parameter, Slot, Tape, Tensor

FLOAT, HALF, INDEX, BYTE = 4, 2, 8, 1


def share(size, parts):
    """`size / parts`, for numbers that divide without remainder and for expressions."""
    return size // parts if isinstance(size, int) else size / parts


def cast(tape: Tape, x: Tensor, itemsize: int) -> Tensor:
    """A copy in another precision, or `x` itself where it already has it."""
    if x.itemsize == itemsize:
        return x
    if isinstance(x, Parameter):
        return tape.cached_cast(x, lambda: _pointwise(tape, "weights, cast", x, itemsize=itemsize))
    return _pointwise(tape, "cast", x, itemsize=itemsize)


def in_32_bits(tape: Tape, x: Tensor) -> Tensor:
    """What autocast does on CUDA, and not on the CPU, before powers, softmax and layer normalization."""
    return cast(tape, x, FLOAT) if tape.autocast and tape.device == "cuda" else x


def linear(tape: Tape, x: Tensor, weight: Parameter, bias: Parameter | None = None, *, features, name: str) -> Tensor:
    """x Wᵀ + bias, to `features` columns; saves x (and, in autocast, its copies of x and W)."""
    if tape.autocast:
        bias = bias and cast(tape, bias, HALF)
        weight, x = cast(tape, weight, HALF), cast(tape, x, HALF)
    inputs = [x, weight, *([bias] if bias else [])]
    saved, rows_only = tape.save(x, weight), len(x.shape) == 2
    out = tape.new(name, (*x.shape[:-1], features), x.itemsize, needs_gradient=True)
    each = _one_for_each(tape, inputs)

    def backward(gradients: Gradients) -> Gradients:
        of_x, of_weight, *of_bias = each(gradients)  # a matrix each, shown as x and as Wᵀ are
        return [of_x if rows_only else of_x and of_x.as_view(), of_weight.as_view(), *of_bias]

    tape.record([out], inputs, saved, backward)
    return out


def embedding(
    tape: Tape, weight: Parameter, shape: tuple, name: str = "embedded tokens", ids: Tensor | None = None
) -> Tensor:
    """Rows of `weight` for ids of `shape`, saved where they are no input; its gradient is dense."""
    saved = tape.save(*([ids] if ids else []))
    out = tape.new(name, (*shape, weight.shape[-1]), weight.itemsize, needs_gradient=True)
    tape.record([out], [weight], saved, _one_for_each(tape, [weight]))
    return out


def add(tape: Tape, x: Tensor, y: Tensor, name: str = "sum") -> Tensor:
    """x + y in the wider precision; `y` may be broadcast. Saves nothing: the gradient passes on as it is."""
    saved, narrow = tape.save(), (y.shape, y.itemsize) if y.shape != x.shape else None
    widened = _widened(tape, x, y)
    out = tape.new(name, x.shape, max(x.itemsize, y.itemsize), needs_gradient=bool(x.slot or y.slot))
    del widened

    def backward(gradients: Gradients) -> Gradients:
        return [gradients[0], tape.new("summed gradient", *narrow) if narrow else gradients[0]]

    tape.record([out], [x, y], saved, backward)
    return out


def add_mask(tape: Tape, x: Tensor, mask: Tensor | None) -> Tensor:
    """x + mask in the wider precision, the mask taking no gradient."""
    if mask is None:
        return x
    widened = _widened(tape, x, mask)  # noqa: F841 lives until there is a sum
    return _pointwise(tape, "masked scores", x, itemsize=max(x.itemsize, mask.itemsize), passes=True)


def scale(tape: Tape, x: Tensor, name: str = "scaled") -> Tensor:
    """A number times x; saves nothing."""
    return _pointwise(tape, name, x)


def shift(tape: Tape, x: Tensor, name: str = "shifted") -> Tensor:
    """A number plus x; saves nothing, and the gradient passes on."""
    return _pointwise(tape, name, x, passes=True)


def multiply(tape: Tape, x: Tensor, y: Tensor, name: str) -> Tensor:
    """x · y in the wider precision, `y` perhaps broadcast; saves both where both take a gradient."""
    wide = max(x.itemsize, y.itemsize)
    saved, widened = tape.save(*([x, y] if y.slot else [y])), _widened(tape, x, y)
    out = tape.new(name, x.shape, wide, needs_gradient=True)
    del widened
    x_shape, y_shape, y_takes = x.shape, y.shape, y.slot is not None

    def backward(gradients: Gradients) -> Gradients:
        of_x = tape.new(f"gradient of {name}", x_shape, wide)
        of_y = tape.new(f"gradient of {name}", x_shape, wide) if y_takes else None
        if y_takes and y_shape != x_shape:
            of_y = tape.new(f"summed gradient of {name}", y_shape, wide)
        return [of_x, of_y]

    tape.record([out], [x, y], saved, backward)
    return out


def power(tape: Tape, x: Tensor, name: str = "power") -> Tensor:
    """x to a fixed power; saves x. Its gradient takes n xⁿ⁻¹ in two steps first."""
    x = in_32_bits(tape, x)
    saved = tape.save(x)
    out = tape.new(name, x.shape, x.itemsize, needs_gradient=True)
    like = x.shape, x.itemsize

    def backward(gradients: Gradients) -> Gradients:
        steps = [tape.new("n xⁿ⁻¹", *like) for _ in range(2)]
        steps.append(tape.new("gradient of the power", *like))
        return steps[-1:]

    tape.record([out], [x], saved, backward)
    return out


def mean(tape: Tape, x: Tensor, shape: tuple, name: str = "mean") -> Tensor:
    """A mean that leaves `shape`; saves nothing, the gradient is spread out again. The CPU sums 16 bits in 32."""
    saved = tape.save()
    out = tape.new(name, shape, x.itemsize, needs_gradient=True)
    if tape.device == "cpu" and x.itemsize < FLOAT:
        tape.new("in 32 bits", x.shape, FLOAT)
    tape.record([out], [x], saved, _one_for_each(tape, [x]))
    return out


def saves_input(tape: Tape, x: Tensor, name: str) -> Tensor:
    """A pointwise function such as GELU or SiLU that needs its input on the way back."""
    return _pointwise(tape, name, x, saved=tape.save(x))


def saves_output(tape: Tape, x: Tensor, name: str) -> Tensor:
    """A function such as ReLU, tanh, softmax or 1/√ whose derivative is known from its output."""
    out = tape.new(name, x.shape, x.itemsize, needs_gradient=True)
    tape.record([out], [x], tape.save(out), _one_for_each(tape, [x]))
    return out


def gelu_new(tape: Tape, x: Tensor) -> Tensor:
    """½ x (1 + tanh(√(2/π) (x + 0.044715 x³))), written out operation by operation as Transformers does."""
    half = scale(tape, x, "half of the input")
    inner = scale(tape, power(tape, x), "cubic term")
    inner = add(tape, x, inner)
    inner = scale(tape, inner)
    inner = saves_output(tape, inner, "tanh")
    inner = shift(tape, inner, "1 + tanh")
    return multiply(tape, half, inner, "activated")


def dropout(tape: Tape, x: Tensor, p: float, name: str = "dropped out") -> Tensor:
    """Zeros at random, saving the mask: on the CPU in the precision of x, on CUDA one byte an element."""
    if not p:
        return x
    mask = tape.new("dropout mask", x.shape, x.itemsize if tape.device == "cpu" else BYTE)
    return _pointwise(tape, name, x, saved=tape.save(mask))


def layer_norm(tape: Tape, x: Tensor, weight: Parameter, bias: Parameter) -> Tensor:
    """Layer normalization (Ba et al. 2016): saves x, and the mean and 1/σ of each token."""
    x = in_32_bits(tape, x)
    saved = tape.save(x, weight)
    statistics = weight.itemsize if tape.device == "cpu" else FLOAT
    out = tape.new("normalized", x.shape, x.itemsize, needs_gradient=True)
    moments = [tape.new(name, (*x.shape[:-1], 1), statistics) for name in ("mean", "1/σ")]
    saved += tape.save(*moments)
    inputs = [x, weight, bias]
    tape.record([out], inputs, saved, _one_for_each(tape, inputs))
    return out


def rms_norm(tape: Tape, x: Tensor, weight: Parameter) -> Tensor:
    """x / √(mean x² + ε) · weight (Zhang & Sennrich 2019) in 32 bits, operation by operation as Transformers does."""
    precision, x = x.itemsize, cast(tape, x, FLOAT)
    variance = mean(tape, power(tape, x), (*x.shape[:-1], 1))
    inverse = saves_output(tape, shift(tape, variance), "1/√")
    normalized = multiply(tape, x, inverse, "normalized")
    return multiply(tape, cast(tape, normalized, precision), weight, "normalized, weighted")


def contiguous(tape: Tape, x: Tensor, name: str) -> Tensor:
    """A copy in another order of elements; the gradient passes on."""
    return _pointwise(tape, name, x, passes=True)


def part_of(tape: Tape, x: Tensor, shape: tuple) -> Tensor:
    """A slice of x that shares its memory; its gradient is filled up with zeros."""
    saved = tape.save()
    out = Tensor(shape, x.itemsize, x.piece, Slot(shape, x.itemsize))
    tape.record([out], [x], saved, _one_for_each(tape, [x]))
    return out


def concatenate(tape: Tape, name: str, shape: tuple, *parts: Tensor) -> Tensor:
    """All parts in new memory; their gradients are views of the whole's."""
    saved, count = tape.save(), len(parts)
    out = tape.new(name, shape, parts[0].itemsize, needs_gradient=True)
    tape.record([out], list(parts), saved, lambda gradients: [gradients[0].as_view()] * count)
    return out


def gather_rows(tape: Tape, x: Tensor, shape: tuple) -> Tensor:
    """One row of each example; on the way back zeros are made and the rows put into them."""
    saved = tape.save()
    out = tape.new("chosen rows", shape, x.itemsize, needs_gradient=True)
    tape.record([out], [x], saved, _one_for_each(tape, [x]))
    return out


def cross_entropy(tape: Tape, logits: Tensor, labels: Tensor | None = None) -> Tensor:
    """Log-softmax, which is saved, and the mean negative log-likelihood; logits (tokens, classes).

    `labels` are saved too, where they are no input.
    """
    if tape.autocast:
        logits = cast(tape, logits, FLOAT)
    log_probabilities = saves_output(tape, logits, "log-probabilities")
    saved = tape.save(log_probabilities)
    loss = tape.new("loss", (), logits.itemsize, needs_gradient=True)
    total = tape.new("total weight", (), logits.itemsize)
    saved += tape.save(total, *([labels] if labels else []))
    tape.record([loss], [log_probabilities], saved, _one_for_each(tape, [log_probabilities]))
    return scale(tape, loss, "loss")


def batch_norm(tape: Tape, x: Tensor, weight: Parameter, bias: Parameter) -> Tensor:
    """Batch normalization (Ioffe & Szegedy 2015): saves x, and mean and 1/σ of each channel."""
    saved = tape.save(x, weight)
    out = tape.new("normalized", x.shape, x.itemsize, needs_gradient=True)
    moments = [tape.new(name, weight.shape, weight.itemsize) for name in ("mean", "1/σ")]
    saved += tape.save(*moments)
    inputs = [x, weight, bias]
    tape.record([out], inputs, saved, _one_for_each(tape, inputs))
    return out


def matrix_product(tape: Tape, x: Tensor, y: Tensor, shape: tuple, name: str) -> Tensor:
    """A product of two activations; saves both."""
    saved = tape.save(x, y)
    out = tape.new(name, shape, x.itemsize, needs_gradient=True)
    tape.record([out], [x, y], saved, _one_for_each(tape, [x, y]))
    return out


def fused(tape: Tape, inputs: list[Tensor], mask: list[Tensor], outputs: list[tuple]) -> Tensor:
    """One kernel that saves its inputs and all its outputs, each (name, shape, itemsize), and returns the first."""
    saved = tape.save(*inputs, *mask)
    first, *others = [tape.new(*output, needs_gradient=index == 0) for index, output in enumerate(outputs)]
    saved += tape.save(first, *others)
    tape.record([first], inputs, saved, _one_for_each(tape, inputs))
    return first


def regrouped(tape: Tape, x: Tensor, shape: tuple, *, copied_back: bool) -> Tensor:
    """A view of x in another order of dimensions; `copied_back` where its gradient must be copied into the old order."""
    saved, like = tape.save(), (x.shape, x.itemsize)
    out = Tensor(shape, x.itemsize, x.piece, Slot(shape, x.itemsize))

    def backward(gradients: Gradients) -> Gradients:
        return [tape.new("gradient, regrouped", *like) if copied_back else gradients[0].as_view()]

    tape.record([out], [x], saved, backward)
    return out


def split(tape: Tape, x: Tensor, count: int, shape: tuple) -> list[Tensor]:
    """`count` views of x of `shape`; their gradients are put together in new memory."""
    saved, like = tape.save(), (x.shape, x.itemsize)
    parts = [Tensor(shape, x.itemsize, x.piece, Slot(shape, x.itemsize)) for _ in range(count)]
    tape.record(parts, [x], saved, lambda gradients: [tape.new("gradients, together", *like)])
    return parts


def repeated(tape: Tape, x: Tensor, shape: tuple, name: str) -> Tensor:
    """Each group of x several times, in new memory; the gradient is summed over the copies."""
    saved, like = tape.save(), (x.shape, x.itemsize)
    out = tape.new(name, shape, x.itemsize, needs_gradient=True)
    tape.record([out], [x], saved, lambda gradients: [tape.new("summed gradient", *like)])
    return out


def _widened(tape: Tape, *operands: Tensor) -> list[Tensor]:
    """The CPU copies the narrower of two operands into the wider precision first; CUDA's kernels convert as they read."""
    wide = max(x.itemsize for x in operands) if tape.device == "cpu" else 0
    return [tape.new("operand, widened", x.shape, wide) for x in operands if x.itemsize < wide]


def _pointwise(
    tape: Tape, name: str, x: Tensor, *, itemsize: int | None = None, passes: bool = False, saved=None
) -> Tensor:
    """An output like x; on the way back a gradient like x, or with `passes` the same one."""
    saved = tape.save() if saved is None else saved
    out = tape.new(name, x.shape, itemsize or x.itemsize, needs_gradient=x.slot is not None)
    if out.slot is not None:
        tape.record([out], [x], saved, (lambda gradients: list(gradients)) if passes else _one_for_each(tape, [x]))
    return out


def _one_for_each(tape: Tape, inputs: list[Tensor]) -> Callable[[Gradients], Gradients]:
    """A new gradient for every input that takes one."""
    likes = [(x.shape, x.itemsize) if x.slot is not None else None for x in inputs]
    return lambda gradients: [tape.new("gradient", *like) if like else None for like in likes]
