"""A matrix of non-negative numbers, kept as the means of its rows and of its columns (Shazeer & Stern 2018, section 3).

Everything works on the last two dimensions; those before them count the matrices, as the filters of a convolution do.
"""

from math import sqrt

import torch


def row_means(squares: torch.Tensor) -> torch.Tensor:
    """R: the mean of each row, of shape (…, n, 1) for n rows."""
    return squares.mean(-1, keepdim=True)


def column_means(squares: torch.Tensor) -> torch.Tensor:
    """C: the mean of each column, of shape (…, 1, m) for m columns."""
    return squares.mean(-2, keepdim=True)


def rank_one(rows: torch.Tensor, columns: torch.Tensor, floor: float = 0.0) -> torch.Tensor:
    """V̂ᵢⱼ = Rᵢ Cⱼ / mean(R), of shape (…, n, m); no mean counts as smaller than `floor`.

    mean(R) is the mean of the whole matrix, and so is mean(C). With sums in place of means it is the same matrix; sums and
    means mixed are wrong by a factor. Divided before multiplied, so that small numbers do not vanish on the way.
    """
    return (rows / rows.mean(-2, keepdim=True).clamp_(min=floor)) @ columns


def estimate(squares: torch.Tensor) -> torch.Tensor:
    """What is left of `squares` when only the means of its rows and columns are kept."""
    return rank_one(row_means(squares), column_means(squares), torch.finfo(squares.dtype).tiny)


def relative_error(squares: torch.Tensor, estimated: torch.Tensor) -> float:
    """‖V − V̂‖ / ‖V‖, root sums of squares over all elements."""
    return ((squares - estimated).norm() / squares.norm()).item()


def divergence(squares: torch.Tensor, estimated: torch.Tensor) -> float:
    """Σ V log(V / V̂) − V + V̂, the generalized Kullback-Leibler divergence.

    It is 0 where the two agree. Of all matrices of rank 1, `estimate` has the smallest (Shazeer & Stern 2018, section 3).
    """
    return (torch.xlogy(squares, squares) - torch.xlogy(squares, estimated) - squares + estimated).sum().item()


def best_of_rank_one(squares: torch.Tensor) -> torch.Tensor:
    """The matrix of rank 1 with the least `relative_error`, from the singular value decomposition. It needs all of V."""
    left, values, right = torch.linalg.svd(squares, full_matrices=False)
    return values[0] * torch.outer(left[:, 0], right[0])


def random_squares(rank: int, rows: int, columns: int, noise: float, seed: int = 0) -> torch.Tensor:
    """A positive matrix for experiments, in 64 bits: a sum of `rank` products of a column and a row, times noise.

    The logarithms of the factors and of the noise are normal; `noise` is the deviation of the latter.
    """
    generator = torch.Generator().manual_seed(seed)
    shapes = (rows, rank), (rank, columns), (rows, columns)
    left, right, dirt = (torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes)
    return (1.5 * left).exp() @ (1.5 * right).exp() * (noise * dirt).exp()


def rms(values: torch.Tensor) -> float:
    """The root of the mean of the squares; 0 where there are no values."""
    return values.norm().item() / sqrt(max(1, values.numel()))
