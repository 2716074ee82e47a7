"""Chapter 12, Time: seconds and bytes on meshes against closed forms and published runs; failures against Daly's formula."""

import math

import numpy as np
import pytest

from course_utils import hardware, models
from course_utils.errors import CourseError
from course_utils.lessons import c12_on_paper as lesson
from course_utils.lessons.c12_on_paper import LINKS, PUBLISHED, SELENE, Cluster, Decoder, Mesh, MeshStep, gpt, llama

H100 = hardware.machine("H100")
PEAK = H100.flop_rates["bfloat16"]
CLUSTER = Cluster(H100, LINKS["NVLink 4"], LINKS["400 Gb/s"])
SEVEN, SEVENTY = lesson.MODELS.values()
UPDATE = 1024 * 4096
MINUTE, HOUR = 60.0, 3600.0


# Links.


def test_links_are_those_of_the_cards_and_slower_ones_answer_later():
    assert LINKS["NVLink 4"].bandwidth == hardware.machine("H100").link
    assert LINKS["PCIe 4"].bandwidth == hardware.machine("A100-40GB").host_link
    for name in ("400 Gb/s", "200 Gb/s", "100 Gb/s", "10 Gb/s"):
        assert LINKS[name].bandwidth * 8 == 1e9 * float(name.split()[0])
    latencies = [LINKS[name].latency for name in ("NVLink 4", "PCIe 5", "400 Gb/s", "10 Gb/s")]
    assert latencies == sorted(latencies)
    assert all(link.source for link in LINKS.values())


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_an_all_reduce_is_half_latency_where_its_bytes_are_ranks_times_latency_times_bandwidth(ranks):
    link = LINKS["100 Gb/s"]
    half = ranks * link.latency * link.bandwidth
    assert lesson.all_reduce_seconds(half, ranks, link) == pytest.approx(2 * 2 * (ranks - 1) * link.latency)
    seconds = 2 * (ranks - 1) * (1e9 / ranks / link.bandwidth + link.latency)
    assert lesson.all_reduce_seconds(1e9, ranks, link) == pytest.approx(seconds)
    assert lesson.all_reduce_seconds(1e9, 1, link) == 0


# When does a cut pay?


@pytest.mark.parametrize("tokens", [1, 4096])
def test_tensor_wire_takes_the_share_at_the_width_that_pays_whatever_the_tokens(tokens):
    flops, bandwidth, t, share = 3e14, 5e10, 8, 0.25
    h = lesson.width_that_pays(flops, bandwidth, t, share)
    wire = 4 * 2 * (t - 1) / t * 2 * tokens * h / bandwidth
    assert wire == pytest.approx(share * 3 * 24 * tokens * h**2 / t / flops)


@pytest.mark.parametrize("blocks", [1, 10])
def test_pipeline_wire_takes_the_share_where_width_times_blocks_pays(blocks):
    flops, bandwidth, share, tokens = 3e14, 5e10, 0.25, 4096
    h = lesson.stage_that_pays(flops, bandwidth, share) / blocks
    assert 2 * 2 * tokens * h / bandwidth == pytest.approx(share * blocks * 72 * tokens * h**2 / flops)


@pytest.mark.parametrize(("method", "messages"), [("ddp", 2), ("zero3", 3)])
def test_data_wire_takes_the_share_at_the_tokens_that_pay_whatever_the_parameters(method, messages):
    flops, bandwidth, ranks, share, parameters = 3e14, 5e10, 8, 0.25, 7e9
    tokens = lesson.tokens_that_pay(flops, bandwidth, ranks, messages, share)
    sent = lesson.communication(method, int(parameters), ranks, parameter_bytes=2, gradient_bytes=2).bytes
    assert sent / bandwidth == pytest.approx(share * 6 * parameters * tokens / flops, rel=1e-6)


def test_each_cut_asks_by_its_own_rule():
    sizes = {"data": 35_000, "ZeRO-3": 52_000, "tensor": 93_000, "pipeline": 3_300}
    assert lesson.asks_of_cuts(PEAK / 2, 33.3e9, 8) == pytest.approx(sizes, rel=0.02)


# A step on a mesh.


def test_a_decoder_has_the_parameters_of_the_real_model():
    sizes = {"hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 3, "vocab_size": 1000}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = models.configuration("llama", **sizes, **heads, tie_word_embeddings=False)
    real = models.parameter_count(models.from_configuration(config))
    assert llama(128, 3, 512, 4, 2, vocabulary=1000).parameters == real
    assert SEVEN.parameters == 6_738_415_616
    assert SEVENTY.parameters == 68_976_648_192


def test_published_models_have_the_parameters_and_operations_of_the_papers_equations():
    table = [1.7, 3.6, 7.5, 18.4, 39.1, 76.1, 145.6, 310.1, 529.6, 1008.0]
    assert [round(run.model.parameters / 1e9, 1) for run in PUBLISHED] == table
    for run in PUBLISHED:
        h, n, s, v = run.model.width, run.model.blocks, run.model.context, run.model.vocabulary
        equation_3 = 96 * s * n * h**2 * (1 + s / (6 * h) + v / (16 * n * h))
        assert s * run.model.operations(n, recompute=True) == pytest.approx(equation_3, rel=1e-3)
        assert run.d * run.t * run.p == run.cards


def test_one_card_only_computes():
    step = MeshStep(SEVEN, UPDATE, CLUSTER, Mesh(1, 1, 1), 1024)
    assert step.seconds["computing"] == step.total
    assert step.total == pytest.approx(UPDATE * SEVEN.operations(32) / (PEAK / 2))
    attention = 12 * SEVEN.context * SEVEN.width * 32
    head_and_blocks = SEVEN.parameters - SEVEN.vocabulary * SEVEN.width  # a token looks its embedding up
    assert SEVEN.operations(32) == pytest.approx(6 * head_and_blocks + attention, rel=1e-5)


@pytest.mark.parametrize(("p", "k"), [(2, 4), (8, 32), (16, 16)])
def test_the_bubble_is_its_share(p, k):
    seconds = MeshStep(SEVENTY, k * 4096, CLUSTER, Mesh(1, 8, p), k).seconds
    working = seconds["computing"] + seconds["tensor communication"]
    assert seconds["bubble"] / (seconds["bubble"] + working) == pytest.approx((p - 1) / (k + p - 1))


def test_the_wires_of_tensor_and_pipeline_are_counted_message_by_message():
    seconds = MeshStep(SEVENTY, 32 * 4096, CLUSTER, Mesh(1, 8, 4), 32).seconds
    message = 2 * 4096 * 8192 / 8
    all_reduce = sum(message / 450e9 + 3.4e-6 for _ in range(14))
    assert seconds["tensor communication"] == pytest.approx(32 * 20 * 4 * all_reduce)
    hop = 2 * 4096 * 8192 / 50e9 + 14e-6  # there and back: for each micro-batch, and once a stage until all are filled
    assert seconds["pipeline communication"] == pytest.approx(2 * (32 + 3) * hop)
    # 16 cards: data ranks stand between stages.
    on_two_machines = MeshStep(SEVENTY, 64 * 4096, CLUSTER, Mesh(2, 2, 4), 32).seconds
    assert on_two_machines["pipeline communication"] == pytest.approx(2 * (32 + 3) * hop)
    on_one_machine = MeshStep(SEVENTY, 32 * 4096, CLUSTER, Mesh(1, 2, 4), 32).seconds
    assert on_one_machine["pipeline communication"] == pytest.approx(2 * (32 + 3) * (2 * 4096 * 8192 / 450e9 + 3.4e-6))


def test_uneven_stages_wait_for_the_longest():
    even, uneven = (MeshStep(gpt(4096, n, 32), 8 * 2048, CLUSTER, Mesh(1, 1, 4), 8) for n in (32, 30))
    assert even.seconds["computing"] == uneven.seconds["computing"]


def test_a_cards_bytes_are_zeros_table_and_korthikantis():
    """ZeRO's figure 1: 7.5 billion parameters on 64 ranks; Korthikanti et al.'s table 2 for activations."""
    model = Decoder(4096, 1, 7_500_000_000, 32_000, 0, 4096, 32)
    sizes = []
    for stage in range(4):
        by_kind = MeshStep(model, 64 * 4096, CLUSTER, Mesh(64, 1, 1), 1, stage).bytes
        sizes.append(round(sum(by_kind[kind] for kind in ("parameters", "gradients", "optimizer state")) / 1e9, 1))
    assert sizes == [120.0, 31.4, 16.6, 1.9]
    one_block = 4096 * 8192 * (10 + 24 / 8)
    step = MeshStep(SEVENTY, 32 * 4096, CLUSTER, Mesh(1, 8, 4), 32)
    assert step.bytes["activations"] == pytest.approx(4 * 20 * one_block)
    all_forward = MeshStep(SEVENTY, 32 * 4096, CLUSTER, Mesh(1, 8, 4), 32, one_f_one_b=False)
    assert all_forward.bytes["activations"] == pytest.approx(32 * 20 * one_block)
    assert all_forward.total == step.total
    few = MeshStep(SEVENTY, 2 * 4096, CLUSTER, Mesh(1, 8, 4), 2)
    assert few.bytes["activations"] == pytest.approx(2 * 20 * one_block)
    recomputed = MeshStep(SEVENTY, 32 * 4096, CLUSTER, Mesh(1, 8, 4), 32, recompute=True)
    assert recomputed.bytes["activations"] == pytest.approx(4 * 20 * 2 * 4096 * 8192 + one_block)
    assert recomputed.seconds["tensor communication"] == pytest.approx(1.5 * step.seconds["tensor communication"])


def test_a_stage_holds_its_blocks_and_one_of_the_two_ends_and_what_is_gathered():
    staged = MeshStep(SEVENTY, 32 * 4096, CLUSTER, Mesh(1, 8, 4), 32).bytes
    assert staged["parameters"] == pytest.approx(2 * (20 * SEVENTY.block + 32_000 * 8192) / 8, rel=1e-4)
    assert staged["temporaries"] == 0
    unstaged = MeshStep(SEVEN, 8 * 4096, CLUSTER, Mesh(8, 1, 1), 1, stage=3).bytes
    assert unstaged["parameters"] == pytest.approx(2 * SEVEN.parameters / 8)
    assert unstaged["temporaries"] == 3 * 2 * SEVEN.block
    assert unstaged["activations"] == pytest.approx(32 * 4096 * 4096 * 34 + 4 * 4096 * 32_000)


def test_the_data_wire_hides_behind_one_micro_batch_or_behind_all_where_each_sends():
    slow = CLUSTER._replace(intra_node=LINKS["10 Gb/s"])
    ddp = MeshStep(SEVEN, 64 * 4096, slow, Mesh(8, 1, 1), 8, stage=0)
    assert ddp.hidden == pytest.approx(ddp.seconds["computing"] / 8)
    wire = 2 * 7 * (2 * SEVEN.parameters / 8 / 1.25e9 + 32 * 20e-6)
    assert ddp.hidden + ddp.seconds["data communication"] == pytest.approx(wire)
    three = MeshStep(SEVEN, 64 * 4096, slow, Mesh(8, 1, 1), 8, stage=3)
    two = MeshStep(SEVEN, 64 * 4096, slow, Mesh(8, 1, 1), 8, stage=2)
    assert two.hidden == three.hidden == three.seconds["computing"]
    assert three.hidden + three.seconds["data communication"] == pytest.approx(1.5 * 8 * wire)


def test_what_a_mesh_cannot_do_is_said():
    with pytest.raises(CourseError, match="t up to 32, p up to 32"):
        MeshStep(SEVEN, UPDATE, CLUSTER, Mesh(1, 64, 1), 1)
    with pytest.raises(CourseError, match="leave none a whole example"):
        MeshStep(SEVEN, 4096, CLUSTER, Mesh(2, 1, 1), 1)


def test_of_all_meshes_those_that_fit_come_first_the_quickest_first():
    steps = lesson.steps_on_meshes(SEVENTY, UPDATE, CLUSTER, 64)
    assert len(steps) == len({step.mesh for step in steps}) == 28
    assert all(math.prod(step.mesh) == 64 for step in steps)
    fit = [step for step in steps if step.fits]
    assert steps[: len(fit)] == fit
    assert [step.total for step in fit] == sorted(step.total for step in fit)
    assert all(step.peak <= H100.memory for step in fit)
    assert all(step.peak > H100.memory for step in steps[len(fit) :])
    assert 0 < len(fit) < 28
    across = min(step.total for step in fit if step.mesh[1] > 8)
    assert max(step.total for step in fit if step.mesh[1] == 8) < across  # tensor ranks on several machines are slower
    assert lesson.steps_on_meshes(SEVEN, UPDATE, CLUSTER, 64)[0].mesh == (64, 1, 1)


def test_selected_are_the_quickest_and_the_largest_of_each_axis():
    steps = lesson.steps_on_meshes(SEVENTY, UPDATE, CLUSTER, 64)
    selected = lesson.select_steps(steps)
    assert len(selected) == 8
    assert selected[:5] == steps[:5]
    rest = [step for step in steps[5:] if step.fits]
    for axis in range(3):
        assert max(step.mesh[axis] for step in rest) in {step.mesh[axis] for step in selected[5:]}


# Published runs.


def test_published_runs_are_predicted_within_30_percent():
    for run in PUBLISHED:
        assert lesson.predicted_flops(run) == pytest.approx(run.flops, rel=0.3)


def test_zero_3_alone_is_predicted_as_if_all_its_wire_were_hidden():
    for run in lesson.WITH_ZERO_3:
        assert lesson.predicted_flops(run, stage=3) == pytest.approx(0.5 * 312e12)
        assert run.model.parameters == pytest.approx(174.6e9, rel=1e-3)


def test_zero_3_alone_gained_nothing_from_twice_the_cards():
    small, medium, large = map(lesson.seconds_of_an_update, lesson.WITH_ZERO_3)
    assert [round(achieved) for achieved, _ in (small, medium, large)] == [82, 67, 67]
    assert small[1] == pytest.approx(2 * medium[1])
    assert medium[1] == pytest.approx(2 * large[1])


@pytest.mark.parametrize("batch", [32, 128])
def test_as_in_their_figure_13_eight_tensor_ranks_are_best_on_machines_of_eight(batch):
    model, meshes = gpt(20480, 32, 128), ((2, 32), (4, 16), (8, 8), (16, 4), (32, 2))
    steps = [MeshStep(model, batch * 2048, SELENE, Mesh(1, t, p), batch, 0, recompute=True) for t, p in meshes]
    assert min(steps, key=lambda step: step.total).mesh.t == 8


def test_as_in_their_figure_14_stages_slow_a_model_down_that_needs_none():
    model = gpt(3840, 32, 32)
    seconds = [MeshStep(model, 512 * 2048, SELENE, Mesh(64 // p, 1, p), 8 * p, 0).total for p in (2, 4, 8, 16, 32)]
    assert seconds == sorted(seconds)


# Failures.

SIZES = [  # seconds: interval, checkpoint, restart, between failures
    (HOUR, 5 * MINUTE, 10 * MINUTE, 24 * HOUR),
    (HOUR, 5 * MINUTE, 10 * MINUTE, 6 * HOUR),
    (9 * MINUTE, 5 * MINUTE, 10 * MINUTE, 15 * MINUTE),
    (17 * MINUTE, 50.0, 10 * MINUTE, 3 * HOUR),
    (60.0, 10.0, 0.0, 30.0),
]


@pytest.mark.parametrize("size", SIZES)
def test_simulated_runs_take_as_long_as_daly_expects(size):
    interval, *_, between = size
    pieces = round(200 * between / interval)
    seconds, restarts = lesson.simulate_wall_clock(pieces, *size)
    assert seconds.mean() == pytest.approx(lesson.daly_wall_clock(pieces * interval, *size), rel=0.05)
    assert restarts.mean() == pytest.approx(seconds.mean() / between, rel=0.05)
    assert len(set(seconds)) == 200


def test_a_run_that_never_fails_takes_its_work_and_its_checkpoints():
    seconds, restarts = lesson.simulate_wall_clock(10, 100.0, 5.0, 60.0, between=1e12, runs=3)
    assert list(seconds) == [1050.0] * 3
    assert list(restarts) == [0] * 3


@pytest.mark.parametrize(("hours", "minutes"), [(24, 117), (6, 57), (0.25, 9.1)])
def test_dalys_interval_is_the_one_that_he_prints(hours, minutes):
    """The captions of his figures 3 to 5: checkpoints take 5 minutes."""
    assert lesson.daly_interval(5.0, 60 * hours) == pytest.approx(minutes, rel=0.01)


@pytest.mark.parametrize("x", [1e-4, 1e-3, 1e-2])
def test_both_intervals_are_near_the_exact_one(x):
    """Where the derivative of the expected time is zero: (1 − τ/M) e^((τ + δ)/M) = 1, found by halving."""
    between, saving = 1000.0, 1000.0 * x
    low, high = 0.0, between
    for _ in range(60):
        exact = (low + high) / 2
        falls = (1 - exact / between) * math.exp((exact + saving) / between) > 1
        low, high = (exact, high) if falls else (low, exact)
    assert lesson.daly_interval(saving, between) == pytest.approx(exact, rel=1e-3)
    assert lesson.young_interval(saving, between) == pytest.approx(exact, rel=0.05)
    assert lesson.daly_interval(3 * between, between) == between


@pytest.mark.parametrize("cards", [1024, 16_384, 131_072])
def test_the_best_simulated_interval_is_dalys(cards):
    """Lowest point of a parabola, in logarithms, through simulated means."""
    saving, restart, between = 50.0, 600.0, lesson.CARD_FAILURE_INTERVAL / cards
    best = lesson.daly_interval(saving, between)
    intervals = best * np.geomspace(0.5, 2, 9)
    ratios = []
    for interval in intervals:
        pieces = round(400 * between / interval)
        seconds = lesson.simulate_wall_clock(pieces, interval, saving, restart, between, runs=400)[0]
        ratios.append(seconds.mean() / (pieces * interval))
    a, b, _ = np.polyfit(np.log(intervals), np.log(ratios), 2)
    assert math.exp(-b / (2 * a)) == pytest.approx(best, rel=0.05)


def test_failures_come_as_often_as_in_llama_3s_run():
    job = lesson.CARD_FAILURE_INTERVAL / 16_384
    assert job / HOUR == pytest.approx(3.09, abs=0.005)
    assert 54 * 24 * HOUR / job == pytest.approx(419)


def test_a_run_that_would_hardly_end_is_not_begun():
    with pytest.raises(CourseError, match="over a million times"):
        lesson.simulate_wall_clock(10, 60.0, 0.0, 600.0, between=15.0)
    assert lesson.daly_wall_clock(1.0, 1.0, 1.0, 1e6, 1.0) == math.inf


@pytest.mark.parametrize("cards", [1024, 131_072])
def test_simulated_runs_lose_what_dalys_formula_says(cards):
    simulated, formula = lesson.shares_lost(cards, 50.0, 600.0, runs=50)
    expected = np.interp(list(simulated), list(formula), list(formula.values()))
    assert list(simulated.values()) == pytest.approx(expected, rel=0.1)
    best = lesson.daly_interval(50.0, lesson.CARD_FAILURE_INTERVAL / cards)
    assert min(formula, key=formula.get) == pytest.approx(best / 60)
