"""Chapter 06: every slip is what its name says, ranks agree with one process, and figures draw the data.

A slip is equal to the plain loop with that one line wrong, and unequal to the right one.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from course_utils import data, models, training
from course_utils.distributed import launch
from course_utils.lessons import c06_gradient_accumulation as lesson
from course_utils.training.gradients import gradient_of_update, relative_error

K = 3
CLIP = 0.05
RATE = 0.5
COUNTS = (1, 6, 2, 6, 6, 3, 1, 5)


class Regression(nn.Module):
    """Batches of different numbers of rows; each label counts."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.layer = nn.Linear(4, 1, dtype=torch.float64)

    def forward(self, input_ids, labels):
        return SimpleNamespace(loss=nn.functional.mse_loss(self.layer(input_ids)[:, 0], labels))


class Loader(list):
    sampler = None


@pytest.fixture(scope="module")
def batches():
    draw = torch.Generator().manual_seed(1)
    tensors = [torch.randn(count, 5, generator=draw, dtype=torch.float64) for count in COUNTS]
    return Loader({"input_ids": rows[:, :4], "labels": rows[:, 4] * 3} for rows in tensors)


def parts(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


def terms(batches):
    return sum(len(batch["labels"]) for batch in batches)


def by_terms(batch, group):
    return terms([batch]) / terms(group)


def plain_loop(groups, weigh=by_terms, after_backward=lambda model, schedule, batch, group: None):
    """The loop as anyone would write it: an update for each group of batches, whose losses count by their weights."""
    model = Regression()
    optimizer, schedule = parts(model)
    for group in groups:
        for batch in group:
            (model(**batch).loss * weigh(batch, group)).backward()
            after_backward(model, schedule, batch, group)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def groups_of(batches):
    return [batches[i : i + K] for i in range(0, len(batches), K)]


def full_groups(batches):
    return [group for group in groups_of(batches) if len(group) == K]


def clip_in_units(model, schedule, batch, group):
    """Clip as `Accumulate` sees the sum: in units of the first micro-batch's terms."""
    unit = by_terms(group[0], group)
    for p in model.parameters():
        p.grad /= unit
    nn.utils.clip_grad_norm_(model.parameters(), K * CLIP)
    for p in model.parameters():
        p.grad *= unit


def step_before_the_update(model, schedule, batch, group):
    if batch is not group[-1]:
        schedule.step()


def train_with(batches, callback):
    model = Regression()
    optimizer, schedule = parts(model)
    training.train(model, optimizer, batches, schedule=schedule, callbacks=[callback], progress=False)
    return nn.utils.parameters_to_vector(model.parameters()).detach()


SLIPS = {
    "at 0": (lesson.StepsAtBatchZero(K), lambda b: plain_loop([b[:1], *full_groups(b[1:])])),
    "by k": (lesson.DividesByK(K), lambda b: plain_loop(groups_of(b), weigh=lambda batch, group: 1 / K)),
    "drop last": (lesson.DropsLastGroup(K), lambda b: plain_loop(full_groups(b))),
    "zero each time": (
        lesson.ZeroesEachTime(K),
        lambda b: plain_loop(groups_of(b), weigh=lambda batch, group: by_terms(batch, group) * (batch is group[-1])),
    ),
    "clip each time": (
        lesson.ClipsEachTime(K, CLIP),
        lambda b: plain_loop(groups_of(b), after_backward=clip_in_units),
    ),
    "schedule each time": (
        lesson.SchedulesEachTime(K),
        lambda b: plain_loop(groups_of(b), after_backward=step_before_the_update),
    ),
}


def test_accumulation_is_the_plain_loop(batches):
    right = train_with(batches, training.Accumulate(K))
    assert torch.allclose(right, plain_loop(groups_of(batches)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_is_the_plain_loop_with_that_line_wrong(batches, slip):
    callback, wrong_loop = SLIPS[slip]
    expected = wrong_loop(batches)
    assert torch.allclose(train_with(batches, callback), expected, rtol=0, atol=1e-12)
    assert not torch.allclose(expected, train_with(batches, training.Accumulate(K)), rtol=0, atol=1e-4)


def test_without_zeroing_every_update_holds_the_gradients_before_it(batches):
    model = Regression()
    seen = []

    class Look(training.Callback):
        def before_update(self, run):
            seen.append(run.model.layer.weight.grad.clone())

    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    training.train(model, optimizer, Loader(batches[:6]), callbacks=[lesson.ForgetsToZero(K), Look()], progress=False)
    first, second = (joint_gradient(batches[i : i + 3]) for i in (0, 3))
    assert torch.allclose(seen[0], first)
    assert torch.allclose(seen[1], second + first)


def test_the_bound_of_equal_micro_batches_is_that_of_their_mean(batches):
    equal = Loader({name: value[:2] for name, value in batch.items()} for batch in batches if len(batch["labels"]) > 1)[
        :K
    ]
    model = Regression()
    for batch in equal:
        (model(**batch).loss / K).backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    torch.optim.SGD(model.parameters(), lr=RATE).step()
    expected = nn.utils.parameters_to_vector(model.parameters()).detach()
    assert torch.allclose(train_with(Loader(equal), lesson.ClipsEachTime(K, CLIP)), expected, rtol=0, atol=1e-6)


def joint_gradient(batches):
    model = Regression()
    model(**{name: torch.cat([b[name] for b in batches]) for name in batches[0]}).loss.backward()
    return model.layer.weight.grad


def test_the_gradient_of_an_update_is_read_from_the_step(batches):
    model = Regression()
    before = [p.clone() for p in model.parameters()]
    run = {"callbacks": [training.Accumulate(3)], "progress": False}
    gradient = gradient_of_update(model, lambda o: training.train(model, o, Loader(batches[:3]), **run))
    right = joint_gradient(batches[:3]).flatten()
    assert relative_error(gradient[:4], right) < 1e-12
    assert all(map(torch.equal, before, model.parameters()))


def test_even_groups_and_a_constant_rate_hide_four_slips(batches):
    even = Loader({name: value[:2] for name, value in batch.items()} for batch in batches if len(batch["labels"]) > 1)

    def run(callback):
        model = Regression()
        optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
        schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
        training.train(model, optimizer, even, schedule=schedule, callbacks=[callback], progress=False)
        return nn.utils.parameters_to_vector(model.parameters()).detach()

    right = run(training.Accumulate(K))
    assert len(even) == 2 * K
    never = lesson.ClipsEachTime(K, 1e9)
    for hidden in (lesson.DividesByK(K), lesson.DropsLastGroup(K), lesson.SchedulesEachTime(K), never):
        assert torch.allclose(run(hidden), right, rtol=1e-12, atol=1e-12), hidden
    for seen in (lesson.StepsAtBatchZero(K), lesson.ForgetsToZero(K), lesson.ZeroesEachTime(K)):
        assert not torch.allclose(run(seen), right, rtol=1e-3), seen


def test_no_sync_sends_once_and_gives_the_gradient_of_all_ranks_together(batches):
    shares = [batches[:3], batches[3:6]]
    right = joint_gradient(batches[:6])
    size = sum(p.nbytes for p in Regression().parameters())
    for by_method in launch(lesson.accumulate_on_rank, 2, Regression, shares):
        assert [by_method[name][1].payload for name in lesson.NO_SYNC] == [3 * size, size, size, 3 * size]
        for gradients, _ in by_method.values():
            assert torch.allclose(gradients["layer.weight"], right, rtol=0, atol=1e-12)


@pytest.fixture(scope="module")
def ragged_texts():
    """A language model's texts, sorted by length, in four micro-batches and as one; padding does not count."""
    lengths = torch.arange(2, 18)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 900, (16, 17), generator=generator)
    mask = (torch.arange(17) < lengths[:, None]).long()
    columns = {"input_ids": ids, "attention_mask": mask, "labels": ids.where(mask == 1, -100)}
    texts = Dataset.from_dict({name: column.tolist() for name, column in columns.items()})
    return data.batches(texts, 4), data.batches(texts, 16)


def test_libraries_are_where_the_chapter_puts_them(ragged_texts):
    """Plain Accelerate is a mean of means; Trainer counts tokens, with the shift where the class's name tells of it."""
    parts, joint_batches = ragged_texts
    model = models.build("llama").double()

    def gradient_by(batches, train, **options):
        return gradient_of_update(model, lambda sgd: train(model, sgd, batches, **options))

    right = gradient_by(joint_batches, training.train, progress=False)
    means = gradient_by(parts, training.train, progress=False, callbacks=[lesson.DividesByK(4)])
    assert (
        relative_error(gradient_by(parts, training.train, progress=False, callbacks=[training.Accumulate(4)]), right)
        < 1e-6
    )
    assert relative_error(means, right) > 0.1
    plain = gradient_by(parts, training.train_with_accelerate, gradient_accumulation_steps=4)
    assert relative_error(plain, means) < 1e-6
    assert relative_error(gradient_by(parts, training.train_with_trainer, gradient_accumulation_steps=4), right) < 1e-6


TOKENS = st.lists(st.integers(1, 1000), min_size=1, max_size=20)


@given(TOKENS)
def test_a_mean_of_means_gives_every_micro_batch_the_same(counts):
    weights = lesson.token_weights(counts)
    assert weights * counts == pytest.approx(np.full(len(counts), sum(counts) / len(counts)))


def test_the_play_knows_how_far_a_mean_of_means_is_off(ragged_texts):
    """From the texts' own gradients it finds what training finds."""
    parts, joint_batches = ragged_texts
    model = models.build("llama").double()
    gradients = lesson.token_gradients(model, data.batches(ragged_rows(parts), 1))
    counts, error = gradients.mean_of_means(4, by_length=True)
    assert counts.tolist() == [training.num_loss_tokens(model, batch) for batch in parts]

    def gradient_with(batches, *callbacks):
        run = {"callbacks": callbacks, "progress": False}
        return gradient_of_update(model, lambda sgd: training.train(model, sgd, batches, **run))

    assert error == pytest.approx(
        relative_error(gradient_with(parts, lesson.DividesByK(4)), gradient_with(joint_batches)), rel=1e-4
    )
    assert gradients.mean_of_means(16, by_length=False)[1] == pytest.approx(0, abs=1e-6)


def ragged_rows(parts):
    columns = {name: torch.cat([batch[name] for batch in parts]).tolist() for name in next(iter(parts))}
    return Dataset.from_dict(columns)


def test_play_draws_counts_and_weights():
    texts = lesson.TokenGradients(np.array([4, 1, 2, 3]), np.eye(4))
    figure, alt = lesson.play_weights(texts, size=2)
    above, below = figure.axes
    assert [bar.get_height() for bar in above.patches] == [3, 7]
    assert [1 + bar.get_height() for bar in below.patches] == pytest.approx(lesson.token_weights([3, 7]).tolist())
    off = np.array([2 / 3, 2 / 3, -2 / 7, -2 / 7])
    assert f"off by {(off @ off / 4) ** 0.5:.1%}" in alt


def test_weighing_by_text_is_the_same_where_all_texts_are_equally_long():
    ids = torch.randint(5, 900, (64, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)

    def train_both():
        held_out = ids[:8], mask[:8]
        return [lesson.train_on_texts(models.build("llama"), ids, mask, held_out, kind, 1) for kind in (False, True)]

    by_token, by_text = train_both()
    for kind in ("reported", "by token", "by text"):
        assert by_token[kind] == pytest.approx(by_text[kind], abs=1e-4)
        assert len(by_token[kind]) == 2
    mask[::2, 6:] = 0
    by_token, by_text = train_both()
    assert abs(by_token["by token"][-1] - by_text["by token"][-1]) > 1e-5
    reported = [run["reported"][-1] for run in (by_token, by_text)]
    assert reported == [by_token["training, by token"][-1], by_text["training, by text"][-1]]


def test_noise_falls_with_the_micro_batches_of_a_group():
    draw = torch.Generator().manual_seed(0)
    gradients = 3.0 + torch.randn(512, 40, generator=draw, dtype=torch.float64)
    of_one, of_four = lesson.noise_by_groups(gradients, (1, 4))
    assert of_one == pytest.approx(1 / 9, rel=0.05)
    assert of_four == pytest.approx(of_one / 4, rel=0.15)
    figure, alt = lesson.accumulated_noise_figure([1, 4], {"fresh": [[of_one, of_four], [2 * of_one, 2 * of_four]]})
    assert len(figure.axes[0].containers) == 1
    assert f"fresh: {1.5 * of_one:.3g} ({of_one:.3g} to {2 * of_one:.3g}) at 1" in alt


def test_norms_are_noted_before_they_are_clipped():
    noted = lesson.NotesNorms()
    parameter, unused = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))
    parameter.grad = torch.tensor([3.0, 4.0])
    run = SimpleNamespace(model=SimpleNamespace(parameters=lambda: [parameter, unused]))
    for callback in (noted, training.ClipGradients(1.0), noted):
        callback.before_update(run)
    assert noted.norms == pytest.approx([5.0, 1.0])
