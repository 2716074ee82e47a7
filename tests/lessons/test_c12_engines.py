"""Chapter 12: the same updates by every engine, and what they are silent about."""

from collections import Counter
from functools import partial
from importlib.util import find_spec

import pytest

from course_utils import models
from course_utils.distributed import launch
from course_utils.lessons import c12_engines as lesson
from course_utils.script.examples import load_examples

MICRO_BATCHES = 2
# Of bytes that a gradient has, on two ranks: an all-reduce sends 1, a gather or a reduce-scatter 1/2.
SENT = {
    "DDP": 1,
    "ZeroRedundancyOptimizer": 1 + 1 / 2,
    "DeepSpeed 1": 1 + 1 / 2,
    "DeepSpeed 2": MICRO_BATCHES * 1 + 1 / 2,
    "DeepSpeed 3": MICRO_BATCHES * (1 / 2 + 1 / 2),
    "Accelerate": 1,
    "Lightning Fabric": 1,
    "Lightning Trainer": 1,
}
RESIDENT = {"FSDP2": (0.5, 1), "DeepSpeed 3": (0.5, 1), "ZeroRedundancyOptimizer": (1, 1)}
RESIDENT |= {f"DeepSpeed {stage}": (1.5, 1) for stage in (1, 2)}  # a copy of its share, also where nothing is rounded


def needs(package):
    return [pytest.mark.skipif(not find_spec(package), reason=f"needs {package}"), pytest.mark.slow]


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return lesson.small_job(tmp_path_factory.mktemp("job"), steps=5, floor=1.0)


@pytest.fixture(scope="module")
def expected(job):
    return launch(lesson.truth_on_rank, 1, job)[0]


@pytest.fixture(scope="module")
def seen(job):
    return lesson.train_all(job)


def check(table, job, name):
    model = load_examples(job)[0].make()
    blocks = sum(map(models.parameter_count, model.model.layers)) / models.parameter_count(model)
    # FSDP2 gathers for forward, and again for backward what is not its root; then it scatters, for each micro-batch.
    sent = SENT | {"FSDP2": MICRO_BATCHES * (1 / 2 + blocks / 2 + 1 / 2)}
    row = table.loc[name]
    assert row["off by"] < 1e-5
    assert row["sent"] == pytest.approx(sent[name], rel=1e-3)
    assert (row["parameters"], row["state"]) == pytest.approx(RESIDENT.get(name, (1, 2)), rel=1e-3)


@pytest.mark.parametrize("name", lesson.ENGINES)
def test_an_engine_trains_as_one_process_does_and_sends_what_its_definition_says(job, expected, seen, name):
    if name not in seen:
        pytest.skip(f"needs {lesson.ENGINES[name][0]}")
    check(lesson.compare(seen, expected), job, name)


def test_the_updates_move_the_parameters_by_more_than_the_engines_differ(job, expected, seen):
    initial = dict(load_examples(job)[0].make().named_parameters())
    assert lesson.largest_difference(initial, expected) > 1e-3
    other = {name: tensor + 1 for name, tensor in expected.items()}
    assert lesson.compare(seen, other)["off by"].min() > 0.5


def test_an_engine_that_is_not_here_has_its_roles_and_no_figures(expected, seen):
    table = lesson.compare({"DDP": seen["DDP"]}, expected)
    assert list(table.index) == list(lesson.ENGINES) == list(lesson.ROLES)
    assert table["sent"].count() == 1
    assert table["wraps"].count() == len(table)


def test_accelerate_repeats_a_row_and_steps_the_schedule_once_for_each_rank():
    ranks = launch(lesson.accelerate_alone_on_rank, 2)
    assert Counter(row for seen, _ in ranks for row in seen) == Counter([0, *range(7)])
    assert ranks[0][1] == pytest.approx([1 - 2 * update / 8 for update in range(1, 5)])


@pytest.mark.parametrize("stage", [pytest.param(stage, marks=needs("deepspeed")) for stage in (1, 3)])
def test_deepspeed_clips_by_its_own_configuration_alone(stage):
    free = launch(partial(lesson.deepspeed_alone_on_rank, gradient_clipping=0.0), 2, stage, seconds=200)
    tried = launch(partial(lesson.deepspeed_alone_on_rank, gradient_clipping=0.0), 2, stage, True, seconds=200)
    report = launch(partial(lesson.deepspeed_alone_on_rank, gradient_clipping=0.5), 2, stage, seconds=200)
    assert [distance for distance, _ in (*free, *tried)] == pytest.approx([4] * 4)
    assert [norm for _, norm in tried] == [0, 0]
    assert [distance for distance, _ in report] == pytest.approx([0.5] * 2, rel=1e-3)
