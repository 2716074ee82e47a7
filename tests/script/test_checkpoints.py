"""Nothing is lost: a run goes on from the newest whole checkpoint, on any number of ranks, with the same batches."""

import json
import shutil

import pytest
from small_job import largest_difference, run_job, run_jobs, write_small_model

from course_utils.distributed import launch
from course_utils.errors import CourseError
from course_utils.script import Job, rank, train


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    return write_small_model(folder, precision="fp64", steps=6, save_every=2, micro_batch=3, keep=5, quick=True)


@pytest.fixture(scope="module")
def reference(job, tmp_path_factory):
    """An undisturbed run in one process: its parameters, and its folder with three checkpoints."""
    folder = tmp_path_factory.mktemp("reference")
    return run_job({**job, "out": folder})[0], folder


@pytest.fixture
def folder(reference, tmp_path):
    """A copy of that folder, of which the last checkpoint is missing."""
    shutil.copytree(reference[1], tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-00000006")
    return tmp_path / "run"


def test_a_run_goes_on_as_if_it_had_never_stopped(job, reference, folder):
    state, losses, lines = run_job({**job, "out": folder})
    assert largest_difference(state, reference[0]) == 0
    assert sorted(losses) == [5, 6]
    assert lines[0] == "Goes on after update 4; updates 5 to 6 are computed again."


def test_every_strategy_goes_on(job, tmp_path):
    jobs = {name: {**job, "strategy": name, "out": tmp_path / name} for name in ("ddp", "zero1", "fsdp2")}
    first, _ = launch(run_jobs, 2, jobs)
    for name in jobs:
        shutil.rmtree(tmp_path / name / "checkpoints" / "step-00000006")
    resumed, _ = launch(run_jobs, 2, jobs)
    for name in jobs:
        assert largest_difference(resumed[name][0], first[name][0]) == 0
        assert sorted(resumed[name][1]) == [5, 6]


@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [("fsdp2", 4), pytest.param("zero1", 2, marks=pytest.mark.slow), pytest.param("ddp", 4, marks=pytest.mark.slow)],
)
def test_it_goes_on_with_other_ranks_and_another_strategy(job, reference, folder, strategy, ranks):
    shutil.rmtree(folder / "checkpoints" / "step-00000004")
    state = launch(run_job, ranks, {**job, "strategy": strategy, "out": folder})
    assert largest_difference(state[0][0], reference[0]) < 1e-10
    shutil.rmtree(folder / "checkpoints" / "step-00000006")  # and back, from update 4 of these ranks
    assert largest_difference(run_job({**job, "out": folder})[0], reference[0]) < 1e-10


SHARD = "__0_0.distcp"
# A name in the checkpoint's folder, what is done to it, and what is said of it.
TORN = {
    "a shard cut short": (SHARD, lambda path: path.write_bytes(path.read_bytes()[:-200]), "is shorter than it was"),
    "a shard gone": (SHARD, lambda path: path.unlink(), "FileNotFoundError"),
    "a shard of its size": (
        SHARD,
        lambda path: path.write_bytes(bytes(200) + path.read_bytes()[200:]),
        "it cannot be read (",
    ),
    "nothing about the run": ("run.json", lambda path: path.write_text("{"), "it cannot be read (JSONDecodeError)"),
}


@pytest.mark.parametrize("name", TORN)
def test_a_torn_checkpoint_is_named_and_the_one_before_it_taken(job, reference, folder, name):
    file, tear, reason = TORN[name]
    tear(folder / "checkpoints" / "step-00000004" / file)
    state, losses, lines = run_job({**job, "out": folder})
    assert "step-00000004 is left out: " in lines[0]
    assert reason in lines[0]
    assert sorted(losses) == [3, 4, 5, 6]
    assert largest_difference(state, reference[0]) == 0


@pytest.mark.parametrize("name", TORN)
def test_where_none_is_whole_the_folder_is_named_and_nothing_trains(job, folder, name):
    """Half of a model may have been read, and the first update is not where that run stood."""
    file, tear, reason = TORN[name]
    for path in (folder / "checkpoints").iterdir():
        tear(path / file)
    with pytest.raises(CourseError) as refused:
        train(Job(**job, out=folder))
    assert f"No checkpoint in {folder / 'checkpoints'} can be loaded (step-00000004: " in str(refused.value)
    assert reason in str(refused.value)
    assert "give another --out" in str(refused.value)


def test_a_checkpoint_of_another_run_is_refused(job, folder):
    for change in ({"seed": 1}, {"batch": 24}, {"optimizer": "sgd"}, {"lora": 2}, {"sequence": 16}):
        with pytest.raises(CourseError, match=f"its {min(change)} is .* give another --out"):
            train(Job(**{**job, **change}, out=folder))


def test_what_is_changed_on_the_way_is_said(job, folder):
    _, _, lines = run_job({**job, "lr": 0.5, "steps": 8, "out": folder})
    assert lines[:2] == ["From here on steps is 8 instead of 6.", "From here on lr is 0.5 instead of 0.001."]


def test_fewer_steps_than_were_made_change_nothing(job, folder):
    state, losses, lines = run_job({**job, "steps": 3, "out": folder})
    assert (losses, lines[-1]) == ({}, "All 4 updates are already done; increase --steps to continue.")


def test_two_runs_do_not_work_in_one_folder(job, tmp_path, monkeypatch):
    monkeypatch.setattr(rank.time, "sleep", lambda seconds: None)
    with rank.lock_folder(tmp_path), pytest.raises(CourseError, match="Another run is using"):
        train(Job(**job, out=tmp_path))


def test_only_the_newest_are_kept(job, tmp_path):
    run_job({**job, "keep": 2, "out": tmp_path})
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000004", "step-00000006"]


def test_what_was_being_written_when_a_run_ended_is_cleared_away(job, folder):
    partial = folder / "checkpoints" / "step-00000005.partial"
    partial.mkdir()
    (partial / SHARD).write_bytes(b"half")
    run_job({**job, "out": folder})
    assert not partial.exists()


def test_a_place_that_cannot_be_written_is_said(job, tmp_path):
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(CourseError, match="No checkpoint could be written"):
        train(Job(**job, out=tmp_path))


@pytest.mark.parametrize(
    "name", ["sgd", "course.AdamW", "course.Adam8bit", "adamw8bit", "course.Adafactor", "adafactor", "muon"]
)
def test_the_state_of_any_optimizer_is_kept(job, name, tmp_path):
    """Codes and codebooks of 8 bits, factors, step counts that are Python's numbers."""
    fields = {**job, "optimizer": name, "precision": "fp32", "batch": 6, "options": {}, "out": tmp_path}
    first, _, _ = run_job(fields)
    shutil.rmtree(tmp_path / "checkpoints" / "step-00000006")
    resumed, losses, _ = run_job(fields)
    assert sorted(losses) == [5, 6]
    assert largest_difference(resumed, first) == 0


def test_the_scale_of_the_loss_is_kept(job, tmp_path):
    fields = {**job, "precision": "fp16", "out": tmp_path}
    run_job(fields)
    manifest = json.loads((tmp_path / "checkpoints" / "step-00000004" / "run.json").read_text(encoding="utf-8"))
    assert manifest["extras"]["scaler"]["scale"] == 2.0**16
    assert manifest["extras"]["scaler"]["_growth_tracker"] == 4


def test_good_ones_are_not_dropped_for_torn_ones_of_later_updates(job, folder):
    class Ends:
        def log(self, step, values):
            if step == 4:
                raise KeyboardInterrupt

        def close(self):
            pass

    (folder / "checkpoints" / "step-00000004" / ".metadata").unlink()
    with pytest.raises(KeyboardInterrupt):
        train(Job(**{**job, "save_every": 3, "keep": 1, "log_every": 1}, out=folder), loggers=[Ends()], say=[].append)
    _, losses, lines = run_job({**job, "out": folder})
    assert min(losses) == 4
    assert "Goes on after update 3" in lines[-2]
