"""ZeRO-1: every rank keeps the optimizer's state of its share of the parameters only (Rajbhandari et al. 2020, section 5.1)."""

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist

from course_utils.distributed.agreement import require_alike
from course_utils.distributed.collectives import begin_broadcast, begin_reduce, require_way
from course_utils.errors import CourseError


class ShardedOptimizer(torch.optim.Optimizer):
    """`optimizer_cls(params, **kwargs)` with its state shared out: `step()` updates this rank's share and hands it around.

    A share consists of whole tensors, so that every optimizer works as ever, also one that looks at rows, columns or blocks;
    shares of what is trained are as equal in size as that allows. Every rank must bring the same parameters, and `.grad` must be
    the mean over the ranks when `step()` is called, as `DDP` leaves it. With `average=True` no `DDP` is needed: the parameters
    begin as rank 0's, and `step()` sends each gradient to its owner only, who takes the mean; `.grad` of the others' shares is
    then dropped, and before it gradients are each rank's own, not to be clipped. A rank without a gradient counts as zero
    there, and a parameter without one on any rank is left alone.

    `optimizer` is the one around this rank's share; `state` is its state, and `param_groups`, which a scheduler may change,
    have all parameters. `by` is "torch" or "ring" (`collectives`). Raises `CourseError` where ranks bring other parameters.
    """

    def __init__(self, params, optimizer_cls: type, by: str = "torch", *, average: bool = False, **kwargs):
        self.optimizer, self._by, self._average = None, require_way(by), average
        self._owner, self._loads = {}, [0] * dist.get_world_size()
        super().__init__(params, kwargs)
        require_alike((f"parameter {number}", p) for number, p in enumerate(self._parameters()))
        self._assign(self._parameters())
        self._begin_alike(self._parameters())
        self.optimizer = optimizer_cls([self._share_of(group) for group in self.param_groups], **kwargs)
        self._take_over()

    def add_param_group(self, param_group: dict) -> None:
        """As of torch's optimizers; the new tensors go to the ranks that have least."""
        super().add_param_group(param_group)
        if self.optimizer is not None:
            self._assign(self.param_groups[-1]["params"])
            self._begin_alike(self.param_groups[-1]["params"])
            self.optimizer.add_param_group(self._share_of(self.param_groups[-1]))
            self._take_over()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update this rank's share and receive the others'; `closure`, where given, is called once before, for the loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._average:
            self._average_gradients()
        for group, share in zip(self.param_groups, self.optimizer.param_groups, strict=True):
            share.update(_settings(group))
        self.optimizer.step()
        self._take_over()
        _wait([begin_broadcast(p.detach(), self._owner[p], self._by) for p in self._parameters() if p.requires_grad])
        return loss

    def state_dict(self) -> dict:
        """The state of all parameters, on every rank, as `optimizer_cls` without sharding would give it (a collective call)."""
        everybodys: list = [None] * dist.get_world_size()
        dist.all_gather_object(everybodys, self._own_state())
        state = {number: entries for share in everybodys for number, entries in share.items()}
        return {"state": dict(sorted(state.items())), "param_groups": self._numbered_groups(self._number_of)}

    def load_state_dict(self, state_dict: dict) -> None:
        """Take this rank's share of a full state, saved at any number of ranks or by an optimizer without sharding.

        Raises `CourseError` where its groups are of other sizes.
        """
        saved, own = ([len(g["params"]) for g in groups] for groups in (state_dict["param_groups"], self.param_groups))
        if saved != own:
            raise CourseError(
                f"The saved state is of groups with {saved} parameters, this optimizer has {own}; build it as the saved one was."
            )
        for group, loaded in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update(_settings(loaded))
        places = {number: place for place, number in enumerate(self._own_numbers())}
        state = {places[number]: entries for number, entries in state_dict["state"].items() if number in places}
        groups = self._numbered_groups(lambda p: places.get(self._number_of(p)))
        for group in groups:
            group["params"] = [place for place in group["params"] if place is not None]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        self._take_over()

    def __deepcopy__(self, memo):
        raise CourseError(
            "A sharded optimizer cannot be copied; build another one and give it load_state_dict(state_dict())."
        )

    def _parameters(self) -> list[torch.Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _assign(self, parameters: Iterable[torch.Tensor]) -> None:
        """The largest first, each to the rank that has least so far; all ranks come to the same."""
        for parameter in sorted(parameters, key=torch.numel, reverse=True):
            owner = self._loads.index(min(self._loads))
            self._owner[parameter] = owner
            self._loads[owner] += parameter.numel() * parameter.requires_grad

    def _begin_alike(self, parameters: Iterable[torch.Tensor]) -> None:
        if self._average:
            _wait([begin_broadcast(p.detach(), 0, self._by) for p in parameters])

    def _is_own(self, parameter: torch.Tensor) -> bool:
        return self._owner[parameter] == dist.get_rank()

    def _share_of(self, group: dict) -> dict:
        return {**_settings(group), "params": [p for p in group["params"] if self._is_own(p)]}

    def _take_over(self) -> None:
        """What the optimizer within has added: its defaults, what it notes in its groups, and its state."""
        for group, share in zip(self.param_groups, self.optimizer.param_groups, strict=True):
            group.update(_settings(share))
        self.state = self.optimizer.state
        self.defaults = {**self.optimizer.defaults, **self.defaults}

    def _average_gradients(self) -> None:
        """The mean over the ranks in the owner's `.grad`, None in the others'."""
        parameters = [p for p in self._parameters() if p.requires_grad]
        has_one = torch.tensor([p.grad is not None for p in parameters], dtype=torch.int32)
        dist.all_reduce(has_one)
        used = [p for p, count in zip(parameters, has_one.tolist(), strict=True) if count]
        for parameter in used:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        _wait([begin_reduce(p.grad, self._owner[p], self._by) for p in used])
        for parameter in used:
            parameter.grad = parameter.grad.div_(dist.get_world_size()) if self._is_own(parameter) else None

    def _number_of(self, parameter: torch.Tensor) -> int:
        return next(number for number, other in enumerate(self._parameters()) if other is parameter)

    def _own_numbers(self) -> list[int]:
        """Of this rank's parameters, in their order in the optimizer within, their numbers among all."""
        return [number for number, parameter in enumerate(self._parameters()) if self._is_own(parameter)]

    def _own_state(self) -> dict[int, dict]:
        numbers = self._own_numbers()
        return {numbers[place]: entries for place, entries in self.optimizer.state_dict()["state"].items()}

    def _numbered_groups(self, number: Callable[[torch.Tensor], object]) -> list[dict]:
        return [{**_settings(group), "params": [number(p) for p in group["params"]]} for group in self.param_groups]


def _settings(group: dict) -> dict:
    return {name: value for name, value in group.items() if name not in ("params", "param_names")}


def _wait(begun: Iterable[Callable[[], object]]) -> None:
    for wait in begun:
        wait()
