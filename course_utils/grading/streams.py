"""Cases for an optimizer, each a stream of gradients that tests one trait; the last case tests all.

Everything is float64. The tolerance admits an answer that raises β to a float32 step count, because torch's own counter is
float32; float32 elsewhere is caught by numbers that it cannot hold.
"""

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from random import Random

import torch

from course_utils.grading.compare import STEPS
from course_utils.grading.holding import address_of, capacity_of, reachable
from course_utils.grading.question import Case, Tolerance
from course_utils.grading.values import same

TOLERANCE = Tolerance(relative=5e-5, absolute=5e-5)

ADAM = {
    "lr": (0.3, 0.1, 0.03),
    "betas": ((0.9, 0.999), (0.8, 0.95), (0.6, 0.9)),
    "eps": (1e-8, 1e-3, 0.1),
    "weight_decay": (0.0, 0.1, 0.5),
}
"""Hyper-parameters of Adam and AdamW: large enough that each of them shows after few steps."""

SHAPES = {"weight": (3, 4), "bias": (4,), "scale": (2, 2, 2), "shift": (5,), "twin": (3, 4), "number": ()}
UNTOUCHED_GRADIENTS = "p.grad is left as it was"
TRAINABLE = "gradients can be computed as before"
IN_PLACE = "parameters are changed in place"
MEMORY = "bytes of memory behind its tensors, slices counted whole"


@dataclass(frozen=True)
class Gradients:
    """How the gradients of a case are drawn."""

    missing: float = 0.0  # the share that is None
    zero: float = 0.0  # the share that is 0
    decades: float = 0.0  # all sizes are 10**decades where `steady`, else they lie between 10**-decades and that
    steady: bool = False
    empty_steps: int = 0  # the first steps, without any gradient
    never: tuple[str, ...] = ()  # the parameters without any gradient


@dataclass(frozen=True)
class Stream:
    """The inputs of a case. Steps count from 0."""

    groups: list[dict]  # each has `parameters` and `options`
    gradients: list[dict]  # per step by the parameter's name, None where missing
    rates: Sequence[Sequence[float]] = ()  # per step and group, the factor on what is `scheduled`
    scheduled: str = "lr"
    reload_after: Sequence[int] = ()  # the steps after which `state_dict` moves to fresh parameters and optimizer
    counted_on: int = 0  # how many steps a reload adds to what the state counts, as after a long run
    back_after: Sequence[int] = ()  # the steps after which the optimizer goes astray and back
    added_after: int | None = None  # the step after which the groups beyond the first are added
    count_state: bool = False  # whether the values tell what the state holds
    names: Sequence[str] = ()  # hyper-parameters to be read from a new optimizer's first group
    transposed: Sequence[str] = ()  # matrices that do not lie row by row in memory
    gradients_stay: bool = False  # whether each gradient is written over the one before, as after `set_to_none=False`


def cases(random: Random, hyper: Mapping[str, tuple]) -> list[Case]:
    """The cases of one draw; `hyper` gives the values to draw each group's hyper-parameters from."""
    draw = _Draw(random, hyper)
    case, single, pair = draw.case, draw.one_group, draw.two_groups
    decay = case("the weight decay changes between steps", pair(), 6, scheduled="weight_decay")
    small = "default hyper-parameters, small gradients"
    shapes = "a single number, two tensors of one shape, a transposed matrix"
    twins = ["weight", "twin", "number"]
    everything = Gradients(missing=0.2, zero=0.1, decades=6, never=("shift",))
    bare = [draw.group(["weight", "bias"], {})]
    all_cases = [
        case("default hyper-parameters", bare, 60, Gradients(decades=9), count_state=True, names=list(hyper)),
        case(small, [draw.group(["weight"], {})], 30, Gradients(decades=-8, steady=True)),
        case("one group, twelve steps", [single()], 12, count_state=True),
        case("two groups with different hyper-parameters", pair(), 8),
        case("gradients missing in some steps", pair(), 12, Gradients(missing=0.4, never=("shift",))),
        case("gradients that are zero", pair(), 8, Gradients(zero=0.5)),
        case("a step before any gradient", pair(), 6, Gradients(empty_steps=2)),
        case("gradients over many decades", pair(), 12, Gradients(decades=8)),
        case("gradients beyond float32", [single()], 6, Gradients(decades=45, steady=True)),
        case("parameters beyond float32", [single(scale=1e40)], 6),
        case("the learning rate changes between steps", pair(), 8, scheduled="lr"),
        *([decay] if "weight_decay" in hyper else []),
        case("back to an earlier state", pair(), 6, back_after=[2]),
        case(shapes, [single(twins)], 6, reload_after=[2], transposed=["weight"]),
        case("a reload in the middle", pair(), 10, Gradients(missing=0.2), reload_after=[4], count_state=True),
        case("everything at once", pair(), 40, everything, reload_after=[7, 23], scheduled="lr"),
    ]
    undecayed = pair()
    if "weight_decay" in hyper:  # where nothing is added to a gradient, an answer may take it for a tensor of its own
        undecayed[0]["options"]["weight_decay"] = 0.0
    stay = case("gradients in the memory of those before", undecayed, 5, gradients_stay=True)
    return [*all_cases[:-1], stay, all_cases[-1]]  # drawn last, so that the others stay as the released sets have them


@torch.enable_grad()
def drive(answer: type[torch.optim.Optimizer], inputs: dict) -> dict:
    """The values of the optimizer class `answer` over one stream.

    `hyper-parameters`: those that the case names, as text, so that no tolerance applies; `steps`: per step each parameter, and
    whether gradients and autograd were left alone; `state`, if the case counts it: see `state_of`.
    """
    # A question may have further inputs.
    stream = Stream(**{name: value for name, value in inputs.items() if name in Stream.__dataclass_fields__})
    groups = [_copy_parameters(group["parameters"], stream.transposed) for group in stream.groups]
    options = [
        {name: tuple(value) if isinstance(value, list) else value for name, value in group["options"].items()}
        for group in stream.groups
    ]
    param_groups = [{"params": [*group.values()], **initial} for group, initial in zip(groups, options, strict=True)]
    initial_count = len(param_groups) if stream.added_after is None else 1
    optimizer = answer(param_groups[:initial_count])
    values = {"hyper-parameters": {name: _in_words(optimizer.param_groups[0].get(name)) for name in stream.names}}
    steps = values[STEPS] = []
    for number, gradients in enumerate(stream.gradients):
        if stream.rates:  # as a scheduler does it
            for group, initial, factor in zip(optimizer.param_groups, options, stream.rates[number], strict=True):
                group[stream.scheduled] = initial[stream.scheduled] * factor
        steps.append(_step(optimizer, groups, _lay_out(gradients, stream.transposed), stream.gradients_stay))
        if number in stream.reload_after:
            groups, optimizer = _reload(answer, groups, optimizer, stream.counted_on)
        if number == stream.added_after:
            for group in param_groups[initial_count:]:
                optimizer.add_param_group(group)
        if number in stream.back_after:
            _step_and_restore(optimizer, groups)
    return {**values, "state": state_of(optimizer)} if stream.count_state else values


def state_of(optimizer: torch.optim.Optimizer) -> dict:
    """Elements, dtypes and bytes of the tensors in `optimizer.state_dict()` that have more than one element in memory.

    The bytes are those of all the memory that a slice keeps. `elements held besides` are in attributes and closures of the
    optimizer, without parameters and gradients.
    """
    saved = [tensor for tensor in _tensors_in(optimizer.state_dict()) if capacity_of(tensor) > 1]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    in_state = {address_of(t) for t in [*saved, *parameters, *(p.grad for p in parameters if p.grad is not None)]}
    besides = {address_of(t): t for t in reachable(optimizer) if isinstance(t, torch.Tensor) and capacity_of(t) > 1}
    return {
        "elements": sum(t.numel() for t in saved if t.numel() > 1),
        "dtypes": sorted({str(t.dtype) for t in saved if t.numel() > 1}),
        MEMORY: sum({address_of(t): t.untyped_storage().nbytes() for t in saved}.values()),
        "elements held besides": sum(capacity_of(t) for memory, t in besides.items() if memory not in in_state),
    }


def recognize_changed_gradients(_: object, actual: dict) -> str | None:
    """A sentence if `step()` changed `p.grad`."""
    is_changed = any(step.get(UNTOUCHED_GRADIENTS) is False for step in actual.get(STEPS, ()))
    return "`step()` changes `p.grad` or clears it; it belongs to the caller. Work on a copy." if is_changed else None


class _Draw:
    """Groups, gradients and cases from one source of random numbers."""

    def __init__(self, random: Random, hyper: Mapping[str, tuple]):
        self.random = random
        self.hyper = hyper
        self.generator = torch.Generator().manual_seed(random.getrandbits(31))

    def normal(self, shape: Sequence[int]) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def group(self, names: Sequence[str], options: dict, scale: float = 1.0) -> dict:
        return {"parameters": {name: self.normal(SHAPES[name]) * scale for name in names}, "options": options}

    def one_group(self, names: Sequence[str] = ("weight", "bias"), scale: float = 1.0) -> dict:
        """A group, by default of two tensors; every hyper-parameter is drawn, and none is zero."""
        options = {name: self.random.choice([v for v in values if v]) for name, values in self.hyper.items()}
        return self.group(names, _plain_options(options), scale)

    def two_groups(self) -> list[dict]:
        """Two groups that differ in every hyper-parameter."""
        pairs = {name: self.random.sample(values, 2) for name, values in self.hyper.items()}
        names = (["weight", "shift"], ["bias", "scale"])
        return [self.group(names[i], _plain_options({name: pair[i] for name, pair in pairs.items()})) for i in range(2)]

    def gradient(self, name: str, number: int, traits: Gradients) -> torch.Tensor | None:
        if name in traits.never or number < traits.empty_steps or self.random.random() < traits.missing:
            return None
        size = 10.0 ** (traits.decades if traits.steady else self.random.uniform(-traits.decades, traits.decades))
        return self.normal(SHAPES[name]) * (0.0 if self.random.random() < traits.zero else size)

    def case(self, name: str, groups: list[dict], steps: int, traits: Gradients = Gradients(), **fields) -> Case:
        """A case with gradients of these `traits` and other `fields` of `Stream`; one with `scheduled` also gets `rates`."""
        parameters = [parameter for group in groups for parameter in group["parameters"]]
        gradients = [{p: self.gradient(p, i, traits) for p in parameters} for i in range(steps)]
        if "scheduled" in fields:
            fields["rates"] = [[self.random.choice((0.0, 0.5, 1.0, 2.0)) for _ in groups] for _ in range(steps)]
        return Case(name, vars(Stream(groups, gradients, **fields)))


def _in_words(option: object) -> str:
    if isinstance(option, tuple | list):
        return ", ".join(map(_in_words, option))
    return f"{option:.6g}" if isinstance(option, int | float) else str(option)


def _plain_options(options: dict) -> dict:
    """Options as JSON can hold them: pairs as lists."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}


def _copy_parameters(parameters: dict, transposed: Collection[str] = ()) -> dict:
    """Copies with the same strides, except for the `transposed` ones."""
    copies = {name: value.detach().clone() for name, value in parameters.items()}
    copies |= {name: copies[name].mT.contiguous().mT for name in transposed if name in copies}
    return {name: value.requires_grad_() for name, value in copies.items()}


def _lay_out(gradients: dict, transposed: Collection[str]) -> dict:
    """The gradients; if parameters are `transposed`, each matrix lies in another order in memory than its parameter."""
    return {
        name: g.mT.contiguous().mT if transposed and name not in transposed and g is not None and g.ndim == 2 else g
        for name, g in gradients.items()
    }


def _step(optimizer: torch.optim.Optimizer, groups: list[dict], gradients: dict, gradients_stay: bool) -> dict:
    parameters = {name: p for group in groups for name, p in group.items()}
    for name, parameter in parameters.items():
        if gradients_stay and parameter.grad is not None and gradients[name] is not None:
            parameter.grad.copy_(gradients[name])
        else:
            parameter.grad = None if gradients[name] is None else gradients[name].clone()
    addresses = {name: p.data_ptr() for name, p in parameters.items()}
    optimizer.step()
    values = {name: p.detach().clone() for name, p in parameters.items()}
    values[TRAINABLE] = torch.is_grad_enabled() and all(p.requires_grad for p in parameters.values())
    values[UNTOUCHED_GRADIENTS] = all(same(p.grad, gradients[name]) for name, p in parameters.items())
    values[IN_PLACE] = all(p.data_ptr() == addresses[name] for name, p in parameters.items())
    return values


def _reload(
    answer: type[torch.optim.Optimizer], groups: list[dict], optimizer: torch.optim.Optimizer, counted_on: int
) -> tuple[list[dict], torch.optim.Optimizer]:
    """Copies of the parameters, and a new optimizer that knows only the state of the other."""
    saved = copy.deepcopy(optimizer.state_dict())
    saved["state"] = _count_on(saved["state"], counted_on) if counted_on else saved["state"]
    groups = [_copy_parameters(group) for group in groups]
    optimizer = answer([{"params": list(group.values())} for group in groups])
    optimizer.load_state_dict(saved)
    return groups, optimizer


def _count_on(value: object, steps: int) -> object:
    """The state with `steps` added to every single number in its own dtype, because any such number counts steps."""
    if isinstance(value, torch.Tensor):
        return (value.double() + steps).to(value.dtype) if value.numel() == 1 else value
    if isinstance(value, dict):
        return {name: _count_on(item, steps) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_count_on(item, steps) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        result = copy.copy(value)
        vars(result).update(_count_on(vars(value), steps))
        return result
    return value + steps if type(value) in (int, float) else value


def _step_and_restore(optimizer: torch.optim.Optimizer, groups: list[dict]) -> None:
    """Take a step, then give the same objects the values and the state of before it."""
    parameters = [parameter for group in groups for parameter in group.values()]
    values, saved = copy.deepcopy(([p.detach() for p in parameters], optimizer.state_dict()))
    optimizer.step()
    with torch.no_grad():
        for parameter, value in zip(parameters, values, strict=True):
            parameter.copy_(value)
    optimizer.load_state_dict(saved)


def _tensors_in(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors_in(item)
    elif is_dataclass(value) and not isinstance(value, type):
        yield from _tensors_in(vars(value))
