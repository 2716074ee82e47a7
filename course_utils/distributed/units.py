"""Which parameters are gathered together: a module cut into units."""

from collections.abc import Iterator

import torch
from torch import nn

from course_utils.distributed.flat import Member, Unit
from course_utils.errors import CourseError


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
    if isinstance(units, type | tuple):
        found = [module for module in root.modules() if isinstance(module, units)]
    else:
        known = set(root.modules())
        found = [module for module in units if module in known]
    if not found:
        raise CourseError(f"No module of {type(root).__name__} is of units={units!r}; name a class of its modules.")
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
    if left >= elements and not isinstance(module, nn.ModuleList | nn.ModuleDict):
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
