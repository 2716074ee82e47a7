import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from course_utils.precision import FORMATS, OperatorTypes, exponent_counts, gradients_of, loss_in, watch_finite


def test_linear_layers_are_seen_in_the_type_autocast_gives_them():
    layer, x = nn.Linear(4, 3), torch.randn(2, 4)
    for dtype, name in ((torch.bfloat16, "bfloat16"), (torch.float16, "float16")):
        with OperatorTypes() as seen, torch.autocast("cpu", dtype):
            layer(x).float().sum().backward()
        assert seen.of_linear_layers == {name}
    with OperatorTypes() as seen:
        layer(x).sum().backward()
    assert seen.of_linear_layers == {"float32"}


def test_the_table_has_a_row_per_operator_and_types():
    x = torch.randn(3, 3)
    with OperatorTypes() as seen:
        for _ in range(4):
            x.bfloat16()
        torch.arange(3)
    assert seen.frame().loc["to_copy"].tolist() == ["float32", "bfloat16", 4]
    assert list(seen.frame().index) == ["to_copy"]


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def test_a_healthy_step_finds_nothing():
    model = make_model()
    with watch_finite(model) as seen:
        model(torch.ones(1, 3)).sum().backward()
    assert seen.first is None


def test_a_broken_parameter_is_named_with_its_place():
    model = make_model()
    model[2].weight.data[1, 3] = torch.nan
    with watch_finite(model) as seen:
        model(torch.ones(1, 3)).sum().backward()
    assert seen.first == "the parameter 2.weight holds nan at (1, 3) (12.5% of it is not finite)"


def test_the_first_output_that_overflows_is_named_before_those_that_follow():
    model = make_model().half()
    model[0].weight.data.fill_(60_000.0)
    with watch_finite(model) as seen:
        model(torch.full((1, 3), 2.0, dtype=torch.float16)).float().sum().backward()
    assert seen.first.startswith("the output of 0 holds inf at (0, 0)")
    assert any(line.startswith("the output of the model") for line in seen.found)


def test_a_gradient_that_overflows_in_backward_is_named():
    model = make_model()
    with watch_finite(model) as seen:
        (model(torch.ones(1, 3)) * torch.inf).sum().backward()
    assert seen.first.startswith("the gradient of the output of")
    assert any("the gradient of the parameter 0.weight" in line for line in seen.found)
    assert not model[0]._forward_hooks


def test_exponents_are_counted_by_power_of_two():
    counts = exponent_counts([torch.tensor([1.0, 1.99, 2.0, -0.3, 0.0, torch.inf, torch.nan])])
    assert counts == {0: 2, 1: 1, -2: 1}


@pytest.mark.parametrize("scale", [1.0, 2.0**10, 2.0**30])
def test_what_a_format_loses_is_what_torch_s_cast_loses(scale):
    values = 10 ** torch.linspace(-12, 3, 4001, dtype=torch.float64)
    cast = (values * scale).half()
    lost = loss_in([values], FORMATS["fp16"], scale)
    assert lost.vanished == (cast == 0).double().mean().item()
    assert lost.overflowed == cast.isinf().double().mean().item()
    assert lost.subnormal == ((cast != 0) & (cast < 2.0**-14)).double().mean().item()
    assert loss_in([torch.zeros(3)], FORMATS["fp16"]).vanished == 0


def test_gradients_of_outputs_and_parameters_are_collected():
    model = make_model()
    x = torch.randn(5, 3)
    found = gradients_of(model, lambda: model(x).sum())
    assert sorted(tuple(g.shape) for g in found) == sorted([(5, 2), (5, 4), (4, 3), (4,), (2, 4), (2,)])
    assert torch.equal(next(g for g in found if g.shape == (5, 2)), torch.ones(5, 2))
    assert all(p.grad is None for p in model.parameters())


def test_a_layer_that_needs_no_gradient_is_left_out():
    model = make_model()
    model[0].requires_grad_(False)
    found = gradients_of(model, lambda: model(torch.ones(5, 3)).sum())
    assert sorted(tuple(g.shape) for g in found) == [(2,), (2, 4), (5, 2)]


def test_a_weight_that_two_layers_share_is_counted_once():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    found = gradients_of(model, lambda: model(torch.ones(5, 3)).sum())
    assert sorted(tuple(g.shape) for g in found) == [(3,), (3,), (3, 3), (5, 3), (5, 3)]


def test_gradients_are_those_without_checkpointing():
    class Checkpointed(nn.Module):
        def __init__(self, reentrant):
            super().__init__()
            self.inner, self.reentrant = make_model(), reentrant

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=self.reentrant)

    for reentrant in (True, False):
        model, x = Checkpointed(reentrant), torch.ones(5, 3, requires_grad=True)
        expected = gradients_of(model.inner, lambda model=model, x=x: model.inner(x).sum())
        found = gradients_of(model, lambda model=model, x=x: model(x).sum())
        parameters = [p for p in found if p.shape[0] != 5]
        assert all(torch.equal(a, b) for a, b in zip(parameters, expected[2:], strict=True))
        assert len(found) >= len(expected) - 1
