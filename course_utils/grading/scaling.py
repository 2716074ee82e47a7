"""A loss scaler over a stream of gradients, some of which overflow (Micikevicius et al. 2018, section 3.2).

The stream is what a training loop does with a scaler: scale the loss, go backward, unscale to clip, step, update. Everything
but the scale is float64, so that only the decisions count and not the rounding.
"""

from collections.abc import Callable
from functools import partial
from itertools import product
from random import Random

import torch

from course_utils.grading.compare import STEPS
from course_utils.grading.question import Case, Tolerance

TOLERANCE = Tolerance(relative=1e-6, absolute=1e-9)
"""Factors are powers of two: their products are exact; gradients pass through one division."""

_FACTORS = ((2.0, 0.5), (4.0, 0.25), (2.0, 0.125))
_SHAPES = {"weight": (3, 2), "bias": (2,), "gain": (2,)}
_GROUPS = (("weight", "bias"), ("gain",))
_RATE = 0.1
_WRONG_NUMBERS = (float("inf"), float("-inf"), float("nan"))


def cases(random: Random) -> list[Case]:
    """The cases of one draw.

    Inputs of a case: `options` of the scaler; `parameters`; `gradients` of the unscaled loss, per step by name; `clip`, the
    largest number and norm after `unscale_`, or None where the loop does not unscale itself; `reload_after`, steps after which
    a new scaler loads the state: the one that was saved after step `saved_after`, or where that is None the one of now.
    """
    return [
        _case(random, "no overflow", 7, zeros=(1,), interval=3),
        _case(random, "every kind of overflow", 19, overflows=(1, 4, 5, 8, 9, 10, 13, 15, 18), interval=2),
        _case(random, "overflows one after the other", 6, overflows=range(6), interval=2),
        _case(random, "an overflow just before the scale would grow", 9, overflows=(2, 6), interval=3),
        _case(random, "finite gradients of which no sum is", 5, overflows=(2,), large=(1, 3), interval=9),
        _case(random, "an older state is loaded", 12, overflows=(3, 7), interval=3, saved_after=4, reload_after=(6, 9)),
        _case(random, "clipping after unscaling", 12, overflows=(1, 5), interval=4, clip=0.5),
        _case(random, "a reload while it counts", 12, overflows=(7,), interval=4, reload_after=(1, 6)),
    ]


def drive(make: Callable, inputs: dict) -> dict:
    """What scaler `make(**options)` does over one stream: per step the scale before, in and after it, whether the
    optimizer stepped, and the parameters."""
    parameters = {name: value.clone().requires_grad_() for name, value in inputs["parameters"].items()}
    optimizer = _Counting([{"params": [parameters[name] for name in names]} for names in _GROUPS], lr=_RATE)
    scaler = make(**inputs["options"])
    steps, saved = [], None
    for number, gradients in enumerate(inputs["gradients"]):
        steps.append(_step(scaler, optimizer, parameters, gradients, inputs["clip"]))
        if inputs["saved_after"] is not None:  # in every step, as a loop may that keeps one of its states
            state = scaler.state_dict()
            saved = state if number == inputs["saved_after"] else saved
        if number in inputs["reload_after"]:
            state = scaler.state_dict() if saved is None else saved
            steps[-1]["plain numbers are saved, in a dict"] = isinstance(state, dict) and _is_plain(state)
            scaler = (
                make()
            )  # as after a restart: all it knows it learns from the state, which may be loaded once more later
            scaler.load_state_dict(state)
    return {STEPS: steps}


class _Counting(torch.optim.SGD):
    """Plain gradient descent that counts its steps."""

    steps = 0

    def step(self, closure=None):
        self.steps += 1
        return super().step(closure)


def _step(scaler, optimizer, parameters: dict, gradients: dict, clip: float | None) -> dict:
    before, steps = float(scaler.get_scale()), optimizer.steps
    optimizer.zero_grad()
    loss = sum((parameters[name] * gradients[name]).sum() for name in parameters)
    loss_before = loss.detach().clone()
    scaler.scale(loss).backward()
    checks = {"loss left as it was": torch.equal(loss.detach().nan_to_num(), loss_before.nan_to_num())}
    if clip is not None:
        given = [parameter.grad for parameter in parameters.values()]
        scaler.unscale_(optimizer)
        now = [parameter.grad for parameter in parameters.values()]
        checks["gradients divided in place"] = all(a is b for a, b in zip(given, now, strict=True))
        torch.nn.utils.clip_grad_value_(parameters.values(), clip)  # after which an infinity is finite
        torch.nn.utils.clip_grad_norm_(parameters.values(), clip)
    scaler.step(optimizer)
    checks["scale until the update"] = float(scaler.get_scale())
    scaler.update()
    return {
        "scale in this step": before,
        "steps of the optimizer": optimizer.steps - steps,
        **{name: value.detach().clone() for name, value in parameters.items()},
        "scale after it": float(scaler.get_scale()),
        **checks,
    }


def _is_plain(state: object) -> bool:
    """Numbers, in a dict; lists, text and None in it do no harm."""
    if isinstance(state, dict | list | tuple):
        return all(map(_is_plain, state.values() if isinstance(state, dict) else state))
    return state is None or isinstance(state, int | float | str)


def _case(
    random: Random,
    name: str,
    steps: int,
    *,
    interval: int,
    overflows=(),
    large=(),
    zeros=(),
    clip=None,
    saved_after=None,
    reload_after=(),
) -> Case:
    """In the steps `large`, whose scale is below 1, gradients are near the largest number of float64; in `zeros` they are 0."""
    generator = torch.Generator().manual_seed(random.getrandbits(31))
    draw = partial(torch.randn, generator=generator, dtype=torch.float64)
    growth, backoff = random.choice(_FACTORS)
    options = {
        "init_scale": 0.5 if large else 2.0 ** random.randint(8, 16),
        "growth_factor": growth,
        "backoff_factor": backoff,
        "growth_interval": interval,
    }
    gradients = [{part: draw(shape) for part, shape in _SHAPES.items()} for _ in range(steps)]
    kinds = random.sample(list(product(_SHAPES, _WRONG_NUMBERS)), len(_SHAPES) * len(_WRONG_NUMBERS))
    for number, (part, value) in zip(overflows, kinds, strict=False):
        gradients[number][part].view(-1)[0] = value
    for number in large:
        gradients[number]["weight"].fill_(0.9 * torch.finfo(torch.float64).max)
    for number in zeros:
        gradients[number] = {part: torch.zeros(shape, dtype=torch.float64) for part, shape in _SHAPES.items()}
    parameters = {part: draw(shape) for part, shape in _SHAPES.items()}
    given = {"options": options, "parameters": parameters, "gradients": gradients, "clip": clip}
    return Case(name, {**given, "saved_after": saved_after, "reload_after": list(reload_after)})
