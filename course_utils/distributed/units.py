"""Which parameters are gathered together: a module cut into units."""

from collections.abc import Iterator

import torch
from torch import nn

from course_utils.distributed.flat import Member, Unit
from course_utils.errors import CourseError

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def cut(root: nn.Module, units, compute_dtype: torch.dtype | None, by: str) -> list[Unit]:
    """The units of `root`, itself the first; `units` as `FSDP` takes it.

    A parameter belongs to the innermost unit around it, one that several units hold to the root.
    """
    chosen = {id(root), *map(id, _chosen(root, units))}
    members, owners = {}, {}
    for name, module, attribute, parameter, owner in _held(root, "", root, chosen):
        member = members.setdefault(id(parameter), Member(parameter))
        member.names.append(name)
        if (module, attribute) not in member.holders:
            member.holders.append((module, attribute))
        owners.setdefault(id(parameter), set()).add(owner)
    shares = {id(module): [] for module in root.modules() if id(module) in chosen}
    for key, member in members.items():
        owner = next(iter(owners[key])) if len(owners[key]) == 1 else root
        shares[id(owner)].append(member)
    named = [(name, module) for name, module in root.named_modules() if shares.get(id(module)) or module is root]
    return [Unit(name, module, shares[id(module)], compute_dtype, by) for name, module in named]


def _chosen(root: nn.Module, units) -> list[nn.Module]:
    if units is None:
        return []
    if isinstance(units, int):
        return _at_least(root, units)[0]
    if isinstance(units, type) or (isinstance(units, tuple) and all(isinstance(each, type) for each in units)):
        found = [module for module in root.modules() if isinstance(module, units)]
    else:
        found = [units] if isinstance(units, nn.Module) else list(units)
    known = set(root.modules())
    if not found or any(module not in known for module in found):
        raise CourseError(f"{type(root).__name__} has no such modules as units={units!r}; name a class of its modules.")
    if any(isinstance(module, _CONTAINERS) for module in found):
        raise CourseError("A list of modules has no forward pass around which to gather it; name the modules in it.")
    return found


def _at_least(module: nn.Module, elements: int) -> tuple[list[nn.Module], int]:
    """The smallest modules with so many parameters outside of smaller units, and how many are left over."""
    if elements < 1:
        raise CourseError(f"units={elements} is no number of parameters; use 1 or more.")
    found, left = [], sum(p.numel() for p in module.parameters(recurse=False))
    for child in module.children():
        inside, outside = _at_least(child, elements)
        found += inside
        left += outside
    # Containers have no forward pass, around which to gather.
    if left >= elements and not isinstance(module, _CONTAINERS):
        return [*found, module], 0
    return found, left


def _held(module: nn.Module, prefix: str, owner: nn.Module, chosen: set[int]) -> Iterator[tuple]:
    """(name, module, attribute, parameter, unit's module) for all parameters, under each name that they have."""
    for attribute, parameter in module._parameters.items():
        if parameter is not None:
            yield prefix + attribute, module, attribute, parameter, owner
    for name, child in module._modules.items():  # named_children would leave out a second name
        if child is not None:
            yield from _held(child, f"{prefix}{name}.", child if id(child) in chosen else owner, chosen)
