"""What the figures about 8-bit states draw is the data, and their text says it."""

import pytest
import torch
from bitsandbytes import functional
from bitsandbytes.optim import AdamW8bit

from course_utils import optim, training
from course_utils.hardware import Machine, OperatorWatch
from course_utils.lessons import c05_8bit_adam as lesson
from course_utils.optim.codebook import dynamic_codebook
from course_utils.optim.quantization import nearest


def test_the_journey_of_four_values_is_computed():
    figure, alt = lesson.journey_figure([0.8, -0.2, 0.01, 2e-7])
    assert "0.8 is kept as 255 and read back as 0.8" in alt
    assert "−0.2 is kept as 53 and read back as −0.198" in alt
    assert "0.0000002 is kept as 127 and read back as 0." in alt
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert {"159", "0.00913", "8.7%", "100.0%", "scale 0.8: 4 bytes"} <= set(texts)


def test_the_linear_book_errs_less_above_a_tenth_and_loses_small_values():
    linear, dynamic = (dict(zip(*line.get_data(), strict=True)) for line in lesson.codebooks_figure()[0].axes[0].lines)
    assert len(linear) == 200
    assert all(linear[value] < dynamic[value] for value in linear if value > 0.11)
    assert all(linear[value] > dynamic[value] for value in linear if 2.5e-7 < value < 0.002)
    assert linear[min(linear)] == 1


def test_nearest_rounding_stagnates_both_ways_and_stochastic_does_not():
    figure, alt = lesson.stagnation_figure(steps=1000)
    for panel in figure.axes:
        true, frozen, run, unbiased = (line.get_ydata() for line in panel.lines)
        assert frozen[-1] == pytest.approx(frozen[0])
        assert abs(true - unbiased).max() < 0.02
        assert abs(true - run).max() > abs(true - unbiased).max()
        assert abs(true[-1] - frozen[-1]) > 0.1
    assert "times too short" in alt
    assert "times too long" in alt


def test_v_moves_where_the_new_square_is_further_than_3_5_times_the_largest():
    """Half a step between 0.1 and 1 is 0.0035 of the block's largest, and v moves by a thousandth of the distance."""
    assert lesson.half_spacing(0.25) * 0.25 == pytest.approx(0.9 / 256, rel=1e-5)
    for further, moves in ((3.4, False), (3.7, True)):
        middle = dynamic_codebook(False)[160].item()
        assert (lesson.feed_average(middle, middle + further, 5, 0.999, nearest)[-1] > middle + 1e-6) == moves


def test_no_v_falls_while_its_scale_stays():
    """A step takes at most a thousandth off; half a step of the book downward is more, below every entry."""
    entries = dynamic_codebook(False)[1:].double()
    below = dynamic_codebook(False)[:-1].double()
    assert ((entries - below) / 2 / entries).min() > 0.0017
    entries = entries.float()
    assert torch.equal(dynamic_codebook(False)[nearest(0.999 * entries, dynamic_codebook(False)).long()], entries)


def test_the_library_reads_0_back_as_more_than_0_on_a_cpu():
    """So a parameter whose gradient was always 0 moves, if a neighbor in its block has one."""
    values = torch.full((256,), 2.9e-5)
    values[0], values[1] = 1, 0
    for signed, smallest in ((False, 1.5625e-5), (True, 2.125e-5)):
        book = dynamic_codebook(signed)
        codes = functional.quantize_blockwise(values, book, blocksize=256)[0]
        assert book[codes.long()][1:].unique().tolist() == pytest.approx([smallest])
    theta = torch.zeros(4096, requires_grad=True)
    optimizer = AdamW8bit([theta], lr=1e-3, weight_decay=0)
    for _ in range(20):
        theta.grad = torch.zeros(4096)
        theta.grad[0] = 1
        optimizer.step()
    assert theta[1].item() == pytest.approx(-8.9e-5, rel=0.01)
    assert theta[256:].count_nonzero() == 0


def test_a_faster_average_does_not_stagnate():
    """The cause is an update below half a step of the book: with β₂ = 0.9 it is above."""
    assert lesson.half_spacing(0.25) > 0.001
    assert lesson.feed_average(0.25, 0.01, 200, 0.9, nearest)[-1] < 0.05


def test_the_rounding_error_is_at_most_half_a_step():
    values = torch.linspace(0.1, 1.0, 1000)
    error = lesson.rounding_errors(values, dynamic_codebook(False), 1000)
    assert error.max() <= 0.0352


def test_only_values_that_were_not_0_can_vanish():
    v = torch.tensor([[1.0, 0.0, 1e-7, 1e-6], [1e-7, 1e-7, 0.0, 1e-7]])
    assert lesson.count_vanished(v, 4) == 1  # the second block has a scale of its own
    assert lesson.count_vanished(v, 8) == 4


@pytest.mark.parametrize("kind", [lesson.LinearWithoutZero, lesson.DynamicWithoutZero])
def test_a_book_without_zero_differs_in_that_entry_only(kind):
    codebook = lesson.LinearBook.codebook if kind is lesson.LinearWithoutZero else dynamic_codebook(False)
    assert kind.codebook[0] == codebook[1] / 2
    assert torch.equal(kind.codebook[1:], codebook[1:])


def test_a_path_ends_where_adamw_s_does_if_nothing_is_rounded():
    right = lesson.walk(optim.AdamW, 3).end
    assert torch.equal(lesson.walk(optim.AdamW8bit, 3, min_8bit_size=10_000).end, right)
    rounded = lesson.walk(optim.AdamW8bit, 3)
    assert rounded.state["state2"].dtype == torch.uint8
    assert not torch.equal(rounded.end, right)
    assert not torch.equal(lesson.walk(optim.AdamW, 3, seed=1).end, right)


def test_a_path_is_off_by_its_share_and_zeros_of_v_are_counted():
    right, path = lesson.walk(optim.AdamW, 4, seed=1).end, lesson.walk(optim.AdamW8bit, 4, seed=1)
    share, zeros, others = lesson.distance_from_adamw(optim.AdamW8bit, 4, seed=1)
    assert share == pytest.approx(((path.end - right).norm() / right.norm()).item())
    last = path.state["qmap2"][path.state["state2"].int()] == 0
    assert (path.vanished | last).equal(path.vanished)
    assert zeros > last.sum() > 0
    assert others < 0.2 < share
    assert lesson.distance_from_adamw(lesson.DynamicWithoutZero, 4, seed=1)[1] == 0
    assert lesson.distance_from_adamw(optim.AdamW8bit, 4, min_8bit_size=10_000) == (0, 0, 0)


def test_the_library_s_seconds_are_its_bytes_over_the_rate():
    assert sum(bytes_moved for bytes_moved, _ in lesson.LIBRARY_UPDATE.values()) == 120
    machine = Machine("a machine", "", 2**30, 1e9, {}, 1e9, "", 1e9)
    assert lesson.library_seconds(machine, 10**6) == pytest.approx(0.12)


def test_the_library_still_does_what_its_table_says():
    """Its own Python, operator by operator: what is read and written for each value, and what is new."""
    from bitsandbytes.backends.cpu.ops import _optimizer_update_8bit_blockwise_cpu

    module, optimizer, (gradient,) = training.model_with_gradients(AdamW8bit, lesson.single_parameter((1024, 256)))
    training.update(module, optimizer, [gradient])
    state = optimizer.state[module[0]]
    p = module[0].detach()
    books = [state[name] for name in ("qmap1", "qmap2", "absmax1", "absmax2")]
    with OperatorWatch() as watch:
        _optimizer_update_8bit_blockwise_cpu(
            "adam", gradient, p, state["state1"], state["state2"], 0.9, 0.999, 0, 0, 1e-8, 2, 1e-4, *books, 0.01, 1.0
        )
    works = [work for _, work in watch.operators]
    bytes_moved, new = (sum(counts) for counts in zip(*lesson.LIBRARY_UPDATE.values(), strict=True))
    copied_to_itself = 8  # θ, at the end: the watch counts it, PyTorch returns at once
    assert sum(work.bytes for work in works) / p.numel() - copied_to_itself == pytest.approx(bytes_moved, rel=0.02)
    assert sum(work.new_bytes for work in works) / p.numel() == pytest.approx(new, rel=0.02)


def test_the_update_is_timed_on_a_tensor_that_has_state():
    parts = training.model_with_gradients(optim.AdamW8bit, lesson.single_parameter((64, 96)))
    training.update(*parts)
    module, optimizer, _ = parts
    assert optimizer.state[module[0]]["state1"].dtype == torch.uint8
    assert training.seconds_of_update(optim.AdamW, lesson.single_parameter((8, 8))) > 0


@pytest.mark.parametrize("control", [{"kind": "linear"}, {"total_bits": 4}, {"exponent_bits": 2}, {"block_size": 2048}])
def test_the_playing_figure_follows_each_control(control):
    assert lesson.codebook_figure()[1] != lesson.codebook_figure(**control)[1]


def test_the_bars_of_the_playing_figure_add_up_to_what_is_lost():
    figure, alt = lesson.codebook_figure()
    values = lesson.spread_values(decades=6, outliers=1 / 1024)
    counts = values.log10().floor().clamp(-8, 0).unique(return_counts=True)[1].tolist()
    shares = [bar.get_width() / 100 for bar in figure.axes[1].patches]
    lost_count = sum(count * share for count, share in zip(counts, shares, strict=True))
    assert f"{lost_count / len(values):.1%} lose more than half" in alt
