"""Gradient checkpointing by hand, twice: keep the inputs of a function, drop what it computes, compute it again in backward.

`checkpoint` is a node of the graph of its own that runs a second backward pass inside the first; `checkpoint_by_hooks`
leaves the graph as it is and replaces what its nodes save. Both follow Chen et al. 2016, section 4.
"""

import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch.autograd.function import once_differentiable
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_flatten, tree_unflatten

from course_utils.errors import CourseError
from course_utils.techniques.keeping import Keeper


def checkpoint(function: Callable, *args, preserve_rng_state: bool = True, **kwargs):
    """`function(*args, **kwargs)`, of which only the tensors in its arguments are kept; re-entrant.

    Arguments and results may be any lists, tuples and dicts; tensors in them keep their gradients, the rest is passed on.
    In backward the function runs again, under the random state (unless `preserve_rng_state` is False) and autocast of
    the first time, and a backward pass of its own leaves gradients in the parameters inside. So there is no
    `torch.autograd.grad` and no second derivative through it, and an input must require a gradient, else none would
    arrive (`CourseError` each time). Where no gradients are wanted at all, this is a plain call.

    Where a tensor is used both inside and outside, its gradients are added in another order than without checkpoint.
    """
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    call = _Call(function, args, kwargs)
    if not any(tensor.requires_grad for tensor in call.tensors):
        raise CourseError(
            "No input of this checkpoint requires a gradient, so that nothing inside would get one; "
            "call requires_grad_() on an input, or use checkpoint_by_hooks."
        )
    around = _Surroundings(call.tensors, preserve_rng_state)
    tensors, call.tensors = call.tensors, ()
    return call.assembled(_Checkpoint.apply(call, around, *tensors))


class _Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, call: "_Call", around: "_Surroundings", *tensors):
        ctx.call, ctx.around = call, around
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        return call.taken_apart(call.run(tensors))

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients):
        if not torch.autograd._is_checkpoint_valid():
            raise CourseError(
                "torch.autograd.grad and backward(inputs=…) cannot pass a re-entrant checkpoint, whose own backward pass "
                "would fill every gradient inside; call backward() plainly, or use checkpoint_by_hooks."
            )
        inputs = [_leaf(tensor) for tensor in ctx.saved_tensors]
        with ctx.around.restored(), torch.enable_grad():
            outputs = ctx.call.taken_apart(ctx.call.run(inputs))
        wanted = [(y, g) for y, g in zip(outputs, gradients, strict=True) if g is not None and y.requires_grad]
        torch.autograd.backward([y for y, _ in wanted], [g for _, g in wanted])
        return None, None, *(tensor.grad for tensor in inputs)


def checkpoint_by_hooks(
    function: Callable, *args, preserve_rng_state: bool = True, keep: Collection[object] = (), **kwargs
):
    """`function(*args, **kwargs)`, of which only the tensors in its arguments are kept; not re-entrant.

    The graph is the same as without it, only that its nodes save empty places. The first place that backward looks into
    makes the function run again, under the random state (unless `preserve_rng_state` is False) and autocast of the
    first time, until the last place is filled and not further. So all that autograd does works through it,
    and no input needs to require a gradient. Results of the operators in `keep`, such as `torch.ops.aten.mm.default`, are
    kept rather than computed again (selective checkpointing); then backward can go through only once.

    Backward raises `CourseError` where the function saves fewer tensors when it runs again, or others in shape, type or
    device, and where it changes in place what it has saved. Values are not compared.
    """
    if not torch.is_grad_enabled():
        return function(*args, **kwargs)
    call = _Call(function, args, kwargs)
    frame = _Frame(call, _Surroundings(call.tensors, preserve_rng_state), Keeper(keep))
    with frame.first_time():
        return function(*args, **kwargs)


class _Frame:
    """One checkpointed call: how to run it again, and the places that its nodes saved instead of tensors."""

    def __init__(self, call: "_Call", around: "_Surroundings", keeper: Keeper):
        self.call, self.around, self.keeper = call, around, keeper
        self.inputs = _saved_like_a_node(call.tensors)
        call.tensors = ()
        self.places: list[weakref.ref[_Place]] = []  # a node that is freed frees its places
        self.kinds: list[tuple] = []

    @contextmanager
    def first_time(self) -> Iterator[None]:
        with saved_tensors_hooks(self._new_place, _Place.look_up), self.keeper.keeping():
            yield

    def _new_place(self, tensor: torch.Tensor) -> "_Place":
        place = _Place(self)
        self.places.append(weakref.ref(place))
        self.kinds.append(_kind(tensor))
        return place

    def fill_places(self) -> None:
        """Run again, and put what is saved this time into the places of the first time."""
        kinds: list[tuple] = []

        def fill(tensor):
            tensor = tensor.detach()  # else the graph of this run would keep itself alive
            if (place := self.places[len(kinds)]()) is not None:
                place.fill(tensor)
            kinds.append(_kind(tensor))
            if len(kinds) == len(self.places):
                raise _Enough
            return tensor

        inputs = [_leaf(tensor) for tensor in self.inputs.saved_tensors]
        with self.around.restored(), torch.enable_grad():
            try:
                with saved_tensors_hooks(fill, lambda tensor: tensor), self.keeper.reusing():
                    self.call.run(inputs)
            except _Enough:
                pass
        _require_same(self.kinds, kinds)


class _Place:
    """What a node holds instead of a tensor."""

    def __init__(self, frame: _Frame):
        self.frame, self.tensor = frame, None

    def fill(self, tensor: torch.Tensor) -> None:
        self.tensor, self.version = tensor, tensor._version

    def look_up(self) -> torch.Tensor:
        if self.tensor is None:
            self.frame.fill_places()
        tensor, self.tensor = self.tensor, None
        if tensor._version != self.version:
            raise CourseError(
                f"The checkpointed function changes in place a tensor {list(tensor.shape)} that backward needs as it was; "
                "use the operation that makes a new tensor."
            )
        return tensor


class _Enough(Exception):  # noqa: N818 not an error: it ends a run whose rest nobody needs
    """The last place is filled."""


class _Call:
    """A function and its arguments, taken apart into tensors and the rest, and its results likewise."""

    def __init__(self, function: Callable, args: tuple, kwargs: dict):
        self.function = function
        leaves, self.shape = tree_flatten((args, kwargs))
        self.tensors = tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        self.rest = [None if isinstance(leaf, torch.Tensor) else (leaf,) for leaf in leaves]
        self.results: tuple | None = None

    def run(self, tensors):
        """Call the function with `tensors` in place of those it was made from."""
        args, kwargs = tree_unflatten(_merged(self.rest, tensors), self.shape)
        return self.function(*args, **kwargs)

    def taken_apart(self, results) -> tuple[torch.Tensor, ...]:
        """The tensors among the results; the rest is noted for `assembled`."""
        leaves, shape = tree_flatten(results)
        if self.results is None:
            self.results = ([None if isinstance(leaf, torch.Tensor) else (leaf,) for leaf in leaves], shape)
        return tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))

    def assembled(self, tensors):
        """The results, with `tensors` as the tensors among them."""
        rest, shape = self.results
        return tree_unflatten(_merged(rest, tensors), shape)


class _Surroundings:
    """Random state and autocast of this moment, on the processor and wherever `tensors` are."""

    def __init__(self, tensors, preserve_rng_state: bool):
        devices = {tensor.device for tensor in tensors if tensor.device.type not in ("cpu", "meta")}
        self.random = _random_states(devices) if preserve_rng_state else None
        self.autocast = [
            {
                "device_type": kind,
                "dtype": torch.get_autocast_dtype(kind),
                "enabled": torch.is_autocast_enabled(kind),
                "cache_enabled": torch.is_autocast_cache_enabled(),
            }
            for kind in ["cpu", *sorted({device.type for device in devices})]
        ]

    @contextmanager
    def restored(self) -> Iterator[None]:
        """As it was then; afterwards as it is now."""
        now = None if self.random is None else _random_states(self.random)
        with ExitStack() as stack:
            for options in self.autocast:
                stack.enter_context(torch.autocast(**options))
            try:
                _set_random_states(self.random)
                yield
            finally:
                _set_random_states(now)


def _random_states(devices) -> dict:
    """The processor's state under "cpu", and that of each other device under the device."""
    states = {"cpu": torch.get_rng_state()}
    others = [device for device in devices if device != "cpu"]
    return states | {device: torch.get_device_module(device).get_rng_state(device) for device in others}


def _set_random_states(states: dict | None) -> None:
    for device, state in (states or {}).items():
        if device == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state, device)


class _Saver(torch.autograd.Function):
    """A node that only saves. What nodes save, a checkpoint around this one replaces by places of its own."""

    @staticmethod
    def forward(ctx, _, *tensors):
        ctx.save_for_backward(*tensors)
        return torch.empty(0)

    @staticmethod
    def backward(ctx, *_):
        raise AssertionError("nothing depends on this node")


def _saved_like_a_node(tensors):
    """The node, whose `saved_tensors` are `tensors`."""
    with torch.enable_grad():
        return _Saver.apply(torch.empty(0, requires_grad=True), *tensors).grad_fn


def _leaf(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers at the start of a graph of their own."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _merged(rest: list, tensors) -> list:
    remaining = iter(tensors)
    return [next(remaining) if other is None else other[0] for other in rest]


def _kind(tensor: torch.Tensor) -> tuple:
    return tuple(tensor.shape), tensor.dtype, tensor.device


def _require_same(first: list[tuple], again: list[tuple]) -> None:
    advice = "make it compute the same both times (no global counters, no unseeded choices)."
    if len(again) < len(first):
        raise CourseError(
            f"The checkpointed function saved {len(first)} tensors, and {len(again)} when it ran again; {advice}"
        )
    for index, (before, now) in enumerate(zip(first, again, strict=True)):
        if before != now:
            raise CourseError(
                f"Of what the checkpointed function saves, tensor {index} was {_said(before)}, and {_said(now)} when it ran "
                f"again; {advice}"
            )


def _said(kind: tuple) -> str:
    shape, dtype, device = kind
    return f"{list(shape)} of {str(dtype).removeprefix('torch.')} on {device}"
