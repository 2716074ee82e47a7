"""A module cut by width over real ranks: one process with the whole module is the oracle."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import gelu

from course_utils.distributed import launch
from course_utils.distributed.tensor_parallel import Split

WIDTH, INNER, ROWS = 6, 24, 5


class Mlp(nn.Module):
    """Two layers, with biases, and an activation between them."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, hidden_states, scale=1.0):
        return scale * self.down(gelu(self.up(hidden_states)))


def module_and_data():
    torch.manual_seed(0)
    module = Mlp().double()
    x = torch.randn(2, ROWS, WIDTH, dtype=torch.float64).requires_grad_()
    return module, x, torch.randn(2, ROWS, WIDTH, dtype=torch.float64)


def forward_and_backward(module, x, grad):
    """Output, gradient of the input, gradients of the parameters by name."""
    out = module(x, scale=3.0)
    out.backward(grad)
    grads = {name.replace("module.", ""): p.grad for name, p in module.named_parameters()}
    return out.detach(), x.grad, grads


def on_rank(group_of=lambda: None):
    module, x, grad = module_and_data()
    group = group_of()
    split = Split(module, ("up",), ("down",), group)
    return *forward_and_backward(split, x, grad), dist.get_rank(group), dist.get_world_size(group)


def pair_of_this_rank():
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    return pairs[dist.get_rank() // 2]


@pytest.mark.parametrize(("ranks", "group_of"), [(1, None), (2, None), (3, None), (4, pair_of_this_rank)])
def test_output_and_gradients_are_those_of_one_process(ranks, group_of):
    out, grad_x, grads = forward_and_backward(*module_and_data())
    cut = {"up.weight": 0, "up.bias": 0, "down.weight": 1}
    for my_out, my_grad_x, my_grads, rank, size in launch(on_rank, ranks, *[group_of] * bool(group_of)):
        torch.testing.assert_close(my_out, out, rtol=0, atol=1e-12)
        torch.testing.assert_close(my_grad_x, grad_x, rtol=0, atol=1e-12)
        assert my_grads.keys() == grads.keys()
        for name, right in grads.items():
            right = right.chunk(size, cut[name])[rank] if name in cut else right
            torch.testing.assert_close(my_grads[name], right, rtol=0, atol=1e-12)


def test_a_rank_keeps_its_share_in_memory_of_its_own():
    def stored_sizes():
        module, *_ = module_and_data()
        split = Split(module, ("up",), ("down",))
        return [p.untyped_storage().nbytes() // 8 for p in split.parameters()]

    for sizes in launch(stored_sizes, 2):
        assert sorted(sizes) == sorted([INNER * WIDTH // 2, INNER // 2, INNER * WIDTH // 2, WIDTH])


def test_what_was_frozen_stays_frozen():
    def requires_grad():
        module, *_ = module_and_data()
        module.up.requires_grad_(False)
        return {name: p.requires_grad for name, p in Split(module, ("up",), ("down",)).module.named_parameters()}

    for trainable in launch(requires_grad, 2):
        assert trainable == {"up.weight": False, "up.bias": False, "down.weight": True, "down.bias": True}
