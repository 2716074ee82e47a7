import pytest
import torch

from course_utils import training
from course_utils.errors import CourseError
from course_utils.training import SaveCheckpoints


@pytest.mark.parametrize("stopped_after", [1, 3, 5, 7, 9])
def test_a_resumed_run_gives_the_same_losses(scheduled, batches, tmp_path, stopped_after):
    path = tmp_path / "run.pt"
    model, optimizer, schedule = scheduled()
    whole = training.train(model, optimizer, batches, epochs=2, schedule=schedule, evaluate_on=batches, progress=False)

    first, its_optimizer, its_schedule = scheduled()
    save = SaveCheckpoints(path, every=stopped_after)
    training.train(
        first,
        its_optimizer,
        batches,
        epochs=2,
        schedule=its_schedule,
        steps=stopped_after,
        callbacks=[save],
        progress=False,
    )

    again, new_optimizer, new_schedule = scheduled()
    torch.randn(100)  # another process has drawn other numbers
    resumed = training.train(
        again,
        new_optimizer,
        batches,
        epochs=2,
        schedule=new_schedule,
        evaluate_on=batches,
        resume_from=path,
        progress=False,
    )
    assert resumed.losses == whole.losses
    assert resumed.frame()["learning_rate"].tolist() == whole.frame()["learning_rate"].tolist()
    assert resumed.frame()["seconds"].is_monotonic_increasing
    assert all(torch.equal(p, q) for p, q in zip(again.parameters(), model.parameters(), strict=True))


def test_gradients_that_wait_for_an_update_are_kept(fresh, batches, tmp_path):
    class EverySecond(training.Callback):
        def should_step(self, run):
            return run.step % 2 == 1

    path = tmp_path / "run.pt"
    whole = training.train(*fresh(), batches, epochs=2, callbacks=[EverySecond()], progress=False)
    save = SaveCheckpoints(path, every=3)
    training.train(*fresh(), batches, epochs=2, steps=3, callbacks=[EverySecond(), save], progress=False)
    resumed = training.train(*fresh(), batches, epochs=2, callbacks=[EverySecond()], resume_from=path, progress=False)
    assert resumed.losses == whole.losses


def test_an_order_that_nobody_can_repeat_is_refused_in_the_middle_of_an_epoch(fresh, batches, tmp_path):
    path = tmp_path / "run.pt"
    shuffled = torch.utils.data.DataLoader(batches.dataset, batch_size=8, shuffle=True)
    training.train(*fresh(), shuffled, steps=2, callbacks=[SaveCheckpoints(path, 2)], progress=False)
    with pytest.raises(CourseError, match="nobody can repeat"):
        training.train(*fresh(), shuffled, resume_from=path, progress=False)


def test_state_of_callbacks_is_kept(fresh, batches, tmp_path):
    class Counts(training.Callback):
        def __init__(self):
            self.seen = 0

        def after_step(self, run):
            self.seen += 1

        def state_dict(self):
            return {"seen": self.seen}

        def load_state_dict(self, state):
            self.seen = state["seen"]

    path, counts = tmp_path / "run.pt", Counts()
    training.train(*fresh(), batches, steps=2, callbacks=[counts, SaveCheckpoints(path, 2)], progress=False)
    later = Counts()
    training.train(*fresh(), batches, steps=5, callbacks=[later], resume_from=path, progress=False)
    assert later.seen == 5


def test_a_save_that_breaks_leaves_the_last_checkpoint_whole(fresh, batches, tmp_path, monkeypatch):
    path = tmp_path / "run.pt"
    training.train(*fresh(), batches, steps=1, callbacks=[SaveCheckpoints(path, 1)], progress=False)
    before = path.read_bytes()

    def breaks(state, target):
        target.write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(torch, "save", breaks)
    with pytest.raises(CourseError, match="no space left"):
        training.train(*fresh(), batches, steps=1, callbacks=[SaveCheckpoints(path, 1)], progress=False)
    assert path.read_bytes() == before


def test_what_cannot_be_resumed_is_said(fresh, batches, tmp_path):
    missing, damaged, foreign = tmp_path / "no.pt", tmp_path / "damaged.pt", tmp_path / "foreign.pt"
    damaged.write_bytes(b"half a checkpoint")
    torch.save({"model": {}}, foreign)
    cases = (
        (missing, "There is no checkpoint"),
        (tmp_path, "There is no checkpoint"),
        (damaged, "is damaged"),
        (foreign, "is not a checkpoint"),
    )
    for path, words in cases:
        with pytest.raises(CourseError, match=words):
            training.train(*fresh(), batches, resume_from=path, progress=False)


def test_another_model_is_refused(fresh, batches, tmp_path):
    from course_utils import models, optim

    path = tmp_path / "run.pt"
    training.train(*fresh(), batches, steps=1, callbacks=[SaveCheckpoints(path, 1)], progress=False)
    other = models.build("distilbert", labels=3, vocab_size=77)
    with pytest.raises(CourseError, match="another model"):
        training.train(other, optim.AdamW(other.parameters()), batches, resume_from=path, progress=False)


@pytest.mark.parametrize("saved_with", [True, False])
def test_a_schedule_on_one_side_only_is_refused(fresh, scheduled, batches, tmp_path, saved_with):
    path = tmp_path / "run.pt"
    builders = (scheduled, fresh) if saved_with else (fresh, scheduled)
    (model, optimizer, *schedule), (again, its_optimizer, *its_schedule) = (build() for build in builders)
    save = [SaveCheckpoints(path, 1)]
    training.train(
        model, optimizer, batches, schedule=schedule[0] if schedule else None, steps=1, callbacks=save, progress=False
    )
    before = [p.clone() for p in again.parameters()]
    with pytest.raises(CourseError, match="another schedule"):
        training.train(
            again,
            its_optimizer,
            batches,
            schedule=its_schedule[0] if its_schedule else None,
            resume_from=path,
            progress=False,
        )
    assert all(torch.equal(p, q) for p, q in zip(before, again.parameters(), strict=True))


def test_another_optimizer_is_refused(fresh, batches, tmp_path):
    path = tmp_path / "run.pt"
    training.train(*fresh(), batches, steps=1, callbacks=[SaveCheckpoints(path, 1)], progress=False)
    model, _ = fresh()
    with pytest.raises(CourseError, match="AdamW, here SGD"):
        training.train(model, torch.optim.SGD(model.parameters(), lr=1), batches, resume_from=path, progress=False)


class Keeps(training.Callback):
    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return {"state": self.state}


def test_other_callbacks_are_refused(fresh, batches, tmp_path):
    path = tmp_path / "run.pt"
    training.train(*fresh(), batches, steps=1, callbacks=[Keeps(1), SaveCheckpoints(path, 1)], progress=False)
    with pytest.raises(CourseError, match="another set of callbacks"):
        training.train(*fresh(), batches, resume_from=path, progress=False)


def test_a_callback_whose_state_could_not_be_read_back_is_told_when_it_is_saved(fresh, batches, tmp_path):
    with pytest.raises(CourseError, match="callback Keeps cannot be kept"):
        training.train(
            *fresh(), batches, callbacks=[Keeps(tmp_path), SaveCheckpoints(tmp_path / "run.pt", 1)], progress=False
        )
    assert not (tmp_path / "run.pt").exists()


def test_every_must_be_positive(tmp_path):
    with pytest.raises(CourseError, match="every=0"):
        SaveCheckpoints(tmp_path / "run.pt", every=0)
