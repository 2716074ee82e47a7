"""Averages of 16 and 4 bits: against float64 from the papers' text, against torchao where it is installed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from optimizer_runs import state_bytes_of

from course_utils.optim import AdamW
from course_utils.optim.low_bit import AdamW4bit, AdamW16bit, pack_nibbles, round_to_bf16, unpack_nibbles

DYNAMIC = torch.tensor([0.0055, 0.0325, 0.0775, 0.2125, 0.4375, 0.6625, 0.8875], dtype=torch.float64)
BOOKS = {1: torch.cat([-DYNAMIC, torch.zeros(1), DYNAMIC, torch.ones(1)]), 2: torch.arange(1.0, 17).double() / 16}


def noise(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rounded(average, book):
    """Blocks of 128, every entry of the book tried for every element."""
    blocks = average.view(-1, 128)
    scales = blocks.abs().amax(1, keepdim=True)
    return (book[(blocks[..., None] / scales[..., None] - book).abs().argmin(-1)] * scales).view(average.shape)


def test_4_bit_steps_are_the_equations_with_averages_rounded_to_16_numbers():
    parameter = torch.nn.Parameter(noise(64, 128))
    theta, m, v = parameter.detach().double(), 0.0, 0.0
    optimizer = AdamW4bit([parameter], lr=0.01, weight_decay=0.1)
    for t in range(1, 5):
        g = noise(64, 128, seed=t).double()
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        theta = theta * (1 - 0.001) - 0.01 * m / (1 - 0.9**t) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
        m, v = rounded(m, BOOKS[1]), rounded(v, BOOKS[2])
        parameter.grad = g.float()
        optimizer.step()
        # Where two entries are equally near, 32 and 64 bits may choose different ones.
        assert ((parameter - theta).abs() < 1e-5).float().mean() > 0.999


def test_4_bit_steps_and_bytes_are_torchaos():
    theirs = pytest.importorskip("torchao.optim").AdamW4bit
    pair = [torch.nn.Parameter(noise(64, 128)) for _ in range(2)]
    ours, its = AdamW4bit(pair[:1], lr=0.01), theirs(pair[1:], lr=0.01, weight_decay=0.01)
    for seed in range(3):
        for parameter in pair:
            parameter.grad = noise(64, 128, seed=seed)
        ours.step()
        its.step()
        assert ((pair[0] - pair[1]).abs() < 1e-6).float().mean() > 0.999
    averages = [its.state[pair[1]][name] for name in ("exp_avg", "exp_avg_sq")]
    its_bytes = sum(getattr(average, name).nbytes for average in averages for name in average.tensor_attrs)
    assert sum(t.nbytes for t in ours.state[pair[0]].values() if isinstance(t, torch.Tensor)) == its_bytes


@pytest.mark.parametrize("shape", [(64, 128), (4095,), (65, 127), (3,)])
@pytest.mark.parametrize("kind", [AdamW4bit, AdamW16bit])
def test_state_bytes_are_those_of_the_state_without_codebooks(kind, shape):
    assert kind.state_bytes(shape) == state_bytes_of(kind, torch.nn.Parameter(torch.ones(shape)))


def test_a_4_bit_state_goes_on_after_it_was_saved():
    pair = [torch.nn.Parameter(noise(64, 65)) for _ in range(2)]
    optimizers, saved = [AdamW4bit([p], lr=0.1) for p in pair], {}
    for seed in range(4):
        for parameter in pair:
            parameter.grad = noise(64, 65, seed=seed)
        optimizers[0].step()
        if seed == 2:
            optimizers[1] = AdamW4bit(pair[1:], lr=0.1)
            optimizers[1].load_state_dict(saved)
        optimizers[1].step()
        saved = optimizers[1].state_dict()
    assert torch.equal(*pair)


@given(st.lists(st.integers(0, 15), max_size=9))
def test_codes_come_back_as_they_were_packed(codes):
    packed = pack_nibbles(torch.tensor(codes, dtype=torch.uint8))
    assert len(packed) == -(-len(codes) // 2)
    assert unpack_nibbles(packed, len(codes)).tolist() == codes


def test_a_rounded_number_is_one_of_its_two_neighbors_and_the_mean_is_right():
    values = torch.tensor([1.001, -1.001, 3.14159, 1e-3, 1e-39])
    samples = round_to_bf16(values.repeat(20_000, 1)).double()
    for value, column in zip(values.double(), samples.T, strict=True):
        levels = column.unique()
        assert len(levels) == 2
        assert levels[0] < value < levels[1]
        spread = (levels[1] - levels[0]) / 2 / 20_000**0.5
        assert (column.mean() - value).abs() < 5 * spread


def test_what_bf16_can_hold_stays_as_it_is():
    values = torch.cat([noise(1_000).bfloat16().float(), torch.tensor([0.0, -0.0, torch.inf, -torch.inf])])
    assert torch.equal(round_to_bf16(values).float(), values)


def test_a_falling_second_moment_falls_at_random_and_stands_still_to_nearest():
    """Without gradients v falls by 0.1 % a step, less than half a step of bfloat16."""
    left = {}
    for stochastic in (True, False):
        parameter = torch.nn.Parameter(torch.zeros(10_000))
        optimizer = AdamW16bit([parameter], stochastic=stochastic)
        parameter.grad = torch.ones(10_000)
        optimizer.step()
        parameter.grad = torch.zeros(10_000)
        before = optimizer.state[parameter]["exp_avg_sq"].float().mean()
        for _ in range(500):
            optimizer.step()
        left[stochastic] = (optimizer.state[parameter]["exp_avg_sq"].float().mean() / before).item()
    assert left[False] == 1
    assert left[True] == pytest.approx(0.999**500, rel=0.02)


def test_16_bit_averages_give_nearly_the_steps_of_32_bits():
    means = []
    for kind in (AdamW, AdamW16bit):
        parameter = torch.nn.Parameter(noise(50, 50))
        optimizer = kind([parameter], lr=0.01)
        for seed in range(5):
            parameter.grad = noise(50, 50, seed=seed)
            optimizer.step()
        means.append(parameter.detach() - noise(50, 50))
    assert (means[0] - means[1]).norm() < 0.01 * means[0].norm()
