import copy

import pytest
import torch

from course_utils import models, training
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


def same(first, second):
    return all(torch.equal(p, q) for p, q in zip(first.parameters(), second.parameters(), strict=True))


def test_the_loop_is_the_bare_loop(scheduled, batches):
    model, optimizer, schedule = scheduled()
    history = training.train(model, optimizer, batches, epochs=2, schedule=schedule, progress=False)
    reference, its_optimizer, its_schedule = scheduled()
    assert history.losses == bare_loop(reference, its_optimizer, its_schedule, batches, epochs=2)
    assert same(model, reference)
    assert history.optimizer is optimizer


def test_evaluation_progress_and_an_early_end_change_nothing(run, batches):
    _, plain = run(epochs=2)
    _, watched = run(epochs=2, evaluate_on=batches, progress=True)
    assert plain.losses == watched.losses
    assert [(row["epoch"], row["step"]) for row in watched.evaluations] == [(1, 5), (2, 10)]
    _, cut = run(epochs=2, steps=7, evaluate_on=batches)
    assert cut.losses == plain.losses[:7]
    assert [row["epoch"] for row in cut.evaluations] == [1, 1.4]
    assert {"loss", "accuracy", "f1", "step"} <= set(watched.evaluations[0])


@pytest.mark.parametrize("library", ["train_with_accelerate", "train_with_trainer"])
def test_libraries_give_the_same_losses_step_by_step(scheduled, batches, library):
    model, optimizer, schedule = scheduled()
    ours = training.train(model, optimizer, batches, epochs=2, schedule=schedule, progress=False)
    other, its_optimizer, its_schedule = scheduled()
    theirs = getattr(training, library)(other, its_optimizer, batches, epochs=2, schedule=its_schedule)
    assert len(theirs.losses) == len(ours.losses) == 10
    assert theirs.losses == pytest.approx(ours.losses, rel=1e-6)
    assert theirs.frame()["learning_rate"].tolist() == pytest.approx(ours.frame()["learning_rate"].tolist())
    assert theirs.frame()["epoch"].tolist() == ours.frame()["epoch"].tolist()
    assert theirs.optimizer is its_optimizer


def test_trainer_builds_the_optimizer_that_its_arguments_name(fresh, batches):
    model, optimizer = fresh()
    ours = training.train(model, optimizer, batches, progress=False)
    theirs = training.train_with_trainer(
        fresh()[0], None, batches, optim="adamw_torch", learning_rate=1e-3, weight_decay=0.01
    )
    assert type(theirs.optimizer) is torch.optim.AdamW
    assert [group["weight_decay"] for group in theirs.optimizer.param_groups] == [0.01, 0.0]
    assert theirs.losses == pytest.approx(ours.losses, rel=1e-5)


def test_accelerate_takes_other_options_in_the_same_process(fresh, batches):
    training.train_with_accelerate(*fresh(), batches)
    lower = training.train_with_accelerate(*fresh(), batches, mixed_precision="bf16")
    assert lower.losses != training.train_with_accelerate(*fresh(), batches).losses


@pytest.mark.parametrize("library", ["train_with_accelerate", "train_with_trainer"])
def test_a_library_run_in_lower_precision_gives_the_model_back_as_it_was(fresh, batches, library):
    model, optimizer = fresh()
    options = {"mixed_precision": "bf16"} if library == "train_with_accelerate" else {"bf16": True}
    seen = []
    hook = model.classifier.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    getattr(training, library)(model, optimizer, batches, **options)
    assert set(seen) == {torch.bfloat16}  # it was really on
    hook.remove()
    assert model(**next(iter(batches))).logits.dtype == torch.float32


def test_the_history_counts_tokens_time_and_operations(fresh, batches):
    model, optimizer = fresh()
    frame = training.train(model, optimizer, batches, progress=False).frame()
    assert list(frame.index) == [1, 2, 3, 4, 5]
    assert frame["tokens"].tolist() == [128, 128, 128, 128, 80]
    assert frame["seconds"].is_monotonic_increasing
    assert frame["tokens_per_second"].iloc[1] == pytest.approx(128 / frame["seconds"].diff().iloc[1])
    assert set(frame["epoch"]) == {1}
    matrices = sum(p.numel() for name, p in model.named_parameters() if p.ndim == 2 and "embedding" not in name)
    head = model.pre_classifier.weight.numel() + model.classifier.weight.numel()
    layers, width, heads = model.config.n_layers, model.config.dim, model.config.n_heads
    # Forward 2 operations a weight and token, backward twice that; the head sees one token a row; the first layer's
    # input needs a gradient too, since embeddings are trained. Attention multiplies s x s by the head width twice.
    dense = 6 * ((matrices - head) * 128 + head * 8)
    attention = 4 * 8 * heads * 16 * 16 * (width // heads) * layers
    assert dense < frame["flops"].iloc[0] <= dense + 4 * attention
    assert frame["flops"].iloc[-1] == pytest.approx(frame["flops"].iloc[0] * 5 / 8)
    history = training.History(steps=[{"tokens": 10, "seconds": s} for s in (5.0, 6.0, 8.0)])
    assert history.tokens_per_second() == pytest.approx(20 / 3)
    assert history.tokens_per_second(skip=0) == pytest.approx(30 / 8)


MOMENTS = (
    "on_train_begin",
    "forward",
    "scale_loss",
    "should_update",
    "before_update",
    "update",
    "after_batch",
    "on_train_end",
)


def test_callbacks_are_called_at_their_moments_in_order(run):
    calls = []

    def spy_on(moment):
        def call(self, *arguments):
            calls.append(moment)
            return getattr(training.Callback, moment)(self, *arguments)

        return call

    Spy = type("Spy", (training.Callback,), {moment: spy_on(moment) for moment in MOMENTS})  # noqa: N806
    run(Spy(), steps=1)
    assert tuple(calls) == MOMENTS


def test_clipping_bounds_the_joint_norm(run):
    norms = []

    class Norm(training.Callback):
        def before_update(self, run):
            norms.append(torch.nn.utils.get_total_norm([p.grad for p in run.model.parameters()]).item())

    run(Norm(), training.ClipGradients(0.01), Norm())
    assert min(norms[::2]) > 0.01
    assert norms[1::2] == pytest.approx([0.01] * 5, rel=1e-3)
    with pytest.raises(ValueError, match="max_norm=0"):
        training.ClipGradients(0)


def test_autocast_is_really_on(fresh, batches):
    model, optimizer = fresh()
    seen = []
    model.classifier.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    training.train(model, optimizer, batches, steps=1, callbacks=[training.Autocast(torch.bfloat16)], progress=False)
    assert seen == [torch.bfloat16]
    assert all(p.dtype == torch.float32 for p in model.parameters())


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
def test_every_callback_that_started_finishes(run, moment, expected):
    finished = []
    with pytest.raises(ZeroDivisionError):
        run(Fails("a", finished), Fails("b", finished, moment), Fails("c", finished), steps=1)
    assert "".join(finished) == expected


def test_memory_that_does_not_suffice_is_said_in_one_sentence_and_checkpoints_stay(run, tmp_path):
    class TooLarge(training.Callback):
        def before_update(self, run):
            if run.step == 2:
                torch.empty(2**60)

    path = tmp_path / "run.pt"
    with pytest.raises(CourseError, match="Memory does not suffice .* COURSE_SCALE") as error:
        run(TooLarge(), training.SaveCheckpoints(path, 1))
    assert "\n" not in str(error.value)
    assert run(resume_from=path)[1].frame().index[-1] == 5
    with pytest.raises(RuntimeError, match="sizes do not match"):  # another error stays what it is
        run(Fails("a", [], "before_update", RuntimeError("sizes do not match")))


def test_what_is_no_training_is_refused(run, batches):
    for once in (iter(batches), (batch for batch in batches)):
        with pytest.raises(CourseError, match="no length"):
            run(loader=once)
    for wrong in ({"epochs": 0}, {"steps": 0}):
        with pytest.raises(CourseError, match="at least 1"):
            run(**wrong)


def test_evaluate_against_a_count_by_hand(fresh, batches, split):
    model = fresh()[0]
    model.classifier.eval()
    result = training.evaluate(model, batches)
    assert model.training
    assert not model.classifier.training
    model.eval()
    with torch.no_grad():
        output = model(
            input_ids=torch.tensor(split["input_ids"][:]),
            attention_mask=torch.tensor(split["attention_mask"][:]),
            labels=torch.tensor(split["labels"][:]),
        )
    right = (output.logits.argmax(-1) == torch.tensor(split["labels"][:])).float().mean().item()
    assert result["accuracy"] == pytest.approx(right)
    assert result["loss"] == pytest.approx(output.loss.item(), rel=1e-5)


def test_evaluate_on_nothing_is_refused_and_a_failure_leaves_the_mode(fresh, batches):
    model = fresh()[0]
    with pytest.raises(CourseError, match="nothing to evaluate"):
        training.evaluate(model, [])
    with pytest.raises(ValueError, match="input_ids"):
        training.evaluate(model, [{"labels": torch.ones(1)}])
    assert model.training


def test_a_language_model_is_evaluated_by_its_loss(batches):
    rows = [{"input_ids": batch["input_ids"], "labels": batch["input_ids"]} for batch in batches]
    assert set(training.evaluate(models.build("gpt2"), rows)) == {"loss"}


def test_one_step_marks_its_phases_and_updates(fresh, batches):
    from course_utils.memory import measure

    model, optimizer = fresh()
    before, batch = copy.deepcopy(model), next(iter(batches))
    measured = measure((model, optimizer, batch), training.train_step)
    assert set(measured.by_phase) == {"forward", "backward", "update"}
    assert not same(model, before)
    assert all(p.grad is None for p in model.parameters())
