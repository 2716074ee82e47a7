"""Chapter 08's experiments, held against torch's casts and autocast, and its figures against their data."""

from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from course_utils.hardware import Operator, Prediction, Work, machine
from course_utils.lessons import c08_figures as figures
from course_utils.lessons import c08_mixed_precision as lesson
from course_utils.precision import FORMATS
from course_utils.training.profile import LOADING, Trace


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def test_linear_layers_are_seen_in_the_type_autocast_gives_them():
    layer, x = nn.Linear(4, 3), torch.randn(2, 4)
    for dtype, name in ((torch.bfloat16, "bfloat16"), (torch.float16, "float16")):
        with lesson.OperatorTypes() as seen, torch.autocast("cpu", dtype):
            layer(x).float().sum().backward()
        assert seen.of_linear_layers == {name}
    with lesson.OperatorTypes() as seen:
        layer(x).sum().backward()
    assert seen.of_linear_layers == {"float32"}


def test_the_table_has_a_row_per_operator_and_types():
    x = torch.randn(3, 3)
    with lesson.OperatorTypes() as seen:
        for _ in range(4):
            x.bfloat16()
        torch.arange(3)
    assert seen.frame().loc["to_copy"].tolist() == ["float32", "bfloat16", 4]
    assert list(seen.frame().index) == ["to_copy"]


def test_exponents_are_counted_by_power_of_two():
    counts = lesson.exponent_counts([torch.tensor([1.0, 1.99, 2.0, -0.3, 0.0, torch.inf, torch.nan])])
    assert counts == {0: 2, 1: 1, -2: 1}


@pytest.mark.parametrize("scale", [1.0, 2.0**10, 2.0**30])
def test_what_a_format_loses_is_what_torch_s_cast_loses(scale):
    values = 10 ** torch.linspace(-12, 3, 4001, dtype=torch.float64)
    cast = (values * scale).half()
    loss = lesson.underflow_in([values], FORMATS["fp16"], scale)
    assert loss.vanished == (cast == 0).double().mean().item()
    assert loss.overflowed == cast.isinf().double().mean().item()
    assert loss.subnormal == ((cast != 0) & (cast < 2.0**-14)).double().mean().item()
    assert lesson.underflow_in([torch.zeros(3)], FORMATS["fp16"]).vanished == 0


def test_gradients_of_outputs_and_parameters_are_collected():
    model = make_model()
    x = torch.randn(5, 3)
    outputs, parameters = lesson.gradients_of(model, lambda: model(x).sum())
    assert sorted(tuple(g.shape) for g in outputs) == [(5, 2), (5, 4)]
    assert [tuple(g.shape) for g in parameters] == [tuple(p.shape) for p in model.parameters()]
    assert torch.equal(next(g for g in outputs if g.shape == (5, 2)), torch.ones(5, 2))
    assert all(p.grad is None for p in model.parameters())


def test_a_layer_that_needs_no_gradient_is_left_out():
    model = make_model()
    model[0].requires_grad_(False)
    outputs, parameters = lesson.gradients_of(model, lambda: model(torch.ones(5, 3)).sum())
    assert [[tuple(g.shape) for g in part] for part in (outputs, parameters)] == [[(5, 2)], [(2, 4), (2,)]]


def test_a_weight_that_two_layers_share_is_counted_once():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    outputs, parameters = lesson.gradients_of(model, lambda: model(torch.ones(5, 3)).sum())
    assert [tuple(g.shape) for g in outputs] == [(5, 3), (5, 3)]
    assert sorted(tuple(g.shape) for g in parameters) == [(3,), (3,), (3, 3)]


def test_gradients_are_those_without_checkpointing():
    class Checkpointed(nn.Module):
        def __init__(self, reentrant):
            super().__init__()
            self.inner = make_model()
            self.reentrant = reentrant

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=self.reentrant)

    for reentrant in (True, False):
        model = Checkpointed(reentrant)
        x = torch.ones(5, 3, requires_grad=True)
        expected = lesson.gradients_of(model.inner, lambda model=model, x=x: model.inner(x).sum())
        outputs, parameters = lesson.gradients_of(model, lambda model=model, x=x: model(x).sum())
        assert all(torch.equal(a, b) for a, b in zip(parameters, expected[1], strict=True))
        assert len(outputs) >= len(expected[0])


def test_the_share_that_did_not_move():
    before = [torch.zeros(3), torch.zeros(1)]
    assert lesson.unmoved_share(before, [torch.tensor([0.0, 1.0, 0.0]), torch.ones(1)]) == 0.5


def test_gradients_of_outputs_pass_through_fp16_and_what_vanishes_is_counted():
    model, x = make_model(), torch.randn(5, 3)
    seen = lesson.round_output_gradients(model)
    sizes = torch.tensor([1.0, 1e-9])
    (model(x) * sizes).sum().backward()
    hidden = sizes[0] * model[2].weight[:1].expand(5, -1) * (model[0](x) > 0)  # that of 1e-9 is gone
    assert torch.equal(model[2].bias.grad, torch.tensor([5.0, 0.0]))
    assert torch.allclose(model[0].bias.grad, hidden.half().float().sum(0))
    assert seen == lesson.RoundingCount(10 + int((hidden != 0).sum()), 5)
    assert seen.share == seen.vanished / seen.all


def test_the_error_by_rounding_is_small_with_a_good_scale_and_all_with_none_left():
    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = make_model()

        def forward(self, x):
            return SimpleNamespace(loss=1e-3 * self.inner(x).square().mean())

    model = WithLoss()
    batch = {"x": torch.randn(5, 3)}
    good, none = (lesson.error_by_rounding(model, batch, scale) for scale in (2.0**10, 2.0**-40))
    assert good.keys() == dict(model.named_parameters()).keys()
    assert all(0 < error < 2.0**-10 for error in good.values())
    assert set(none.values()) == {1.0}
    loss = model(**batch).loss  # the hooks were hung on a copy
    assert torch.autograd.grad(loss, model.inner[2].bias)[0].abs().max() > 0


def test_a_call_is_predicted_from_its_work_and_timed():
    x = torch.ones(1000)
    times = lesson.time_call(lambda: x.clone(), machine("T4"))
    assert times["predicted"] == pytest.approx(1000 * 8000 / machine("T4").bandwidth)
    assert times["measured"] > 0


def test_a_steps_seconds_are_split_into_three_kinds():
    works = [
        ("aten.mm", Work("mm NN", flops=3)),
        ("aten._to_copy", Work("copy", bytes=5)),
        ("aten.add", Work("add", bytes=7)),
    ]
    unit_machine = replace(machine("T4"), flop_rates={"float32": 1.0}, bandwidth=1.0)
    split = lesson.seconds_by_kind(Prediction(unit_machine, tuple(Operator(*work) for work in works)))
    assert split == {"products": 3000, "conversions": 5000, "the rest": 7000}


def test_an_eighth_in_decimal_and_in_binary():
    assert lesson.in_decimal(0.125) == "+1.25 · 10^-1"
    assert lesson.in_binary(0.125) == "+1.0 · 2^-3"
    assert lesson.in_binary(-12.0) == "-1.5 · 2^3"
    assert lesson.in_binary(0.0) == "+0.0"
    assert FORMATS["fp16"].fields(FORMATS["fp16"].pattern(0.125)) == (0, -3 + 15, 0)


def pattern(name, value):
    return name, FORMATS[name].pattern(value), value


def test_the_lines_are_the_counts_and_what_vanishes_is_said():
    """Half of fp16's smallest number, 2^-25, is rounded to 0 as well, so a number at it is counted as not smaller."""
    outputs = lesson.exponent_counts([torch.tensor([2.0**-30, 1.5 * 2.0**-25, 0.25, 1.0, 1.5])])
    parameters = lesson.exponent_counts([torch.tensor([0.5, 0.25])])
    figure, alt = figures.exponents_figure(outputs, parameters)
    of_outputs, of_parameters, *edges = figure.axes[0].lines
    assert of_outputs.get_xydata().tolist() == [[-29.5, 20], [-24.5, 20], [-1.5, 20], [0.5, 40]]
    assert of_parameters.get_xydata().tolist() == [[-1.5, 50], [-0.5, 50]]
    assert [edge.get_xdata()[0] for edge in edges] == [-25, -17, -10]
    assert "20.0% of outputs' gradients vanish in fp16, 0.0% of parameters'" in alt


def test_neighbors_stand_one_spacing_apart_and_change_at_a_power_of_two():
    figure, _ = figures.number_figure(pattern("fp8 e4m3", 2.0))
    marks = figure.axes[1].lines[0].get_xdata()
    assert list(marks) == [x / 16 for x in range(12, 16)] + [x / 8 for x in range(8, 16)] + [
        x / 4 for x in range(8, 14)
    ]


def test_a_number_too_large_is_said_to_be_infinite():
    _, alt = figures.number_figure(pattern("fp16", 1e6))
    assert "1000000 in fp16 is inf. " in alt


def test_the_traces_figures_draw_its_spans_and_hatch_its_gaps():
    """Two steps of 10 ms; before the second the loader takes 40 ms."""
    rows = [
        ("step", "", 0.0, 10.0),
        ("step", "", 10.0, 60.0),
        (LOADING, LOADING, 0.0, 1.0),
        (LOADING, LOADING, 10.0, 51.0),
    ]
    for later in (0.0, 50.0):
        for name, start, end in (("forward", 1.0, 4.0), ("backward", 4.0, 9.0), ("update", 9.0, 10.0)):
            times = (start + later, end + later)
            rows += [("phase", name, *times), ("operator", f"aten::{name}", *times)]
    spans = pd.DataFrame(rows, columns=["kind", "name", "start", "end"])
    spans[["start", "end"]] /= 1000
    trace = Trace(spans.assign(own=spans["end"] - spans["start"]))
    figure, alt = figures.trace_figure(trace, "two steps")
    axes = figure.axes[0]
    first, gap = [patch for patch in axes.patches if patch.get_hatch()]
    assert (first.get_x(), first.get_width()) == (0, pytest.approx(1))
    assert (gap.get_x(), gap.get_width()) == (pytest.approx(10), pytest.approx(41))
    lengths = [sum(p.get_width() for p in axes.patches if round(p.get_y() + 0.37) == lane) for lane in range(5)]
    assert lengths == pytest.approx([42, 6, 10, 2, 18])
    for text in (
        "data loader × 2 (42.0 ms)",
        "forward × 2 (6.00 ms)",
        "backward × 2 (10.0 ms)",
        "update × 2 (2.00 ms)",
    ):
        assert text in alt
    assert "no operator runs × 2 (42.0 ms)" in alt

    figure, alt = figures.operator_seconds_figure(trace.operator_seconds(), top=1)
    axes = figure.axes[0]
    assert sum(patch.get_width() for patch in axes.patches) == pytest.approx(100)
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["aten::backward", "2 others"]
    assert [text.get_text().strip() for text in axes.texts] == ["56%", "44%"]
    assert "aten::backward: 56%" in alt
