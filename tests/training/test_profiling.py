"""The analysis on traces whose gaps are known, and one real trace that must contain what ran; no test looks at a clock."""

import gzip
import json

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from course_utils import memory, training
from course_utils.errors import CourseError
from course_utils.hardware import machine
from course_utils.lessons.c08_mixed_precision import slow_to_read
from course_utils.training.trace import ELSEWHERE, LOADING, Trace, own_seconds, read_trace, verdict

LOAD = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def event(name, start, end, category="cpu_op", thread=1, launch=None):
    """An event as the profiler writes it; `start` and `end` in milliseconds since the trace began."""
    args = {} if launch is None else {"External id": launch}
    times = {"ts": 5e6 + 1000 * start, "dur": 1000 * (end - start)}
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "args": args, **times}


def mark(name, start, end):
    return event(name, start, end, "user_annotation")


def step(number, start, waits=0.0, loading=1.0):
    """A step: loading (its last millisecond an operator of the loader's), 10 ms forward, 20 backward, 5 update."""
    began = start + waits + loading
    return [
        mark(f"ProfilerStep#{number}", start, began + 35),
        mark(LOAD, start, began),
        event("aten::stack", began - 1, began),
        mark("forward", began, began + 10),
        event("aten::linear", began, began + 10),
        event("aten::addmm", began + 1, began + 9),
        mark("backward", began + 10, began + 30),
        event("aten::mm", began + 10, began + 30, thread=2),
        mark("update", began + 30, began + 35),
        event("aten::add_", began + 30, began + 35),
    ]


@pytest.fixture
def written(tmp_path):
    """A function that writes events as a trace and reads it."""

    def write(events, name="trace.json"):
        path = tmp_path / name
        opened = gzip.open if name.endswith(".gz") else open
        with opened(path, "wt") as file:
            json.dump({"traceEvents": events}, file)
        return read_trace(path)

    return write


def spans(*rows):
    """Of (kind, name, start, end) and perhaps a thread."""
    columns = ["kind", "name", "start", "end", "thread", "launch"]
    return pd.DataFrame([(*row, None, None)[:6] for row in rows], columns=columns)


def in_milliseconds(gaps):
    return [(round(1000 * gap.start, 6), round(1000 * gap.seconds, 6), gap.where) for gap in gaps.itertuples()]


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_planted_stalls_are_found_where_they_are(written, name):
    events = [*step(2, 0), *step(3, 36, waits=50), *step(4, 122), *step(5, 158, waits=7)]
    trace = written(events, name)
    assert in_milliseconds(trace.gaps()) == [(36, 51, LOADING), (158, 8, LOADING)]  # with the loader's own work
    assert verdict(trace, trace.gaps()) == (
        "The model waited for its data loader 2 times in 4 steps, up to 51.0 ms, together 59.0 ms: 29% of the time."
    )


def test_without_its_cause_the_gap_is_gone(written):
    trace = written([*step(2, 0), *step(3, 36)])
    assert trace.gaps().empty
    assert verdict(trace, trace.gaps()) == "The model never waited for its data loader in 2 steps."
    assert len(trace.gaps(shortest=0.0005)) == 2  # a millisecond of loading, when one looks that closely


def test_a_pause_outside_the_loader_is_not_blamed_on_it(written):
    logging, inside = 3, 5
    pause = [*step(2, 0), *step(3, 36)[:-1], event("aten::add_", 67 + inside, 72 + inside)]
    pause[-2] = mark("update", 67, 72 + inside)
    pause[10] = mark("ProfilerStep#3", 36, 72 + inside)
    after = step(4, 72 + inside + logging)
    found = written([*pause, *after]).gaps()
    # The millisecond of the next loading follows the pause without an operator between them.
    assert in_milliseconds(found) == [(67, inside, "update"), (77, logging + 1, ELSEWHERE)]
    assert "never waited" in verdict(written(pause), found)


def test_only_what_it_is_called_for_is_taken_from_the_file(written):
    own_operator, instant = event("forward", 3, 4), {"ph": "i", "cat": "user_annotation", "name": "backward", "ts": 5e6}
    trace = written([*step(2, 0), own_operator, instant])
    assert list(trace.of("phase")["name"]) == ["forward", "backward", "update"]
    unmarked = written([mark("ProfilerStep#1", 0, 9), event("aten::mm", 1, 2)])
    assert len(unmarked.of("step")) == 1


def test_what_runs_before_the_first_step_and_after_the_last_does_not_count():
    times = ((-5.0, -3.0), (4.0, 5.0), (12.0, 13.0))
    trace = Trace(spans(("step", "ProfilerStep#1", 0.0, 10.0), *(("operator", "op", a, b) for a, b in times)))
    assert [(gap.start, gap.end) for gap in trace.gaps(0.5).itertuples()] == [(0.0, 4.0), (5.0, 10.0)]


def test_on_a_gpu_only_what_the_gpu_does_counts(written):
    events = [*step(2, 0), event("gemm", 4, 20, "kernel", 7, launch=11), event("adam", 29, 36, "kernel", 7, launch=12)]
    events += [
        event("aten::matmul", 1, 2, launch=11),
        event("aten::adam", 31, 32, launch=12),
        event("Memset", 20, 21, "gpu_memset", 7),
    ]
    trace = written(events)
    assert in_milliseconds(trace.gaps(0.002)) == [(0, 4, "forward"), (21, 8, "backward")]
    table = trace.operator_seconds()
    assert table["seconds"].round(6).to_dict() == {"aten::matmul": 0.016, "aten::adam": 0.007, "Memset": 0.001}
    assert table.loc["aten::matmul", "forward"] == pytest.approx(0.016)
    assert table.loc["aten::adam", "update"] == pytest.approx(0.007)


def test_an_operators_seconds_are_its_own_and_stand_in_its_phase(written):
    table = written([*step(2, 0), *step(3, 36)]).operator_seconds()
    assert list(table.index) == ["aten::mm", "aten::addmm", "aten::add_", "aten::linear", "aten::stack"]
    assert list(table["calls"]) == [2] * 5
    by_phase = {name: row[row > 0].drop(["calls", "seconds"]).round(6).to_dict() for name, row in table.iterrows()}
    assert by_phase == {
        "aten::mm": {"backward": 0.04},
        "aten::addmm": {"forward": 0.016},
        "aten::add_": {"update": 0.01},
        "aten::linear": {"forward": 0.004},
        "aten::stack": {LOADING: 0.002},
    }


cuts = st.lists(st.integers(0, 1000), min_size=2, max_size=40, unique=True).map(sorted)


@given(cuts, st.integers(1, 50))
@settings(max_examples=40, deadline=None)
def test_work_and_gaps_fill_the_steps_without_overlap(points, shortest):
    """Operators between every other pair of points: gaps of any length are what they leave."""
    operators = [("operator", "op", float(a), float(b)) for a, b in zip(points[::2], points[1::2], strict=False)]
    trace = Trace(spans(("step", "ProfilerStep#1", 0.0, 1000.0), *operators))
    every, busy = trace.gaps(shortest=0), trace.computing()
    assert every["seconds"].sum() + sum(end - start for _, _, start, end in operators) == 1000
    pieces = sorted([*zip(every["start"], every["end"], strict=True), *zip(busy["start"], busy["end"], strict=True)])
    assert all(a[1] == b[0] for a, b in zip(pieces, pieces[1:], strict=False))
    assert list(trace.gaps(shortest)["start"]) == list(every["start"][every["seconds"] >= shortest])


@given(st.recursive(st.integers(1, 5), lambda inner: st.lists(inner, min_size=1, max_size=4), max_leaves=20))
def test_own_seconds_add_up_to_the_whole_of_each_thread(tree):
    """A tree of calls: a number is an operator of that length, a list an operator that calls the others and 1 more."""
    rows = []

    def lay(node, start, thread):
        end = start + node if isinstance(node, int) else start
        for child in [] if isinstance(node, int) else node:
            end = lay(child, end, thread)
        end += not isinstance(node, int)
        rows.append(("operator", type(node).__name__, start, end, thread))
        return end

    whole = lay(tree, 0, "a") + lay(tree, 0, "b")
    operators = Trace(spans(*rows)).of("operator")
    own = own_seconds(operators)
    assert own.sum() == whole
    assert (own[operators["name"] == "list"] == 1).all()


@pytest.fixture
def profiled(fresh, batches, tmp_path):
    """A function that records steps of the small task."""

    def run(loader, **options):
        callback = training.Profile(path=tmp_path / "traces" / "t.json", **options)
        training.train(*fresh(), loader, epochs=2, callbacks=[callback], progress=False)
        return callback

    return run


def test_a_real_trace_has_its_steps_phases_and_operators(profiled, batches):
    trace = profiled(batches, steps=3, skip=3).trace()  # it goes over the end of the first epoch
    assert list(trace.of("step")["name"]) == ["ProfilerStep#3", "ProfilerStep#4", "ProfilerStep#5"]
    assert list(trace.of("phase")["name"]) == ["forward", "backward", "update"] * 3
    table = trace.operator_seconds()
    assert table.loc["aten::addmm", "forward"] > 0
    assert table.loc["aten::mm", "backward"] > 0
    assert table.loc["aten::addmm", "backward"] == table.loc["aten::mm", "update"] == 0
    assert table.loc["aten::stack", LOADING] > 0
    assert (table["seconds"] >= 0).all()
    pd.testing.assert_series_equal(table.iloc[:, 1:-1].sum(axis=1), table["seconds"], check_names=False)
    assert table["seconds"].sum() <= trace.end


@pytest.mark.parametrize("workers", [0, 1])
def test_a_planted_wait_is_in_the_trace_and_the_batches_are_the_same(profiled, batches, fresh, workers):
    pause = 0.05
    slow = slow_to_read(batches, pause, every=2, workers=workers)
    assert slow.num_workers == workers
    assert [b["input_ids"].tolist() for b in slow] == [b["input_ids"].tolist() for b in batches]
    trace = profiled(slow_to_read(batches, pause, every=2, workers=workers), steps=4, skip=2).trace()
    if not workers:  # what a worker hides depends on the machine
        gaps = trace.gaps()
        assert ((gaps["where"] == LOADING) & (gaps["seconds"] >= pause)).sum() == 2


def test_a_last_batch_that_is_left_out_stays_left_out():
    batches = torch.utils.data.DataLoader(range(5), batch_size=2, drop_last=True)
    assert [b.tolist() for b in slow_to_read(batches, 0.0)] == [[0, 1], [2, 3]]


def test_training_is_the_same_with_and_without_the_profiler(fresh, batches, profiled):
    callback = training.Profile(steps=2, skip=1)
    losses = [
        training.train(*fresh(), batches, callbacks=callbacks, progress=False).losses
        for callbacks in ([], [callback], [])
    ]
    assert losses[0] == losses[1] == losses[2]
    assert callback.path.is_file()


def test_the_profiler_counts_the_products_that_the_loop_counts(fresh, batches):
    """Two counters of torch's that share no code, on forward and backward."""
    (model, _), batch = fresh(), next(iter(batches))
    with FlopCounterMode(display=False) as counter:
        model(**batch).loss.backward()
    with profile(activities=[ProfilerActivity.CPU], with_flops=True) as profiler:
        model(**batch).loss.backward()
    products = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"}
    assert sum(row.flops for row in profiler.key_averages() if row.key in products) == counter.get_total_flops() > 0


def rows(flops=10.0):
    counted = {} if flops is None else {"flops": flops}
    return [{"step": i, "loss": 0.0, "tokens": 5, "seconds": float(i), **counted} for i in (1, 2, 3)]


def test_throughput_is_work_over_time_over_the_peak():
    found = training.throughput(training.History(steps=rows(flops=8.1e12)), machine("T4"))
    assert (found.tokens_per_second, found.flops_per_second) == (5.0, pytest.approx(8.1e12))
    assert found.utilization == pytest.approx(1.0)
    late = [{**row, "seconds": row["seconds"] + 99} for row in rows(flops=8.1e12)]  # the first step warms up
    assert training.throughput(training.History(steps=late), machine("T4")) == found
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


def test_what_cannot_be_read_is_refused_with_a_sentence(tmp_path, written, profiled, batches):
    with pytest.raises(CourseError, match="record one first"):
        read_trace(tmp_path / "nowhere.json")
    for name in ("cut.json", "cut.json.gz"):
        opened = gzip.open if name.endswith("gz") else open
        with opened(tmp_path / name, "wt") as file:
            file.write('{"traceEvents": [{"ph": "X", "na')
        with pytest.raises(CourseError, match="no whole trace"):
            read_trace(tmp_path / name)
    (tmp_path / "cut.json.gz").write_bytes((tmp_path / "cut.json.gz").read_bytes()[:-9])
    with pytest.raises(CourseError, match="no whole trace"):
        read_trace(tmp_path / "cut.json.gz")
    with pytest.raises(CourseError, match=r"call profiler\.step\(\) after each"):
        written([event("aten::mm", 0, 1)])
    with pytest.raises(CourseError, match="train for more than 50 steps"):
        profiled(batches, skip=50).trace()
    with pytest.raises(ValueError, match="at least 1"):
        training.Profile(skip=0)


def test_a_shorter_run_gives_what_it_recorded(profiled, batches):
    assert len(profiled(batches, skip=8, steps=6).trace().of("step")) == 2


def test_the_callback_marks_phases_of_any_step_and_leaves_no_observer_behind(profiled, batches):
    profiled(batches)
    from course_utils.memory import phases

    assert phases._observers == []
    with memory.phase("forward"):
        assert isinstance(nn.Linear(1, 1)(torch.ones(1)), torch.Tensor)
