"""Steps that plain fake tensors get wrong, each compared with the allocator on the same step."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course_utils.errors import CourseError
from course_utils.memory import dry_run, measure
from course_utils.memory.trace import fake
from course_utils.optim import AdamW8bit, codebook, quantization


def net(width=64):
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


def adamw(model):
    return torch.optim.AdamW(model.parameters(), foreach=False)


def back_from_squares(model, x):
    model(x).square().mean().backward()


def train(model, optimizer, x):
    back_from_squares(model, x)
    optimizer.step()
    optimizer.zero_grad()


def with_average():
    model = net()
    return model, torch.optim.swa_utils.AveragedModel(model), adamw(model), torch.randn(32, 64)


def train_and_average(model, average, optimizer, x):
    train(model, optimizer, x)
    average.update_parameters(model)


def with_schedule():
    model = net()
    optimizer = adamw(model)
    return model, optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer), torch.randn(32, 64)


def train_by_schedule(model, optimizer, schedule, x):
    train(model, optimizer, x)
    schedule.step()


def in_backward():
    model = net()
    for parameter in model.parameters():
        optimizer = torch.optim.AdamW([parameter], foreach=False)

        def update(parameter, optimizer=optimizer):
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(update)
    return model, torch.randn(32, 64)


class Uses(nn.Module):
    """A model that uses one weight for each row, so that autograd adds up its gradients."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(64, 64)

    def forward(self, x):
        state = x.new_zeros(len(x), 64)
        for token in x.unbind(1):
            state = self.cell(token, state)
        return state


LOSSES = [F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.l1_loss]
CASES = {
    "a deep copy": (with_average, train_and_average),
    "a scheduler in the tuple": (with_schedule, train_by_schedule),
    "optimizers that only hooks know": (in_backward, back_from_squares),
    "rows gathered from a data set": (
        lambda: (net(), torch.randn(2000, 64)),
        lambda model, data: back_from_squares(model, data[torch.randint(2000, (32,))]),
    ),
    "a mask of values that are known": (
        lambda: (net(), torch.randn(90, 64), torch.arange(90) % 3 == 0),
        lambda model, x, mask: back_from_squares(model, x[mask]),
    ),
    "student and teacher": (
        lambda: (net(), net(), torch.randn(32, 64)),
        lambda student, teacher, x: F.mse_loss(student(x), teacher(x).detach()).backward(),
    ),
    "a cell called token by token": (lambda: (Uses(), torch.randn(16, 20, 64)), back_from_squares),
    "a gradient of an expanded number": (lambda: (net(), torch.randn(512, 64)), lambda m, x: m(x).sum().backward()),
    "recurrent layers": (
        lambda: (nn.LSTM(64, 64, 2, batch_first=True), torch.randn(8, 30, 64)),
        lambda model, x: model(x)[0].square().mean().backward(),
    ),
    "layer norm of mixed types": (
        lambda: (nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 64)), torch.randn(400, 64)),
        lambda model, x: _under_autocast(lambda: model(x).square().mean()).backward(),
    ),
    "a truncated normal": (lambda: (_initialize(nn.Linear(64, 64)), torch.randn(8, 64)), back_from_squares),
} | {
    loss.__name__: (
        lambda: (net(), torch.randn(320, 64), torch.randn(320, 64)),
        lambda m, x, y, loss=loss: loss(m(x), y).backward(),
    )
    for loss in LOSSES
}


def _under_autocast(forward):
    with torch.autocast("cpu", torch.bfloat16):
        return forward()


def _initialize(layer):
    nn.init.trunc_normal_(layer.weight)
    return layer


@pytest.mark.parametrize(("build", "step"), CASES.values(), ids=CASES)
def test_the_dry_run_is_what_the_allocator_counts(build, step):
    measured = measure(build, step, timed=0)
    assert dry_run(build, step).peak == pytest.approx(measured.peak, rel=0.005)
    assert measured.usage.peak == pytest.approx(measured.peak, rel=0.005)


def test_a_mask_of_ones_is_recognized_as_one():
    """Transformers drops a mask of ones; a fake mask of unknown values would be kept, and grow with s²."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = Qwen2Config(**sizes, num_key_value_heads=2, vocab_size=100)

    def build(masked):
        ids = torch.ones(1, 256, dtype=torch.int64)
        return Qwen2ForCausalLM(config).train(), ids, torch.ones_like(ids) if masked else None

    def step(model, ids, mask):
        model(input_ids=ids, attention_mask=mask, labels=ids).loss.backward()

    masked, plain = (dry_run(lambda m=m: build(m), step).peak for m in (True, False))
    assert 0 <= masked - plain <= 3 * 256 * 8
    assert masked == measure(lambda: build(True), step, timed=0).peak


def test_what_follows_from_whole_numbers_is_known():
    def step(model, lengths):
        lengths = lengths.clone()
        mask = torch.arange(8) < lengths[:, None]
        assert mask.sum().item() == 3 + 5
        assert mask.any(0).tolist() == [True] * 5 + [False] * 3
        assert not mask.all()
        lengths[0] = 8
        assert lengths.max().item() == 8
        model(torch.ones(1, 4))

    dry_run(lambda: (nn.Linear(4, 4), torch.tensor([3, 5])), step)


def test_what_is_overwritten_with_unknown_numbers_is_known_no_more():
    def step(model, numbers):
        numbers.copy_(model(torch.ones(1, 4)).flatten() * 100)
        assert numbers.sum().item() == 1, "a number that depends on floating tensors is answered with 1"

    dry_run(lambda: (nn.Linear(4, 4), torch.zeros(4, dtype=torch.int64)), step)


def test_a_loop_that_waits_for_another_answer_is_stopped_with_its_line(monkeypatch):
    monkeypatch.setattr(fake, "MAX_REPEATED_QUESTIONS", 50)

    def step(model):
        while model(torch.ones(1, 4)).sum() > 0:  # always so: the answer is 1
            pass

    with pytest.raises(CourseError, match=r"stopped at line \d+ of test_fake.py \(`while model.*leave the loop out"):
        dry_run(lambda: (nn.Linear(4, 4),), step)


def test_a_run_that_takes_too_long_is_stopped_with_its_line():
    def step(model, x):
        for _ in range(10**9):
            x = model(x)

    with pytest.raises(CourseError, match=r"after 1 seconds at line .*more time \(timeout=…\)"):
        dry_run(lambda: (nn.Linear(4, 4), torch.ones(1, 4)), step, timeout=1)


def test_libraries_are_as_they_were_afterwards():
    def patched():
        return torch.nn.init._no_grad_trunc_normal_, torch.Tensor.__deepcopy__, nn.Parameter.__deepcopy__

    before, state = patched(), torch.get_rng_state()
    dry_run(with_average, train_and_average, "cuda")
    assert before == patched()
    assert torch.equal(state, torch.get_rng_state())
    halves = torch.ones(4, dtype=torch.bfloat16).softmax(0, dtype=torch.float32)
    assert halves.tolist() == [0.25] * 4, "CUDA's kernels are gone again"
    assert type(torch.ones(2) + 1) is torch.Tensor


def test_codebooks_that_are_kept_for_good_are_real():
    """If these tables were made in a dry run, they would be fake in every later step of the process."""
    codebook.dynamic_codebook.cache_clear()
    quantization.lookup_table.cache_clear()

    def build():
        model = net()
        return model, AdamW8bit(model.parameters(), lr=1e-3, min_8bit_size=0), torch.randn(8, 64)

    dry_run(build, train)
    codes = codebook.dynamic_codebook(False, device=torch.device("cpu"))
    assert not fake.is_fake(codes)
    assert quantization.lookup_table(codes) is not None
    train(*build())
