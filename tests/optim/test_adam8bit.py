"""8-bit Adam by hand: against a float64 reference that searches the whole book, and against bitsandbytes."""

import copy
import itertools

import bitsandbytes
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optimizer_runs import parameters_of, run_beside, scratch_of, state_bytes_of

from course_utils import memory
from course_utils.optim import Adam8bit, AdamW8bit
from course_utils.optim.codebook import dynamic_codebook
from course_utils.units import MiB

PAIRS = [(Adam8bit, bitsandbytes.optim.Adam8bit), (AdamW8bit, bitsandbytes.optim.AdamW8bit)]
BOOKS = {1: dynamic_codebook(True).double(), 2: dynamic_codebook(False).double()}
shapes = st.lists(st.integers(1, 6), min_size=0, max_size=3).map(tuple)


class Reference(torch.optim.Optimizer):
    """8-bit AdamW from the paper's text: float64, flat, one block after another, every entry tried."""

    def __init__(self, groups):
        super().__init__(groups, {})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.update(p.view(-1), p.grad.flatten(), self.state[p], group)

    def update(self, theta, g, state, group):
        state["t"] = t = state.get("t", 0) + 1
        beta1, beta2 = group["betas"]
        m = beta1 * state.get("m", 0) + (1 - beta1) * g
        v = beta2 * state.get("v", 0) + (1 - beta2) * g**2
        m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
        step = group["lr"] * m_hat / (v_hat**0.5 + group["eps"])
        theta.copy_(theta * (1 - group["lr"] * group["weight_decay"]) - step)
        if len(theta) >= group["min_8bit_size"]:
            m, state["state1"] = self.rounded(m, BOOKS[1], group["block_size"])
            v, state["state2"] = self.rounded(v, BOOKS[2], group["block_size"])
        state["m"], state["v"] = m, v

    def rounded(self, values, book, block_size):
        parts, codes = [], []
        for block in values.split(block_size):
            scale = block.abs().max().float().double()
            codes.append((block[:, None] / (scale or 1) - book).abs().argmin(1))
            parts.append(book[codes[-1]] * scale)
        return torch.cat(parts), torch.cat(codes)


@st.composite
def group_specs(draw):
    return {
        "shapes": draw(st.lists(shapes, min_size=1, max_size=3)),
        "lr": draw(st.floats(0, 0.5)),
        "betas": (draw(st.just(0.0) | st.floats(0.01, 0.99)), draw(st.just(0.0) | st.floats(0.01, 0.9999))),
        "eps": draw(st.floats(1e-12, 1e-2)),
        "weight_decay": draw(st.sampled_from([0.0, 0.01, 0.5])),
        "block_size": draw(st.sampled_from([1, 4, 7, 256])),
        "min_8bit_size": draw(st.sampled_from([0, 1, 20])),
    }


def make_groups(specs, generator):
    def parameter(shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()

    return [{**{k: v for k, v in s.items() if k != "shapes"}, "params": [*map(parameter, s["shapes"])]} for s in specs]


@given(specs=st.lists(group_specs(), min_size=1, max_size=3), seed=st.integers(0, 2**31), reload_at=st.integers(0, 11))
@settings(max_examples=40, deadline=None)
def test_steps_equal_a_reference_that_quantizes_exactly(specs, seed, reload_at):
    """Parameters to 1e-10 and every code the same, with groups, missing gradients and a reload in the middle."""
    generator = torch.Generator().manual_seed(seed)
    groups = make_groups(specs, generator)
    reference = Reference(copy.deepcopy(groups))
    ours = run_beside(Adam8bit(groups), reference, generator, steps=12, reload_at=reload_at, decades=4)
    for p, q in zip(parameters_of(groups), parameters_of(reference.param_groups), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-10)
        for name in {"state1", "state2"} & reference.state[q].keys():
            assert ours.state[p][name].flatten().tolist() == reference.state[q][name].tolist()


def after_steps(kind, steps, shape=(96, 64), dtype=torch.float32, decades=0.0, lay=torch.clone, lr=1e-3, **options):
    """A parameter after `steps` with the same random gradients for every kind, its optimizer, and where it started.

    `lay` lays it and its gradients out in memory.
    """
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(shape, generator=generator).to(dtype)
    scales = 10 ** (-decades * torch.rand(shape, generator=generator))
    p = lay(start).requires_grad_()
    optimizer = kind([p], lr=lr, **options)
    for _ in range(steps):
        p.grad = lay((torch.randn(shape, generator=generator) * scales).to(dtype))
        optimizer.step()
    return p.detach(), optimizer, start


@pytest.mark.parametrize(("by_hand", "oracle"), PAIRS)
@pytest.mark.parametrize("decay", [{}, {"weight_decay": 0.3}])
def test_the_first_step_equals_the_library(by_hand, oracle, decay):
    """The states are still exact then; and the decay is decoupled in both classes of both."""
    result, ours, _ = after_steps(by_hand, 1, **decay)
    expected, library, _ = after_steps(oracle, 1, **decay)
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=1e-8)
    assert ours.defaults["weight_decay"] == library.defaults["weight_decay"]


@pytest.mark.parametrize(("by_hand", "oracle"), PAIRS)
@pytest.mark.parametrize(("decades", "bound"), [(0.0, 0.01), (1.0, 0.02)])
def test_thirty_steps_stay_near_the_library(by_hand, oracle, decades, bound):
    """Only its rounding differs: the two paths part by less than `bound` of their length, scales and codes hardly."""
    result, ours, start = after_steps(by_hand, 30, decades=decades)
    expected, library, _ = after_steps(oracle, 30, decades=decades)
    assert (result - expected).norm() <= bound * (expected - start).norm()
    (state,), (other,) = ours.state.values(), library.state.values()
    for number in (1, 2):
        torch.testing.assert_close(state[f"absmax{number}"], other[f"absmax{number}"], rtol=1e-2, atol=0)
        difference = (state[f"state{number}"].int() - other[f"state{number}"].int()).abs()
        assert difference.float().mean() <= 1.5
        assert torch.equal(state[f"qmap{number}"], other[f"qmap{number}"])


LAYOUTS = {
    "channels last": lambda tensor: tensor.clone(memory_format=torch.channels_last),
    "transposed": lambda tensor: tensor.transpose(0, 1).contiguous().transpose(0, 1),
    "strided": lambda tensor: tensor.repeat_interleave(2, -1)[..., ::2],
}
SHAPES = {"8 bits": (40, 40, 3, 3), "32 bits": (8, 4, 3, 3)}
not_contiguous = pytest.mark.parametrize(
    ("layout", "bits", "dtype"), list(itertools.product(LAYOUTS, SHAPES, [torch.float32, torch.bfloat16]))
)


@not_contiguous
def test_a_parameter_that_is_not_contiguous_steps_as_a_contiguous_one(layout, bits, dtype):
    lay = LAYOUTS[layout]
    expected, contiguous, _ = after_steps(AdamW8bit, 3, SHAPES[bits], dtype, lr=1e-2)
    result, laid_out, start = after_steps(AdamW8bit, 3, SHAPES[bits], dtype, lay=lay, lr=1e-2)
    assert result.stride() == lay(start).stride()
    assert torch.equal(result, expected)
    (state,), (other,) = contiguous.state.values(), laid_out.state.values()
    assert all(torch.equal(state[f"state{number}"], other[f"state{number}"]) for number in (1, 2))


@not_contiguous
def test_a_parameter_that_is_not_contiguous_steps_as_in_the_library(layout, bits, dtype):
    options = {"shape": SHAPES[bits], "dtype": dtype, "lay": LAYOUTS[layout], "lr": 1e-2}
    result, *_ = after_steps(AdamW8bit, 1, **options)
    expected, *_ = after_steps(bitsandbytes.optim.AdamW8bit, 1, **options)
    torch.testing.assert_close(result, expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-5)


@pytest.mark.parametrize("shape", [(), (1,), (4095,), (4096,), (4097,), (64, 64), (80, 80), (33, 5, 41)])
def test_state_is_the_library_s_by_name_type_shape_and_bytes(shape):
    _, ours, _ = after_steps(Adam8bit, 1, shape)
    _, library, _ = after_steps(bitsandbytes.optim.Adam8bit, 1, shape)
    (state,), (other,) = ours.state.values(), library.state.values()
    described = [
        {n: (v.dtype, v.shape) if isinstance(v, torch.Tensor) else v for n, v in s.items()} for s in (state, other)
    ]
    assert described[0] == described[1]
    assert memory.optimizer_state_size(ours).bytes == memory.optimizer_state_size(library).bytes
    assert state_bytes_of(Adam8bit, torch.ones(shape)) == Adam8bit.state_bytes(shape)


def test_the_books_are_kept_once_for_all_also_after_a_reload():
    parameters = [torch.ones(70, 70, requires_grad=True) for _ in range(3)]
    for p in parameters:
        p.grad = torch.ones_like(p)
    optimizer = AdamW8bit(parameters)
    optimizer.step()
    other = AdamW8bit(parameters)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for kind in (optimizer, other):
        maps = {state[name].data_ptr(): state[name] for state in kind.state.values() for name in ("qmap1", "qmap2")}
        assert sum(map(torch.Tensor.numel, maps.values())) * 4 == Adam8bit.shared_bytes()
    tensors = [value for state in other.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
    expected = sum(Adam8bit.state_bytes(p.shape) for p in parameters) + Adam8bit.shared_bytes()
    assert memory.distinct_bytes(tensors) == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_reload_continues_identically(dtype):
    straight, *_ = after_steps(AdamW8bit, 20, dtype=dtype)
    restarted, *_ = after_steps(Restarting, 20, dtype=dtype)
    assert torch.equal(straight, restarted)


class Restarting(AdamW8bit):
    """Saves itself and starts anew from the copy before each step."""

    def step(self):
        saved = copy.deepcopy(self.state_dict())
        self.state.clear()
        self.load_state_dict(saved)
        super().step()


@pytest.mark.parametrize("shape", [(), (7,), (63, 65)])
def test_small_tensors_step_as_torch_does(shape):
    result, ours, _ = after_steps(AdamW8bit, 20, shape, torch.float64)
    expected, _, _ = after_steps(torch.optim.AdamW, 20, shape, torch.float64, foreach=False)
    torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)
    (state,) = ours.state.values()
    assert set(state) == {"step", "state1", "state2"}


def test_a_group_can_be_kept_in_32_bits():
    table, weight = (torch.ones(70, 70, requires_grad=True) for _ in range(2))
    optimizer = Adam8bit([{"params": [table], "min_8bit_size": 10**9}, {"params": [weight]}])
    for p in (table, weight):
        p.grad = torch.ones_like(p)
    optimizer.step()
    types = [optimizer.state[p]["state1"].dtype for p in (table, weight)]
    assert types == [torch.float32, torch.uint8]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_parameters_step_as_in_the_library(dtype):
    result, ours, _ = after_steps(AdamW8bit, 3, dtype=dtype)
    expected, _, _ = after_steps(bitsandbytes.optim.AdamW8bit, 3, dtype=dtype)
    assert result.dtype == dtype
    torch.testing.assert_close(result, expected, rtol=2 * torch.finfo(dtype).eps, atol=1e-5)
    (state,) = ours.state.values()
    assert (state["state1"].dtype, state["absmax1"].dtype) == (torch.uint8, torch.float32)
    small, ours, _ = after_steps(AdamW8bit, 3, (5,), dtype)
    assert next(iter(ours.state.values()))["state1"].dtype == torch.float32


def test_an_update_needs_little_scratch_space_however_large_the_tensor():
    model = torch.nn.Linear(2048, 2048, bias=False)
    scratch = scratch_of(AdamW8bit(model.parameters()), model)
    assert scratch == AdamW8bit.temporary_bytes(model.weight.shape) < 2 * MiB < model.weight.nbytes


def test_a_broken_gradient_breaks_its_block_only():
    p = torch.zeros(8192, requires_grad=True)
    optimizer = Adam8bit([p])
    p.grad = torch.ones_like(p)
    p.grad[300] = float("nan")
    optimizer.step()
    p.grad = torch.ones_like(p)
    optimizer.step()
    assert p.detach().isnan().nonzero().flatten().tolist() == list(range(256, 512))
