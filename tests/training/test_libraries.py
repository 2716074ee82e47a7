"""Of the room: the same run with Accelerate and with Trainer: the same losses, and the model comes back as it was."""

import pytest
import torch

from course_utils import training

both_libraries = pytest.mark.parametrize("library", ["train_with_accelerate", "train_with_trainer"])


@both_libraries
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


def test_trainer_builds_the_optimizer_that_its_arguments_name(model_and_optimizer, batches):
    model, optimizer = model_and_optimizer()
    ours = training.train(model, optimizer, batches, progress=False)
    theirs = training.train_with_trainer(
        model_and_optimizer()[0], None, batches, optim="adamw_torch", learning_rate=1e-3, weight_decay=0.01
    )
    assert type(theirs.optimizer) is torch.optim.AdamW
    assert [group["weight_decay"] for group in theirs.optimizer.param_groups] == [0.01, 0.0]
    assert theirs.losses == pytest.approx(ours.losses, rel=1e-5)


def test_accelerate_takes_other_options_in_the_same_process(model_and_optimizer, batches):
    training.train_with_accelerate(*model_and_optimizer(), batches)
    lower = training.train_with_accelerate(*model_and_optimizer(), batches, mixed_precision="bf16")
    assert lower.losses != training.train_with_accelerate(*model_and_optimizer(), batches).losses


@both_libraries
def test_a_library_run_in_lower_precision_gives_the_model_back_as_it_was(model_and_optimizer, batches, library):
    model, optimizer = model_and_optimizer()
    options = {"mixed_precision": "bf16"} if library == "train_with_accelerate" else {"bf16": True}
    seen = []
    hook = model.classifier.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    getattr(training, library)(model, optimizer, batches, **options)
    assert set(seen) == {torch.bfloat16}  # it was really on
    hook.remove()
    assert model(**next(iter(batches))).logits.dtype == torch.float32
