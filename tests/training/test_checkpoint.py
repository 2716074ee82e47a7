"""A run that goes on from a checkpoint is the run that was never stopped; what cannot be resumed is refused."""

import pytest
import torch

from course_utils import models, optim, training
from course_utils.errors import CourseError
from course_utils.training import SaveCheckpoints


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.pt"


class EverySecond(training.Callback):
    def should_update(self, run):
        return run.step % 2 == 1


class Counts(training.Callback):
    """Keeps a state; by default the number of steps it saw."""

    def __init__(self, seen=0):
        self.seen = seen

    def after_batch(self, run):
        self.seen = self.seen + 1 if isinstance(self.seen, int) else self.seen

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]


@pytest.mark.parametrize("stopped_after", [3, 5, 7])
def test_a_resumed_run_gives_the_same_losses(train, scheduled, batches, path, stopped_after):
    options = {"build": scheduled, "epochs": 2}
    model, expected = train(evaluate_on=batches, **options)
    train(SaveCheckpoints(path, interval=stopped_after), steps=stopped_after, **options)
    torch.randn(100)  # another process has drawn other numbers
    resumed_model, resumed = train(evaluate_on=batches, resume_from=path, **options)
    assert resumed.losses == expected.losses
    assert resumed.frame()["learning_rate"].tolist() == expected.frame()["learning_rate"].tolist()
    assert resumed.frame()["seconds"].is_monotonic_increasing
    assert all(torch.equal(p, q) for p, q in zip(resumed_model.parameters(), model.parameters(), strict=True))


def test_gradients_that_wait_for_an_update_and_states_of_callbacks_are_saved(train, path):
    _, expected = train(EverySecond(), Counts(), epochs=2)
    train(EverySecond(), Counts(), SaveCheckpoints(path, interval=3), epochs=2, steps=3)
    later = Counts()
    _, resumed = train(EverySecond(), later, epochs=2, resume_from=path)
    assert resumed.losses == expected.losses
    assert later.seen == 10


def test_an_order_that_nobody_can_repeat_is_refused_in_the_middle_of_an_epoch(train, batches, path):
    shuffled = torch.utils.data.DataLoader(batches.dataset, batch_size=8, shuffle=True)
    train(SaveCheckpoints(path, 2), loader=shuffled, steps=2)
    with pytest.raises(CourseError, match="nobody can repeat"):
        train(loader=shuffled, resume_from=path)


def test_a_save_that_breaks_leaves_the_last_checkpoint_as_it_was(train, path, tmp_path, monkeypatch):
    train(SaveCheckpoints(path, 1), steps=1)
    before = path.read_bytes()
    with pytest.raises(CourseError, match="make the states of callbacks of tensors"):
        train(Counts(tmp_path), SaveCheckpoints(path, 1))

    def breaks(state, target):
        target.write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(torch, "save", breaks)
    with pytest.raises(CourseError, match="no space left"):
        train(SaveCheckpoints(path, 1), steps=1)
    assert path.read_bytes() == before
    assert list(tmp_path.glob("*.partial")) == []


def test_what_is_no_checkpoint_is_refused(train, tmp_path):
    damaged, foreign = tmp_path / "damaged.pt", tmp_path / "foreign.pt"
    damaged.write_bytes(b"half a checkpoint")
    torch.save({"model": {}}, foreign)
    for path, sentence in (
        (tmp_path / "no.pt", "There is no checkpoint"),
        (tmp_path, "There is no checkpoint"),
        (damaged, "is damaged"),
        (foreign, "is not a checkpoint"),
    ):
        with pytest.raises(CourseError, match=sentence):
            train(resume_from=path)
    with pytest.raises(CourseError, match="interval=0"):
        SaveCheckpoints(tmp_path / "run.pt", interval=0)


def larger():
    model = models.build("distilbert", labels=3, vocab_size=77)
    return model, optim.AdamW(model.parameters())


def with_sgd():
    model = models.build("distilbert", labels=3)
    return model, torch.optim.SGD(model.parameters(), lr=1)


@pytest.mark.parametrize(
    ("build", "sentence"), [(larger, "another model"), (with_sgd, "AdamW, here SGD"), ("scheduled", "another schedule")]
)
def test_another_run_is_refused(train, path, build, sentence, request):
    train(SaveCheckpoints(path, 1), steps=1)
    build = request.getfixturevalue(build) if isinstance(build, str) else build
    pair = build()
    before = [p.clone() for p in pair[0].parameters()]
    with pytest.raises(CourseError, match=sentence):
        train(build=lambda: pair, resume_from=path)
    assert sentence == "another model" or all(map(torch.equal, before, pair[0].parameters()))


def test_a_schedule_or_callbacks_that_are_gone_are_refused(train, scheduled, path):
    train(SaveCheckpoints(path, 1), build=scheduled, steps=1)
    with pytest.raises(CourseError, match="another schedule"):
        train(resume_from=path)
    train(Counts(), SaveCheckpoints(path, 1), steps=1)
    with pytest.raises(CourseError, match="another set of callbacks"):
        train(resume_from=path)
