"""Chapter 04: what an estimate of rank one keeps, and figures that draw the data and say it."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_utils.errors import CourseError
from course_utils.lessons import c04_adafactor as lesson
from course_utils.lessons.c04_adafactor import SMALL_SCALES, change_at_scales
from course_utils.optim import Adafactor, AdamW, HFAdafactor


def pictures(figure):
    return [axes.images[0].get_array() for axes in figure.axes if axes.images]


def test_the_estimate_stands_beside_the_matrix():
    squares = lesson.random_squares(2, 5, 6, noise=0.5)
    figure, alt = lesson.estimate_figure(squares, "Stripes")
    assert figure.get_suptitle().startswith("Stripes: error ")
    matrix, estimated, ratio = pictures(figure)[:3]
    assert torch.allclose(torch.as_tensor(matrix), squares.log10())
    assert torch.allclose(torch.as_tensor(estimated), lesson.estimate_from_means(squares).log10())
    assert torch.allclose(torch.as_tensor(ratio), (lesson.estimate_from_means(squares) / squares).log10())
    assert f"error {lesson.relative_error(lesson.estimate_from_means(squares), squares):.1%}" in alt


def test_a_large_matrix_is_drawn_in_part_and_zeros_stay_blank():
    squares = lesson.random_squares(1, 90, 70, noise=0.0)
    squares[3] = 0.0
    figure, alt = lesson.estimate_figure(squares, "zeros")
    assert pictures(figure)[0].shape == (64, 64)
    assert "90 by 70" in alt
    assert "error 0.0%" in alt or "e-1" in alt


@pytest.mark.parametrize("squares", [torch.zeros(3, 4), torch.ones(3)])
def test_nothing_to_draw_is_refused(squares):
    with pytest.raises(CourseError, match="matrix of squares"):
        lesson.estimate_figure(squares, "nothing")


def test_small_gradients_part_the_versions():
    """PyTorch's ε₁ matters first, Adam's ε later, ε₁ in the square last."""
    kinds = {"torch": Adafactor, "Adam": lambda p: AdamW(p, weight_decay=0), "paper": HFAdafactor}
    changes = {name: change_at_scales(kind, SMALL_SCALES) for name, kind in kinds.items()}
    first_kept = {
        name: next(s for s, change in zip(SMALL_SCALES, by_scale, strict=True) if change < 0.05)
        for name, by_scale in changes.items()
    }
    assert first_kept["paper"] < first_kept["Adam"] < first_kept["torch"]
    figure, alt = lesson.small_gradients_figure(changes, SMALL_SCALES)
    assert list(figure.axes[0].lines[0].get_ydata()) == changes["torch"]
    assert "paper" in alt


matrices = st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(0, 2**31))


@given(matrices)
@settings(deadline=None, max_examples=40)
def test_the_estimate_is_exact_for_rank_one_and_keeps_both_means(shape_and_seed):
    rows, columns, seed = shape_and_seed
    exact = lesson.random_squares(1, rows, columns, noise=0.0, seed=seed)
    torch.testing.assert_close(lesson.estimate_from_means(exact), exact, rtol=1e-12, atol=0)
    rough = lesson.random_squares(3, rows, columns, noise=1.0, seed=seed)
    predicted = lesson.estimate_from_means(rough)
    torch.testing.assert_close(lesson.row_means(predicted), lesson.row_means(rough), rtol=1e-12, atol=0)
    torch.testing.assert_close(lesson.column_means(predicted), lesson.column_means(rough), rtol=1e-12, atol=0)
    sums = rough.sum(1, keepdim=True) @ rough.sum(0, keepdim=True) / rough.sum()  # as the paper writes it
    torch.testing.assert_close(predicted, sums, rtol=1e-12, atol=0)


@given(matrices, st.floats(0.01, 1.0))
@settings(deadline=None, max_examples=40)
def test_no_matrix_of_rank_one_has_less_divergence(shape_and_seed, size):
    """Shazeer & Stern 2018, section 3."""
    rows, columns, seed = shape_and_seed
    squares = lesson.random_squares(2, rows, columns, noise=0.5, seed=seed)
    predicted = lesson.estimate_from_means(squares)
    generator = torch.Generator().manual_seed(seed)
    left, right = ((size * torch.randn(s, generator=generator)).exp() for s in ((rows, 1), (1, columns)))
    assert divergence(squares, predicted) <= divergence(squares, predicted * left * right) + 1e-9


def divergence(squares, estimated):
    """Σ V log(V / V̂) − V + V̂, the generalized Kullback-Leibler divergence, which is 0 where the two agree."""
    return (torch.xlogy(squares, squares) - torch.xlogy(squares, estimated) - squares + estimated).sum().item()


def linear(seed=0, examples=3, tokens=4):
    """A model whose loss is the mean over tokens, the layer in it, and a batch."""
    torch.manual_seed(seed)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.outer = torch.nn.Linear(5, 6), torch.nn.Linear(6, 2)

        def forward(self, x):
            return SimpleNamespace(loss=self.outer(self.inner(x).relu()).square().mean())

    model = Model().double()
    return model, model.inner, {"x": torch.randn(examples, tokens, 5, dtype=torch.float64)}


def test_the_outer_products_sum_to_the_gradient():
    model, layer, batch = linear()
    delta, x = lesson.outer_products(model, layer, batch)
    assert (delta.shape, x.shape) == ((3, 4, 6), (3, 4, 5))
    torch.testing.assert_close(lesson.squared_sum(delta, x), layer.weight.grad**2)
    assert not layer._forward_hooks
    assert not layer._backward_hooks


def test_without_mixed_terms_the_squares_are_summed():
    delta, x = torch.tensor([[1.0, 2.0], [1.0, -1.0]]), torch.tensor([[3.0, 1.0], [1.0, 1.0]])
    outer = [d[:, None] * i for d, i in zip(delta, x, strict=True)]
    torch.testing.assert_close(lesson.squared_sum(delta, x), (outer[0] + outer[1]) ** 2)
    torch.testing.assert_close(lesson.squared_sum(delta, x, mixed=False), outer[0] ** 2 + outer[1] ** 2)


def test_it_grows_from_an_exact_token_to_a_mean_of_batches():
    model, layer, batch = linear()
    _, _, other = linear(seed=1)
    growth = lesson.squares_by_size(model, layer, [batch, other])
    assert list(growth) == ["one token", "one text", "one batch", "mean of 2 batches"]
    token = growth["one token"]
    assert lesson.relative_error(lesson.estimate_from_means(token), token) < 1e-12
    assert lesson.relative_error(lesson.estimate_from_means(growth["one batch"]), growth["one batch"]) > 1e-3


@pytest.mark.parametrize("seed", range(3))
def test_bfloat16_turns_small_steps_before_it_shortens_them(seed):
    def steps(size, **options):
        return lesson.step_in_bfloat16(lambda p: Adafactor(p, lr=1e-2, **options), size, seed)

    assert steps(1.0)["change"] < 0.02
    assert steps(1e-2)["change"] > 0.5
    assert steps(1e-2)["length"] > 0.95
    assert steps(1e-4)["cosine"] == pytest.approx(1, abs=1e-3)
    lengths = [steps(size)["length"] for size in (1e-4, 1e-5)]
    assert lengths[0] / lengths[1] == pytest.approx(10, rel=0.05)
    small = steps(1e-5, eps=(1e-12, 1e-3))
    assert small["change"] < 0.02
    assert small["cosine"] < 0.6


def test_lengths_are_recorded_of_matrices_and_the_steps_stay():
    ends = []
    for kind in (Adafactor, lesson.record_lengths(Adafactor)):
        matrix, vector = torch.ones(3, 4), torch.ones(5)
        optimizer = kind([matrix, vector], lr=0.1)
        for p in (matrix, vector):
            p.grad = torch.full_like(p, 2.0)
        optimizer.step()
        ends.append(matrix)
    assert torch.equal(*ends)
    assert optimizer.lengths == pytest.approx([1.0])


def test_mixed_terms_are_weighed_layer_by_layer():
    model, layer, batch = linear()
    factors = lesson.outer_products(model, layer, batch)
    with_mixed, without = (
        lesson.relative_error(lesson.estimate_from_means(squares), squares)
        for squares in (lesson.squared_sum(*factors, mixed=mixed) for mixed in (True, False))
    )
    raised = lesson.mixed_terms_raise(model, batch)
    assert len(raised) == 2
    assert raised[0] == (with_mixed > without)


def test_the_last_ten_losses_are_averaged():
    history = SimpleNamespace(losses=[100.0] * 5 + [1.0, 3.0] * 5)
    assert lesson.mean_of_last_ten([history]) == [2.0]
