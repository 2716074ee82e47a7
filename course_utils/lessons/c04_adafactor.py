"""Chapter 04: estimates of a matrix from its rows and columns, gradients of any scale, and the chapter's figures."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from course_utils.errors import CourseError
from course_utils.optim.adafactor import rank_one, rms
from course_utils.training.gradients import relative_error
from course_utils.viz.labels import TEXT_GROUND
from course_utils.viz.plots import add_title, lines, panels


def row_means(squares: torch.Tensor) -> torch.Tensor:
    """R: the mean of each row, of shape (…, rows, 1)."""
    return squares.mean(-1, keepdim=True)


def column_means(squares: torch.Tensor) -> torch.Tensor:
    """C: the mean of each column, of shape (…, 1, columns)."""
    return squares.mean(-2, keepdim=True)


def estimate_from_means(squares: torch.Tensor) -> torch.Tensor:
    """What is left of `squares` when only the means of its rows and columns are kept."""
    return rank_one(row_means(squares), column_means(squares), torch.finfo(squares.dtype).tiny)


def random_squares(rank: int, rows: int, columns: int, noise: float, seed: int = 0) -> torch.Tensor:
    """A positive matrix for experiments, in 64 bits: a sum of `rank` products of a column and a row, times noise.

    The logarithms of the factors and of the noise are normal; `noise` is the deviation of the latter.
    """
    generator = torch.Generator().manual_seed(seed)
    shapes = (rows, rank), (rank, columns), (rows, columns)
    left, right, dirt = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return (1.5 * left).exp() @ (1.5 * right).exp() * (noise * dirt).exp()


SMALL_SCALES = tuple(10.0**exponent for exponent in range(-18, 1))


def change_at_scales(make_optimizer: Callable, scales: Sequence[float]) -> list[float]:
    """How much the displacement d of a parameter matrix changes when all its gradients are multiplied by each of `scales`.

    `make_optimizer` is called with a list of parameters. The change is ‖d − d₁‖ / ‖d₁‖, where d₁ is that at scale 1, in 32 bits.
    The gradients have rows and columns of scales of their own, about a decade apart, as those of a model have.
    """
    gradients = _random_gradients()
    reference = _displace(make_optimizer, gradients)
    return [relative_error(_displace(make_optimizer, gradients * scale), reference) for scale in scales]


def step_in_bfloat16(make_optimizer: Callable, scale: float, seed: int = 0) -> dict[str, float]:
    """How the first step in bfloat16, for a gradient times `scale`, differs from the step in 32 bits at scale 1.

    The gradient is the first of `change_at_scales`. "change" is ‖step − step₁‖ / ‖step₁‖ and "length" ‖step‖ / ‖step₁‖;
    "cosine" is that of the angle between the step and −g: 1 where the step is the gradient itself, times a number.
    """
    gradient = _random_gradients(seed)[:1]
    reference = _displace(make_optimizer, gradient)
    step = _displace(make_optimizer, (scale * gradient).bfloat16()).float()
    return {
        "change": relative_error(step, reference),
        "length": (step.norm() / reference.norm()).item(),
        "cosine": torch.cosine_similarity(step.flatten(), -gradient.flatten(), 0).item(),
    }


def record_lengths(kind: type) -> type:
    """A subclass of `kind`, an Adafactor, that notes RMS(U) before clipping of each matrix and step in `lengths`."""

    class LengthRecorder(kind):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.lengths = []

        def normalize(self, gradient: torch.Tensor, state: dict, group: dict):
            direction = super().normalize(gradient, state, group)
            if "row_var" in state:
                self.lengths.append(rms(direction))
            return direction

    return LengthRecorder


def mean_of_last_ten(histories: Sequence) -> list[float]:
    """The mean loss of the last ten steps of each run."""
    return [sum(history.losses[-10:]) / len(history.losses[-10:]) for history in histories]


def _random_gradients(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    rows, columns = (10 ** (0.5 * torch.randn(shape, generator=generator)) for shape in ((16, 1), (1, 24)))
    return rows * columns * torch.randn(5, 16, 24, generator=generator)


def _displace(make_optimizer: Callable, gradients: torch.Tensor) -> torch.Tensor:
    theta = torch.zeros(gradients.shape[1:], dtype=gradients.dtype, requires_grad=True)
    optimizer = make_optimizer([theta])
    for gradient in gradients:
        theta.grad = gradient.clone()
        optimizer.step()
    return theta.detach()


def outer_products(
    model: torch.nn.Module, layer: torch.nn.Linear, batch: Mapping[str, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """(δ, x) of every token of `batch` in `layer`, of shapes (examples, tokens, n) and (examples, tokens, m), in 64 bits.

    The gradient of the layer's weight is the sum of their outer products δ xᵀ. Where the layer sees one vector per example
    there is one token.
    """
    seen = {}
    hooks = (
        layer.register_forward_hook(lambda _, inputs, __: seen.update(x=inputs[0])),
        layer.register_full_backward_hook(lambda _, __, outputs: seen.update(delta=outputs[0])),
    )
    model.zero_grad()
    model(**batch).loss.backward()
    for hook in hooks:
        hook.remove()
    delta, x = (seen[name].detach().double().cpu() for name in ("delta", "x"))
    return (delta, x) if delta.ndim == 3 else (delta[:, None], x[:, None])


def mixed_terms_raise(model: torch.nn.Module, batch: Mapping[str, torch.Tensor]) -> list[bool]:
    """Whether the estimate of g² is worse with the mixed terms than without, for each linear layer of `model`."""
    raised = []
    for layer in (module for module in model.modules() if isinstance(module, torch.nn.Linear)):
        factors = outer_products(model, layer, batch)
        squares = [squared_sum(*factors, mixed=mixed) for mixed in (True, False)]
        with_mixed, without = (relative_error(estimate_from_means(matrix), matrix) for matrix in squares)
        raised.append(with_mixed > without)
    return raised


def squared_sum(delta: torch.Tensor, x: torch.Tensor, mixed: bool = True) -> torch.Tensor:
    """(Σ δ xᵀ)² element by element, over all but the last dimension; without `mixed` terms it is Σ δ² (x²)ᵀ."""
    delta, x = delta.flatten(0, -2), x.flatten(0, -2)
    return (delta.T @ x) ** 2 if mixed else (delta**2).T @ x**2


def squares_by_size(model: torch.nn.Module, layer: torch.nn.Linear, batches: Sequence) -> dict[str, torch.Tensor]:
    """g² of `layer` from one token, one text, one batch, and its mean over all `batches`; the model stays as it is.

    The token is the loudest one of the first text, by the norm of δ.
    """
    delta, x = outer_products(model, layer, batches[0])
    loudest = delta[0].norm(dim=-1).argmax()
    squares = [squared_sum(*outer_products(model, layer, batch)) for batch in batches]
    return {
        "one token": squared_sum(delta[0, loudest][None], x[0, loudest][None]),
        "one text": squared_sum(delta[0], x[0]),
        "one batch": squares[0],
        f"mean of {len(squares)} batches": sum(squares) / len(squares),
    }


def factoring_figure() -> tuple[Figure, str]:
    """A matrix of squares, the means that are kept of it, and what they give back."""
    squares = random_squares(2, 4, 5, noise=0.4, seed=3)
    estimated = estimate_from_means(squares)
    error = f"{relative_error(estimated, squares):.0%}"
    figure, axes = panels(2, 4, height=2.8, width_ratios=(5, 1, 4.5, 5), height_ratios=(1, 4))
    matrices = {
        (0, 0): (column_means(squares), "C: 5 column means"),
        (1, 0): (squares, "V: 4 × 5 = 20 numbers"),
        (1, 1): (row_means(squares), "R: 4\nrow means"),
        (1, 3): (estimated, f"V̂, error ‖V − V̂‖ / ‖V‖: {error}"),
    }
    for panel in axes.flat:
        panel.axis("off")
    for place, (matrix, name) in matrices.items():
        _draw_heat(axes[place], matrix, _color_limits(squares, estimated), xticks=(), yticks=(), xlabel=name)
        for (row, column), value in np.ndenumerate(matrix.numpy()):
            axes[place].text(column, row, f"{value:.2g}", ha="center", va="center", fontsize=6.5, bbox=TEXT_GROUND)
    axes[1, 2].text(0.5, 0.6, "keep 4 + 5 = 9\nof 20 numbers", ha="center")
    axes[1, 2].annotate("", (0.95, 0.5), (0.05, 0.5), arrowprops={"arrowstyle": "-|>"})
    return figure, (
        "A matrix of 4 by 5 squares in shades by size; the means of its 4 rows and 5 columns, which alone are kept; "
        f"and the matrix that they give back, with an error of {error}."
    )


def estimate_figure(squares: torch.Tensor, name: str) -> tuple[Figure, str]:
    """V, its estimate from rows and columns, and their ratio, in colors; of a large V the first 64 rows and columns.

    Raises `CourseError` where V is no matrix with a positive number.
    """
    squares = squares.detach().double().cpu()
    if squares.ndim != 2 or not (squares > 0).any():
        raise CourseError("The figure needs a matrix of squares with at least one number above 0.")
    estimated = estimate_from_means(squares)
    ratio = estimated / squares
    share = (ratio[squares > 0].log2().abs() <= 1).double().mean().item()
    off = relative_error(estimated, squares)
    error = f"{off:.1%}" if off > 1e-9 else f"{off:.0e}"
    limits = _color_limits(squares, estimated)
    labels = {"xlabel": f"column of {squares.shape[1]}", "ylabel": f"row of {squares.shape[0]}"}
    figure, axes = panels(1, 3, height=3.1, sharey=True)
    _draw_heat(axes[0], squares, limits, title="V", **labels)
    number = _draw_heat(axes[1], estimated, limits, title="V̂, from rows and columns", **labels)
    quotient = _draw_heat(axes[2], ratio, (-0.6, 0.6), "RdBu_r", title="V̂ / V", **labels)
    figure.colorbar(number, ax=axes[:2], location="bottom", aspect=40, label="log₁₀ of V and of V̂")
    figure.colorbar(quotient, ax=axes[2], location="bottom", label="log₁₀ of the ratio", extend="both")
    text = "A matrix of {} by {} squares, its estimate from row and column means, and their ratio, in colors by size."
    title = f"{name}: error {error}, within a factor of 2 at {share:.0%}"
    return add_title(figure, title, text.format(*squares.shape))


def play_estimate(rank: int = 1, noise: float = 0.0, rows: int = 40, columns: int = 60) -> tuple[Figure, str]:
    """`estimate_figure` of a drawn matrix: a sum of `rank` products of a column and a row, times log-normal noise."""
    return estimate_figure(random_squares(rank, rows, columns, noise), f"rank {rank}, noise {noise:.2g}")


def small_gradients_figure(changes: Mapping[str, Sequence[float]], scales: Sequence[float]) -> tuple[Figure, str]:
    """How much of an update changes when all gradients are multiplied by each of `scales`, by optimizer."""
    data = {name: zip(scales, values, strict=True) for name, values in changes.items()}
    title = "With small gradients ε takes over, in PyTorch's Adafactor first"
    x, y = "scale of the gradients", "relative change of the steps"
    level = "as far off as no step at all"
    styles = {level: ("ink", ":")}
    return lines(data, title, x, y, log="x", styles=styles, levels={level: 1}, labels="legend", number=".2f")


def _color_limits(*matrices: torch.Tensor) -> tuple[float, float]:
    """Powers of ten that all but the smallest and largest two percent of the positive numbers lie between."""
    logarithms = torch.cat([m[m > 0].flatten() for m in matrices]).log10()
    some = logarithms[:: max(1, logarithms.numel() // 100_000)]
    return some.quantile(0.02).item(), max(some.quantile(0.98).item(), some.quantile(0.02).item() + 1e-3)


def _draw_heat(
    axes: Axes, values: torch.Tensor, limits: tuple[float, float], colors: str = "viridis", **labels
) -> AxesImage:
    """The logarithms of up to 64 rows and columns, in colors between `limits`; where a value is 0 it is blank."""
    corner = values[:64, :64].log10().numpy()
    axes.axis("on")
    axes.set(**labels)
    axes.grid(visible=False)
    return axes.imshow(corner, colors, aspect="auto", interpolation="nearest", vmin=limits[0], vmax=limits[1])
