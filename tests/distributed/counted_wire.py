"""Run by `test_traffic.py` in a network of its own: what its loopback interface sends, and what is counted of it."""

import json

import torch
import torch.distributed as dist

from course_utils.distributed import DDP, FSDP, QSGD, LocalSGD, ShardedOptimizer, counted, launch, ring
from course_utils.lessons.c10_fsdp_and_zero import loopback_sent

RANKS = 2


def by_hand():
    """Bytes that all ranks together send for rings, torch's own collectives and DDP by hand, and those counted by this rank."""
    dist.barrier()
    before, numbers = loopback_sent(), torch.ones(1_000_000)
    with counted() as traffic:
        ring.all_reduce(numbers)
        ring.all_gather(ring.reduce_scatter(numbers), len(numbers))
        dist.all_reduce(numbers)
        dist.all_to_all_single(torch.empty_like(numbers), numbers)
        DDP(torch.nn.Linear(1000, 1000))(torch.ones(2, 1000)).sum().backward()
        dist.barrier()
    return loopback_sent() - before, traffic.sent


def layers():
    """Layers of one size, and the loss that is made of them."""
    return torch.nn.Sequential(*(torch.nn.Linear(500, 500) for _ in range(4)))


def step_of(model, finish=lambda: None):
    def step():
        model(torch.ones(2, 500)).sum().backward()
        finish()

    return step


def sharded():
    plain = layers()
    return step_of(FSDP(plain, list(plain)))


def sharded_update():
    model = layers()
    return step_of(model, ShardedOptimizer(model.parameters(), torch.optim.SGD, lr=0.1).step)


def coarse_gradients():
    model = layers()
    return step_of(model, QSGD(model.parameters()).average)


def local_steps():
    return LocalSGD(torch.optim.SGD(layers().parameters()), sync_every=1).step


STEPS = {"ZeRO-1": sharded_update, "local SGD": local_steps, "8 bits": coarse_gradients, "FSDP": sharded}


def by_step():
    """Bytes that all ranks together send in four steps, and those counted by this rank, by way."""
    counts = {}
    for name, make in STEPS.items():
        step = make()
        step()  # what is sent only once, to begin with
        dist.barrier()
        before = loopback_sent()
        with counted() as traffic:
            for _ in range(4):
                step()
            dist.barrier()
        counts[name] = loopback_sent() - before, traffic.sent
    return counts


if __name__ == "__main__":
    ranks = launch(by_hand, RANKS)
    print(json.dumps({"sent": ranks[0][0], "counted": sum(sent for _, sent in ranks)}))
    ranks = launch(by_step, RANKS)
    print(json.dumps({name: (ranks[0][name][0], sum(rank[name][1] for rank in ranks)) for name in STEPS}))
