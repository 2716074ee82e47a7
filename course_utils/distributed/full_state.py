"""From shards to the plain module's names and shapes, and back: so a run can go on with another number of ranks."""

from collections.abc import Iterable

import torch
from torch import nn

from course_utils.distributed.flat import Flat
from course_utils.errors import CourseError


def parameters_and_buffers(module: nn.Module, flats: list[Flat], names: list[str]) -> dict[str, torch.Tensor]:
    """Under `names`, in their order: parameters gathered one row after the other, buffers and extra state as they are."""
    found = dict(module.state_dict())
    for flat in flats:
        found |= _by_names(flat, flat.shard.detach())
    return {name: found[name] for name in names}


@torch.no_grad()
def load_parameters_and_buffers(module: nn.Module, flats: list[Flat], names: list[str], state: dict) -> None:
    """The reverse; raises `CourseError` for names or shapes of another module."""
    _require_names(names, state)
    whole_here = {name: value for name, value in module.state_dict().items() if name in state}
    for name, value in whole_here.items():
        if isinstance(value, torch.Tensor):
            _require_shape(name, state[name], value.shape)
    parts = [_part(flat, state) for flat in flats]
    module.load_state_dict({name: state[name] for name in whole_here}, strict=False)
    for flat, part in zip(flats, parts, strict=True):
        flat.shard.copy_(part)


def of_optimizer(optimizer: torch.optim.Optimizer, flats: list[Flat]) -> dict:
    """`state`: by parameter's name, what is kept of it, in its shape or as one number for all; `settings` of each group.

    Raises `CourseError` where the optimizer keeps something else, such as scales of blocks: it belongs to this cut.
    """
    state: dict[str, dict] = {}
    for flat in flats:
        for kind, value in optimizer.state.get(flat.shard, {}).items():
            for name, tensor in _kept(flat, kind, value).items():
                state.setdefault(name, {})[kind] = tensor
    settings = [{kind: value for kind, value in group.items() if kind != "params"} for group in optimizer.param_groups]
    return {"state": state, "settings": settings}


def load_into_optimizer(optimizer: torch.optim.Optimizer, flats: list[Flat], full: dict) -> None:
    """The reverse; raises `CourseError` for another number of groups, or other names."""
    if len(full["settings"]) != len(optimizer.param_groups):
        raise CourseError(
            f"The saved state has {len(full['settings'])} groups, this optimizer {len(optimizer.param_groups)}; "
            "build it as the saved one was."
        )
    for group, settings in zip(optimizer.param_groups, full["settings"], strict=True):
        group.update(settings)
    for flat in flats:
        entries = [full["state"].get(member.names[0]) for member in flat.members]
        if all(entries):
            optimizer.state[flat.shard] = {kind: _merged(flat, kind, entries) for kind in entries[0]}
        elif any(entries):
            raise CourseError(
                "The saved state has some parameters of a row and not others; cut the module as it was cut."
            )


def _by_names(flat: Flat, part: torch.Tensor) -> dict[str, torch.Tensor]:
    views = flat.views(flat.whole_of(part))
    return {name: view.clone() for member, view in zip(flat.members, views, strict=True) for name in member.names}


def _part(flat: Flat, state: dict) -> torch.Tensor:
    tensors = [state[member.names[0]] for member in flat.members]
    for member, shape, tensor in zip(flat.members, flat.shapes, tensors, strict=True):
        _require_shape(member.names[0], tensor, shape)
    return flat.own_part(flat.in_a_row(tensors, flat.shard.dtype))


def _kept(flat: Flat, kind: str, value) -> dict:
    """Of one value of the state, what each parameter has of it."""
    if isinstance(value, torch.Tensor) and value.shape == flat.shard.shape:
        return _by_names(flat, value)
    if isinstance(value, torch.Tensor) and value.ndim:
        raise CourseError(
            f"The optimizer keeps {kind} of shape {list(value.shape)} for a shard of {len(flat.shard)} elements, which no other "
            "cut can use; save the shards' own state_dict() instead."
        )
    return {name: value for member in flat.members for name in member.names}


def _merged(flat: Flat, kind: str, entries: list[dict]):
    """Of one kind of state, this rank's part, or the number that all parameters share."""
    values = [entry[kind] for entry in entries]
    if isinstance(values[0], torch.Tensor) and values[0].ndim:
        return flat.own_part(flat.in_a_row(values, values[0].dtype)).clone()
    return values[0].clone() if isinstance(values[0], torch.Tensor) else values[0]


def _require_shape(name: str, tensor: torch.Tensor, shape: torch.Size) -> None:
    if tensor.shape != shape:
        raise CourseError(
            f"{name} has shape {list(tensor.shape)} in the state and {list(shape)} in the module; "
            "load the state of the same module."
        )


def _require_names(names: Iterable[str], state: dict) -> None:
    missing, foreign = [name for name in names if name not in state], [name for name in state if name not in set(names)]
    if missing or foreign:
        raise CourseError(
            f"The state lacks {missing[:3]} and has {foreign[:3]} that the module does not know; load a state of the same module."
        )
