"""The loop beside one as anyone would write it: the same losses, whatever else goes on."""

import copy

import pytest
import torch

from course_utils import training
from course_utils.errors import CourseError


def bare_loop(model, optimizer, schedule, batches, epochs):
    """The oracle: the loop as anyone would write it."""
    losses = []
    torch.manual_seed(0)
    model.train()
    for epoch in range(epochs):
        batches.sampler.set_epoch(epoch)
        for batch in batches:
            optimizer.zero_grad()
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
    return losses


def all_equal(first, second):
    return all(torch.equal(p, q) for p, q in zip(first.parameters(), second.parameters(), strict=True))


def test_the_loop_is_the_bare_loop(scheduled, batches):
    model, optimizer, schedule = scheduled()
    history = training.train(model, optimizer, batches, epochs=2, schedule=schedule, progress=False)
    reference, its_optimizer, its_schedule = scheduled()
    assert history.losses == bare_loop(reference, its_optimizer, its_schedule, batches, epochs=2)
    assert all_equal(model, reference)
    assert history.optimizer is optimizer


def test_evaluation_progress_and_an_early_end_change_nothing(train, batches):
    _, plain = train(epochs=2)
    _, watched = train(epochs=2, evaluate_on=batches, progress=True)
    assert plain.losses == watched.losses
    assert [(row["epoch"], row["step"]) for row in watched.evaluations] == [(1, 5), (2, 10)]
    _, cut = train(epochs=2, steps=7, evaluate_on=batches)
    assert cut.losses == plain.losses[:7]
    assert [row["epoch"] for row in cut.evaluations] == [1, 1.4]
    assert {"loss", "accuracy", "f1", "step"} <= set(watched.evaluations[0])


class Fails(training.Callback):
    """Raises `error` at a moment, and notes that it has finished."""

    def __init__(self, name, finished, moment="", error=ZeroDivisionError):
        self.name, self.finished, self.moment, self.error = name, finished, moment, error

    def on_train_begin(self, run):
        self.fail_at("on_train_begin")

    def before_update(self, run):
        self.fail_at("before_update")

    def on_train_end(self, run):
        self.finished.append(self.name)
        self.fail_at("on_train_end")

    def fail_at(self, moment):
        if moment == self.moment:
            raise self.error


@pytest.mark.parametrize(
    ("moment", "expected"), [("on_train_begin", "a"), ("before_update", "cba"), ("on_train_end", "cba")]
)
def test_every_callback_that_started_finishes(train, moment, expected):
    finished = []
    with pytest.raises(ZeroDivisionError):
        train(Fails("a", finished), Fails("b", finished, moment), Fails("c", finished), steps=1)
    assert "".join(finished) == expected


def test_memory_that_does_not_suffice_is_said_in_one_sentence_and_checkpoints_stay(train, tmp_path):
    class TooLarge(training.Callback):
        def before_update(self, run):
            if run.step == 2:
                torch.empty(2**60)

    path = tmp_path / "run.pt"
    with pytest.raises(CourseError, match="Memory does not suffice .* COURSE_SCALE") as error:
        train(TooLarge(), training.SaveCheckpoints(path, 1))
    assert "\n" not in str(error.value)
    assert train(resume_from=path)[1].frame().index[-1] == 5
    with pytest.raises(RuntimeError, match="sizes do not match"):  # another error stays what it is
        train(Fails("a", [], "before_update", RuntimeError("sizes do not match")))


def test_what_is_no_training_is_refused(train, batches):
    for once in (iter(batches), (batch for batch in batches)):
        with pytest.raises(CourseError, match="no length"):
            train(loader=once)
    for wrong in ({"epochs": 0}, {"steps": 0}):
        with pytest.raises(CourseError, match="at least 1"):
            train(**wrong)


def test_one_step_marks_its_phases_and_updates(model_and_optimizer, batches):
    from course_utils.memory import measure

    model, optimizer = model_and_optimizer()
    before = copy.deepcopy(model)
    batch = next(iter(batches))
    measured = measure((model, optimizer, batch), training.train_step)
    assert set(measured.by_phase) == {"forward", "backward", "update"}
    assert not all_equal(model, before)
    assert all(p.grad is None for p in model.parameters())
