"""The analysis on traces whose gaps are known, and one real trace that must contain what ran; no test looks at a clock."""

import json
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import DeviceType

from course_utils import training
from course_utils.errors import CourseError
from course_utils.hardware import machine
from course_utils.lessons.c08_mixed_precision import slow_to_read
from course_utils.memory.trace import phases
from course_utils.training.profile import ELSEWHERE, LOADING, Trace


def trace_of(*rows):
    """A trace of rows (kind, name, start, end) and perhaps own seconds, by default all of it."""
    rows = [(kind, name, a, b, *(self_time or [b - a])) for kind, name, a, b, *self_time in rows]
    return Trace(pd.DataFrame(rows, columns=["kind", "name", "start", "end", "own"]))


def step(start, waits=0.0, loading=1.0):
    """A step: loading (its last second an operator of the loader's), 10 s forward, 20 backward, 5 update."""
    began = start + waits + loading
    return [
        ("step", "ProfilerStep*", start, began + 35),
        (LOADING, LOADING, start, began),
        ("operator", "aten::stack", began - 1, began),
        ("phase", "forward", began, began + 10),
        ("operator", "aten::linear", began, began + 10, 2.0),
        ("operator", "aten::addmm", began + 1, began + 9),
        ("phase", "backward", began + 10, began + 30),
        ("operator", "aten::mm", began + 10, began + 30),
        ("phase", "update", began + 30, began + 35),
        ("operator", "aten::add_", began + 30, began + 35),
    ]


def rows_of(gaps):
    return [(gap.start, gap.seconds, gap.where) for gap in gaps.itertuples()]


def test_planted_stalls_are_found_where_they_are():
    trace = trace_of(*step(0), *step(36, waits=50), *step(122), *step(158, waits=7))
    assert rows_of(trace.gaps()) == [(36, 51, LOADING), (158, 8, LOADING)]  # with the loader's own work
    assert trace.verdict() == (
        "The model waited for its data loader 2 times in 4 steps, up to 51.0 s, together 59.0 s: 29% of the time."
    )


def test_without_its_cause_the_gap_is_gone():
    trace = trace_of(*step(0), *step(36))
    assert trace.gaps().empty
    assert trace.verdict() == "The model never waited for its data loader in 2 steps."
    assert len(trace.gaps(shortest=0.5)) == 2  # a second of loading, when one looks that closely


def test_a_pause_outside_the_loader_is_not_blamed_on_it():
    second = step(36)[:-2] + [("phase", "update", 67, 77), ("operator", "aten::add_", 72, 77)]
    trace = trace_of(*step(0), *second, *step(81))
    # The second of the next loading follows the pause without an operator between them.
    assert rows_of(trace.gaps(4)) == [(67, 5, "update"), (77, 5, ELSEWHERE)]
    assert "never waited" in trace.verdict()


def test_what_runs_before_the_first_step_and_after_the_last_does_not_count():
    times = ((-5.0, -3.0), (4.0, 5.0), (12.0, 13.0))
    trace = trace_of(("step", "", 0.0, 10.0), *(("operator", "op", a, b) for a, b in times))
    assert [(start, start + seconds) for start, seconds, _ in rows_of(trace.gaps(0.5))] == [(0.0, 4.0), (5.0, 10.0)]


def test_an_operators_seconds_are_its_own_and_stand_in_its_phase():
    table = trace_of(*step(0), *step(36)).operator_seconds()
    assert list(table["calls"]) == [2] * 5
    assert {name: row[row > 0].drop(["calls", "seconds"]).to_dict() for name, row in table.iterrows()} == {
        "aten::mm": {"backward": 40},
        "aten::addmm": {"forward": 16},
        "aten::add_": {"update": 10},
        "aten::linear": {"forward": 4},
        "aten::stack": {LOADING: 2},
    }


def test_on_a_gpu_only_what_the_gpu_does_counts():
    def event(name, start, end, marks=False, device=DeviceType.CPU, gpu=0.0):
        times = {"time_range": SimpleNamespace(start=1e6 * start, end=1e6 * end), "self_cpu_time_total": 1e6}
        return SimpleNamespace(
            name=name, is_user_annotation=marks, device_type=device, self_device_time_total=1e6 * gpu, **times
        )

    marks = [("ProfilerStep*", 5, 41), ("forward", 6, 16), ("backward", 16, 36), ("update", 36, 41)]
    on_gpu = [("gemm", 9, 25, False), ("adam", 34, 41, False), ("forward", 9, 30, True)]
    trace = Trace.from_events(
        [
            *(event(*mark, marks=True) for mark in [*marks, ("ProfilerStep*", 41, 42)]),
            *(event(*kernel, device=DeviceType.CUDA) for kernel in on_gpu),
            event("aten::matmul", 6, 7, gpu=16),
            event("aten::adam", 36, 37, gpu=7),
            event("aten::view", 8, 9),
        ]
    )
    assert len(trace.spans_of("step")) == 1  # the run did not reach the second
    assert rows_of(trace.gaps(2)) == [(0, 4, "forward"), (20, 9, "backward")]
    table = trace.operator_seconds()
    assert table["seconds"].to_dict() == {"aten::matmul": 16, "aten::adam": 7}
    assert (table.loc["aten::matmul", "forward"], table.loc["aten::adam", "update"]) == (16, 7)


cuts = st.lists(st.integers(0, 1000), min_size=2, max_size=40, unique=True).map(sorted)


@given(cuts, st.integers(1, 50))
@settings(max_examples=20, deadline=None)
def test_work_and_gaps_fill_the_steps_without_overlap(points, shortest):
    """Operators between every other pair of points: gaps of any length are what they leave."""
    operators = [("operator", "op", float(a), float(b)) for a, b in zip(points[::2], points[1::2], strict=False)]
    trace = trace_of(("step", "", 0.0, 1000.0), *operators)
    gaps, busy = trace.gaps(shortest=0), trace.computing_spans()
    assert gaps["seconds"].sum() + sum(end - start for _, _, start, end in operators) == 1000
    pieces = sorted([*zip(gaps["start"], gaps["end"], strict=True), *zip(busy["start"], busy["end"], strict=True)])
    assert all(a[1] == b[0] for a, b in zip(pieces, pieces[1:], strict=False))
    assert list(trace.gaps(shortest)["start"]) == list(gaps["start"][gaps["seconds"] >= shortest])


@pytest.fixture
def profiled(model_and_optimizer, batches, tmp_path):
    """A function that records steps of the small task."""

    def run(loader, **options):
        callback = training.Profile(path=tmp_path / "traces" / "t.json", **options)
        training.train(*model_and_optimizer(), loader, epochs=2, callbacks=[callback], progress=False)
        return callback

    return run


def test_a_real_trace_has_its_steps_phases_and_operators(profiled, batches):
    callback = profiled(batches, steps=3, skip=3)  # it goes over the end of the first epoch
    trace = callback.trace()
    assert len(trace.spans_of("step")) == 3
    assert list(trace.spans_of("phase")["name"]) == ["forward", "backward", "update"] * 3
    table = trace.operator_seconds()
    assert table.loc["aten::addmm", "forward"] > 0
    assert table.loc["aten::mm", "backward"] > 0
    assert table.loc["aten::addmm", "backward"] == table.loc["aten::mm", "update"] == 0
    assert table.loc["aten::stack", LOADING] > 0
    pd.testing.assert_series_equal(table.iloc[:, 1:-1].sum(axis=1), table["seconds"], check_names=False)
    assert table["seconds"].sum() <= trace.end
    events = json.loads(callback.path.read_text())["traceEvents"]  # for Perfetto: the same steps and products
    names = [event["name"] for event in events if event.get("ph") == "X"]
    assert {"ProfilerStep#3", "ProfilerStep#4", "ProfilerStep#5"} <= set(names)
    assert names.count("aten::mm") == table.loc["aten::mm", "calls"]
    with torch.profiler.profile() as afterwards, phases.phase("forward"):
        pass
    assert "forward" not in [event.name for event in afterwards.events()], "nothing notes the phases any longer"


@pytest.mark.parametrize("workers", [0, 1])
def test_a_planted_wait_is_in_the_trace_and_the_batches_are_the_same(profiled, batches, workers):
    pause = 0.05
    slow = slow_to_read(batches, pause, interval=2, workers=workers)
    assert slow.num_workers == workers
    assert [b["input_ids"].tolist() for b in slow] == [b["input_ids"].tolist() for b in batches]
    trace = profiled(slow_to_read(batches, pause, interval=2, workers=workers), steps=4, skip=2).trace()
    if not workers:  # what a worker hides depends on the machine
        gaps = trace.gaps()
        assert ((gaps["where"] == LOADING) & (gaps["seconds"] >= pause)).sum() == 2


def test_training_is_the_same_with_and_without_the_profiler(model_and_optimizer, batches):
    callback = training.Profile(steps=2, skip=1)
    losses = [
        training.train(*model_and_optimizer(), batches, callbacks=callbacks, progress=False).losses
        for callbacks in ([], [callback], [])
    ]
    assert losses[0] == losses[1] == losses[2]
    assert callback.path.is_file()


def test_a_run_that_ends_early_gives_what_it_recorded_or_says_why_not(profiled, batches):
    assert len(profiled(batches, skip=8, steps=6).trace().spans_of("step")) == 2
    with pytest.raises(CourseError, match="train for more than 50 steps"):
        profiled(batches, skip=50).trace()
    with pytest.raises(ValueError, match="at least 1"):
        training.Profile(skip=0)


def rows(flops=10.0):
    counted = {} if flops is None else {"flops": flops}
    return [{"step": i, "loss": 0.0, "tokens": 5, "seconds": float(i), **counted} for i in (1, 2, 3)]


def test_throughput_is_work_over_time_over_the_peak():
    rates = training.throughput(training.History(steps=rows(flops=8.1e12)), machine("T4"))
    assert (rates.tokens_per_second, rates.flops_per_second) == (5.0, pytest.approx(8.1e12))
    assert rates.utilization == pytest.approx(1.0)
    delayed = [{**row, "seconds": row["seconds"] + 99} for row in rows(flops=8.1e12)]  # the first step warms up
    assert training.throughput(training.History(steps=delayed), machine("T4")) == rates
    slow_second = [{**row, "seconds": row["seconds"] + 9 * (row["step"] > 1)} for row in rows(flops=65e12 / 2)]
    half = training.throughput(training.History(steps=slow_second), machine("T4"), "float16", skip=2)
    assert half.utilization == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("steps", "dtype", "skip"),
    [([], "float32", 1), (rows(None), "float32", 1), (rows(), "float32", 3), (rows(), "fp8", 1)],
)
def test_throughput_refuses_what_it_cannot_judge(steps, dtype, skip):
    with pytest.raises(CourseError, match="run train|choose one of"):
        training.throughput(training.History(steps=steps), machine("T4"), dtype, skip)
