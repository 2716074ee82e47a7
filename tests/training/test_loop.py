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


def same(first, second):
    return all(torch.equal(p, q) for p, q in zip(first.parameters(), second.parameters(), strict=True))


def test_the_loop_is_the_bare_loop(scheduled, batches):
    model, optimizer, schedule = scheduled()
    history = training.train(model, optimizer, batches, epochs=2, schedule=schedule, progress=False)
    reference, its_optimizer, its_schedule = scheduled()
    assert history.losses == bare_loop(reference, its_optimizer, its_schedule, batches, epochs=2)
    assert same(model, reference)
    assert history.optimizer is optimizer


def test_evaluation_and_progress_change_nothing(fresh, batches, split):
    plain = training.train(*fresh(), batches, epochs=2, progress=False)
    watched = training.train(*fresh(), batches, epochs=2, evaluate_on=batches, progress=True)
    assert plain.losses == watched.losses
    assert [row["epoch"] for row in watched.evaluations] == [1, 2]
    assert {"loss", "accuracy", "f1", "step"} <= set(watched.evaluations[0])


@pytest.mark.parametrize("library", ["train_with_accelerate", "train_with_trainer"])
@pytest.mark.parametrize("kind", ["by hand", "torch"])
def test_libraries_give_the_same_losses_step_by_step(scheduled, batches, library, kind):
    from course_utils.optim import AdamW

    kind = AdamW if kind == "by hand" else torch.optim.AdamW
    model, optimizer, schedule = scheduled(kind)
    ours = training.train(model, optimizer, batches, epochs=2, schedule=schedule, progress=False)
    other, its_optimizer, its_schedule = scheduled(kind)
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


def test_steps_end_the_run_early(fresh, batches):
    full = training.train(*fresh(), batches, epochs=2, progress=False)
    cut = training.train(*fresh(), batches, epochs=2, steps=7, progress=False)
    assert cut.losses == full.losses[:7]


def test_the_history_counts_tokens_time_and_operations(fresh, batches):
    model, optimizer = fresh()
    frame = training.train(model, optimizer, batches, progress=False).frame()
    assert list(frame.index) == [1, 2, 3, 4, 5]
    assert frame["tokens"].tolist() == [128, 128, 128, 128, 80]
    assert frame["seconds"].is_monotonic_increasing
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


def test_plugins_are_called_at_their_moments_in_order(fresh, batches):
    calls = []

    class Spy(training.Plugin):
        def __getattribute__(self, name):
            if not name.startswith("_") and name not in ("state_dict", "load_state_dict"):
                calls.append(name)
            return super().__getattribute__(name)

    training.train(*fresh(), batches, steps=1, plugins=[Spy()], progress=False)
    assert calls == ["start", "forward", "objective", "wants_update", "before_update", "after_step", "finish"]


def test_a_plugin_can_hold_the_update_back(scheduled, batches):
    class EverySecond(training.Plugin):
        def wants_update(self, run):
            return run.step % 2 == 1

    model, optimizer, schedule = scheduled()
    training.train(model, optimizer, batches, schedule=schedule, steps=4, plugins=[EverySecond()], progress=False)
    assert next(iter(optimizer.state.values()))["step"].item() == 2
    assert schedule.last_epoch == 2


def test_clipping_bounds_the_joint_norm(fresh, batches):
    norms = []

    class Norm(training.Plugin):
        def before_update(self, run):
            norms.append(torch.nn.utils.get_total_norm([p.grad for p in run.model.parameters()]).item())

    training.train(*fresh(), batches, plugins=[Norm(), training.ClipGradients(0.01), Norm()], progress=False)
    assert min(norms[::2]) > 0.01
    assert norms[1::2] == pytest.approx([0.01] * 5, rel=1e-3)
    with pytest.raises(ValueError, match="max_norm=0"):
        training.ClipGradients(0)


def test_autocast_is_really_on(fresh, batches):
    model, optimizer = fresh()
    seen = []
    model.classifier.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    training.train(model, optimizer, batches, steps=1, plugins=[training.Autocast(torch.bfloat16)], progress=False)
    assert seen == [torch.bfloat16]
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_the_bar_is_closed_even_when_a_step_fails(fresh, batches):
    closed = []

    class Fails(training.Plugin):
        def before_update(self, run):
            raise ZeroDivisionError

        def finish(self, run):
            closed.append(True)

    with pytest.raises(ZeroDivisionError):
        training.train(*fresh(), batches, plugins=[Fails()])
    assert closed == [True]


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"steps": 0}])
def test_no_training_at_all_is_refused(fresh, batches, wrong):
    with pytest.raises(CourseError, match="at least 1"):
        training.train(*fresh(), batches, **wrong)


def test_evaluate_against_a_count_by_hand(fresh, batches, split):
    model = fresh()[0]
    result = training.evaluate(model, batches)
    assert model.training
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


def test_one_step_marks_its_phases_and_updates(fresh, batches):
    from course_utils.memory import peak_by_phase

    model, optimizer = fresh()
    before, batch = copy.deepcopy(model), next(iter(batches))
    peaks = peak_by_phase(lambda: training.train_step(model, optimizer, batch), model, optimizer, batch)
    assert set(peaks.by_phase) == {"forward", "backward", "update"}
    assert not same(model, before)
    assert all(p.grad is None for p in model.parameters())
