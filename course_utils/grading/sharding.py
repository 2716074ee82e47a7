"""A module wrapped for several processes, trained over a stream of batches, beside the same module in one process.

Each rank wraps its own copy, sees its own share of every batch, and steps an optimizer of its own over `.parameters()`. What
one process does with the whole batch is right: the loss is a mean, and all shares are of one size (Zhao et al. 2023;
Rajbhandari et al. 2020).
"""

import gc
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from random import Random
from time import monotonic, sleep

import torch
import torch.distributed as dist
from torch import nn

from course_utils.distributed import Traffic, counted, launch
from course_utils.grading.compare import STEPS
from course_utils.grading.foreign import ForeignError, forbid
from course_utils.grading.holding import Born, reachable
from course_utils.grading.question import Case, Tolerance
from course_utils.grading.ranks import PATIENCE, SECONDS, so_many, watched

TOLERANCE = Tolerance(relative=1e-7, absolute=1e-9)
"""float64, summed in another order."""
BEGUN = "parameters to begin with"
KEPT = "elements kept between steps"
SENT = "bytes sent for a forward and backward"
COLLECTIVES = "collectives of a forward and backward"
COUNTED = (BEGUN, KEPT, SENT, COLLECTIVES)
"""What not every question asks for."""
WRAPPERS = ("torch.nn.parallel", "torch.distributed.fsdp", "torch.distributed._composable")
"""Where torch has wrappers of its own."""
_RATE, _MOMENTUM = 0.1, 0.9
_ITEM = 8  # bytes of a float64
_PATIENCE = 1.0  # seconds


def cases(random: Random) -> list[Case]:
    """The cases of one draw: plain, sizes that do not divide by the ranks, a frozen layer, and gradients of several backwards.

    Inputs of a case: `sizes` of the layers; `state` by name, of rank 0, and `others`, which the other ranks begin with;
    `batches`, each of one or more inputs and a target, for 1, 2, 3, 4, 6 or 12 ranks; `frozen`, names of parameters;
    `backwards`, batches to a step.
    """
    return [
        _case(random, "three steps", (8, 16, 4)),
        _case(random, "sizes that no number of ranks divides", (8, 7, 5)),
        _case(random, "a frozen layer", (6, 10, 4), frozen=("0.weight", "0.bias")),
        _case(random, "two backwards to a step", (6, 10, 4), backwards=2),
        _case(random, "ranks that begin with other weights", (6, 10, 4), other=True),
    ]


def two_inputs(random: Random) -> Case:
    """A case more, for a wrapper that passes all inputs on."""
    return _case(random, "a module of two inputs", (6, 5, 4), takes=2)


def on(ranks: int, case: Case) -> Case:
    """The same case on so many ranks."""
    return Case(f"{case.name}, on {so_many(ranks)}", {**case.inputs, "ranks": ranks})


def together(wrap, inputs: dict, world_size: int, replaces: tuple[str, ...] = ()) -> dict:
    """What every rank gets, by `"rank 0"`, `"rank 1"`, …, where nothing of `replaces` can be used; raises as `launch` does."""
    results = launch(watched, world_size, PATIENCE, on_rank, wrap, inputs, replaces, seconds=SECONDS)
    return {f"rank {rank}": values for rank, values in enumerate(results)}


def on_rank(wrap, inputs: dict, replaces: tuple[str, ...] = ()) -> dict:
    """What this rank of a running process group gets: what it begins with, the full state after each step, what it keeps then
    and what it sent.
    """
    forbid(replaces)  # this process was started for it alone
    rank, world_size = dist.get_rank(), dist.get_world_size()
    plain = module_of(inputs, inputs["others"] if rank else inputs["state"])
    own = [weakref.ref(parameter) for parameter in plain.parameters()]
    born = Born()
    with born:
        module = wrap(plain)
    del plain  # what is left of it now is what the wrapper keeps
    _refuse_libraries(module)
    begun = {name: parameter.detach().clone() for name, parameter in module.named_parameters()}
    share = [[part.chunk(world_size)[rank] for part in batch] for batch in inputs["batches"]]
    steps, passes = trained(module, share, inputs["backwards"], born)
    return {
        BEGUN: begun,
        STEPS: steps,
        KEPT: _count_kept(module, own, born),
        SENT: max(ledger.sent for ledger in passes),
        COLLECTIVES: max(len(ledger.entries) for ledger in passes),
    }


def _count_kept(module: nn.Module, own: list[weakref.ref], born: Born) -> int:
    """Elements that `module` leads to, that are left of its `own` parameters, or that were born inside and stay alive.

    A thread of the process group may hold what it has sent a moment longer than the call that sent it (here once in ten
    times, for about a millisecond), so what nothing leads to gets a second to go.
    """
    gc.collect()  # parameters of the plain module may hang in a circle
    led_to = elements_kept([*held(module), *(p for reference in own if (p := reference()) is not None)])
    end = monotonic() + _PATIENCE
    while (alive := sum(born.alive()) // _ITEM) > led_to and monotonic() < end:
        sleep(0.01)
    return max(led_to, alive)


def alone(inputs: dict) -> dict:
    """The same in one process, on the whole batches."""
    return {
        STEPS: trained(module_of(inputs, inputs["state"]), inputs["batches"], inputs["backwards"], nullcontext())[0]
    }


def _refuse_libraries(module: nn.Module) -> None:
    """Raises `ForeignError` where a part of `module` is, or inherits, torch's own wrapper."""
    for base in (base for part in module.modules() for base in type(part).__mro__):
        if base.__module__.startswith(("torch.nn.parallel", "torch.distributed")):
            raise ForeignError(f"{base.__module__}.{base.__qualname__}")


def module_of(inputs: dict, state: dict) -> nn.Module:
    """Linear layers of the given sizes with tanh between them, in float64, holding `state`; of several inputs the others are
    taken off the first.
    """
    layers = []
    for wide, narrow in zip(inputs["sizes"], inputs["sizes"][1:], strict=False):
        layers += [nn.Linear(wide, narrow, dtype=torch.float64), nn.Tanh()]
    module = _Joined(*layers[:-1])
    module.load_state_dict(state)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name not in inputs["frozen"])
    return module


class _Joined(nn.Sequential):
    def forward(self, first, *others):
        return super().forward(first - sum(others))


def trained(
    module: nn.Module, batches: list, backwards: int, around: AbstractContextManager
) -> tuple[list[dict], list[Traffic]]:
    """Steps of gradient descent with momentum: the loss of a step is the mean over its batches.

    The full state after each step, and what each forward and backward sent; `around` is a context for each of these.
    """
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=_RATE, momentum=_MOMENTUM)
    steps, passes = [], []
    for first in range(0, len(batches), backwards):
        for *inputs, target in batches[first : first + backwards]:
            with around, counted() as ledger:
                (nn.functional.mse_loss(module(*inputs), target) / backwards).backward()
            passes.append(ledger)
        optimizer.step()
        optimizer.zero_grad()
        steps.append(full_state(module))
    return steps, passes


def full_state(module: nn.Module) -> dict[str, torch.Tensor]:
    """By the names of the plain module: from `full_state_dict()` where there is one, else from the wrapped `.module`."""
    inner = (
        module.full_state_dict()
        if hasattr(module, "full_state_dict")
        else getattr(module, "module", module).state_dict()
    )
    return {name: value.detach().clone() for name, value in inner.items()}


def held(root: object) -> list[torch.Tensor]:
    """Tensors with fractions that `root` leads to, closures and objects of any class included."""
    return [each for each in reachable(root) if isinstance(each, torch.Tensor) and each.is_floating_point()]


def elements_kept(tensors: Iterable[torch.Tensor]) -> int:
    """Elements in the memory behind `tensors`, what is shared counted once; on the device `meta` there is none."""
    real = [tensor for tensor in tensors if tensor.device.type != "meta"]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() // t.element_size() for t in real}
    return sum(storages.values())


def _case(random: Random, name: str, sizes: tuple[int, ...], *, frozen=(), backwards=1, other=False, takes=1) -> Case:
    generator = torch.Generator().manual_seed(random.getrandbits(31))
    draw = partial(torch.randn, generator=generator, dtype=torch.float64)
    state = _draw_state(sizes, draw)
    given = {"sizes": list(sizes), "state": state, "others": _draw_state(sizes, draw) if other else state}
    widths = [*takes * [sizes[0]], sizes[-1]]
    batches = [[draw(12, width) for width in widths] for _ in range(3 * backwards)]
    return Case(name, {**given, "batches": batches, "frozen": list(frozen), "backwards": backwards})


def _draw_state(sizes: tuple[int, ...], draw: Callable[..., torch.Tensor]) -> dict[str, torch.Tensor]:
    state = {}
    for i, (wide, narrow) in enumerate(zip(sizes, sizes[1:], strict=False)):
        state[f"{2 * i}.weight"] = draw(narrow, wide) / wide**0.5
        state[f"{2 * i}.bias"] = draw(narrow)
    return state
