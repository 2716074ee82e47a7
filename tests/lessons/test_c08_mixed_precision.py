"""Chapter 08's experiments, held against torch's casts and autocast, and its figures against their data."""

import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

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
    lost = lesson.underflow_in([values], FORMATS["fp16"], scale)
    assert lost.vanished == (cast == 0).double().mean().item()
    assert lost.overflowed == cast.isinf().double().mean().item()
    assert lost.subnormal == ((cast != 0) & (cast < 2.0**-14)).double().mean().item()
    assert lesson.underflow_in([torch.zeros(3)], FORMATS["fp16"]).vanished == 0


def test_gradients_of_outputs_and_parameters_are_collected():
    model = make_model()
    x = torch.randn(5, 3)
    found = lesson.gradients_of(model, lambda: model(x).sum())
    assert sorted(tuple(g.shape) for g in found) == sorted([(5, 2), (5, 4), (4, 3), (4,), (2, 4), (2,)])
    assert torch.equal(next(g for g in found if g.shape == (5, 2)), torch.ones(5, 2))
    assert all(p.grad is None for p in model.parameters())


def test_a_layer_that_needs_no_gradient_is_left_out():
    model = make_model()
    model[0].requires_grad_(False)
    found = lesson.gradients_of(model, lambda: model(torch.ones(5, 3)).sum())
    assert sorted(tuple(g.shape) for g in found) == [(2,), (2, 4), (5, 2)]


def test_a_weight_that_two_layers_share_is_counted_once():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    found = lesson.gradients_of(model, lambda: model(torch.ones(5, 3)).sum())
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
        expected = lesson.gradients_of(model.inner, lambda model=model, x=x: model.inner(x).sum())
        found = lesson.gradients_of(model, lambda model=model, x=x: model(x).sum())
        parameters = [p for p in found if p.shape[0] != 5]
        assert all(torch.equal(a, b) for a, b in zip(parameters, expected[2:], strict=True))
        assert len(found) >= len(expected) - 1


def test_the_share_that_did_not_move():
    before = [torch.zeros(3), torch.zeros(1)]
    assert lesson.unmoved_share(before, [torch.tensor([0.0, 1.0, 0.0]), torch.ones(1)]) == 0.5


def test_an_eighth_in_decimal_and_in_binary():
    assert lesson.in_decimal(0.125) == "+1.25 · 10^-1"
    assert lesson.in_binary(0.125) == "+1.0 · 2^-3"
    assert lesson.in_binary(-12.0) == "-1.5 · 2^3"
    assert lesson.in_binary(0.0) == "+0.0"
    assert FORMATS["fp16"].fields(FORMATS["fp16"].pattern(0.125)) == (0, -3 + 15, 0)


def pattern(name, value):
    return name, FORMATS[name].pattern(value), value


def test_each_format_has_as_many_boxes_as_bits():
    figure, alt = lesson.formats_figure()
    assert len(figure.axes[0].patches) == sum(number.bits for number in FORMATS.values())
    assert "bf16: 8 exponent and 7 mantissa bits" in alt


def test_the_histogram_is_the_counts():
    counts = lesson.exponent_counts([torch.tensor([1.0, 1.5, 2.0**-30, 0.25])])
    figure, alt = lesson.exponents_figure(counts)
    heights = [patch.get_height() for patch in figure.axes[1].patches]
    assert heights == [25.0, 25.0, 50.0]
    assert "25.0% lie below 2^-25" in alt
    assert "from 2^-30 to 2^1" in alt


def test_the_window_of_scales_is_what_the_format_loses():
    gradients = [10.0 ** torch.linspace(-9, -2, 200, dtype=torch.float64)]
    figure, alt = lesson.scale_window_figure(gradients, FORMATS["fp16"], powers=(0, 10, 30))
    vanished, _, overflowed = (line.get_ydata() for line in figure.axes[0].lines)
    for place, power in enumerate((0, 10, 30)):
        lost = lesson.underflow_in(gradients, FORMATS["fp16"], 2.0**power)
        assert (vanished[place], overflowed[place]) == (100 * lost.vanished, 100 * lost.overflowed)
    assert "from 2^10 to 2^10 less than 1 % vanish" in alt


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("value", [0.1, -3.3, 1e-9, 1e9, 0.0, -448.0])
def test_any_number_can_be_drawn(name, value):
    figure, alt = lesson.number_figure(pattern(name, value))
    assert f"{FORMATS[name].pattern(value):0{FORMATS[name].bits}b}" in alt
    figure.canvas.draw()


def test_neighbors_stand_one_spacing_apart_and_change_at_a_power_of_two():
    figure, _ = lesson.number_figure(pattern("fp8 e4m3", 2.0))
    marks = figure.axes[1].lines[0].get_xdata()
    assert list(marks) == [x / 16 for x in range(14, 16)] + [x / 8 for x in range(8, 16)] + [
        x / 4 for x in range(8, 14)
    ]


def test_below_zero_the_neighbors_are_the_mirror_image():
    above, below = (
        lesson.number_figure(pattern("fp8 e5m2", value))[0].axes[1].lines[0].get_xdata() for value in (3.0, -3.0)
    )
    inside = {x for x in above if 2 <= x <= 4}
    assert {-x for x in inside} <= set(below)


def test_a_number_too_large_is_said_to_be_infinite():
    _, alt = lesson.number_figure(pattern("fp16", 1e6))
    assert "inf. Asked for 1000000" in alt


def test_the_cycle_says_where_the_scale_goes_in_and_out():
    assert "multiplied by S" in lesson.mixed_precision_figure()[1]


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
    figure, alt = lesson.trace_figure(trace, "two steps")
    axes = figure.axes[0]
    first, gap = [patch for patch in axes.patches if patch.get_hatch()]
    assert (first.get_x(), first.get_width()) == (0, pytest.approx(1))
    assert (gap.get_x(), gap.get_width()) == (pytest.approx(10), pytest.approx(41))
    assert [text.get_text() for text in axes.texts] == ["41.0 ms"]
    lengths = [sum(path.get_extents().width for path in row.get_paths()) for row in axes.collections[:5]]
    assert lengths == pytest.approx([42, 6, 10, 2, 18])
    assert "2 steps in 60.0 ms: data loader 42.0 ms, forward 6.00 ms, backward 10.0 ms, update 2.00 ms" in alt
    assert "41.0 ms (data loader)" in alt

    figure, alt = lesson.operator_seconds_figure(trace.operator_seconds(), top=1)
    axes = figure.axes[0]
    assert sum(patch.get_width() for patch in axes.patches) == pytest.approx(18)
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["aten::backward", "2 others"]
    assert [text.get_text().strip() for text in axes.texts] == ["56%", "44%"]
    assert alt.endswith("aten::backward 56%, 2 others 44%.")
