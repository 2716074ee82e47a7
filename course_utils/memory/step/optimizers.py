"""Functions that make the optimizers of a `Recipe`."""

from collections.abc import Callable, Iterable
from functools import partial
from importlib import import_module
from math import inf

import torch

from course_utils.errors import CourseError, suggest
from course_utils.memory.step.recipe import OPTIMIZERS
from course_utils.memory.trace.as_cuda import GPU, HOST
from course_utils.memory.trace.fake import fake_tensors, is_fake
from course_utils.memory.trace.state import StateSize, optimizer_state_size
from course_utils.optim import GaLore, hidden_matrices

OptimizerFactory = Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer]


class MemoryOfAdamW4bit(torch.optim.Optimizer):
    """An optimizer with the memory of torchao's 4-bit AdamW (Li et al. 2023), but not its arithmetic, for dry runs.

    A tensor with at least 4096 elements, and a multiple of 128 of them, has for each of two averages half a byte an element, a
    float32 scale for each 128 elements and a table of 16 float32. Any other tensor has 8 bytes an element. One compiled kernel
    makes the update, without temporaries.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], lr: float):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], torch.Tensor] | None = None) -> None:
        """Create the state of every parameter that has a gradient."""
        for parameter in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            if parameter not in self.state:
                self.state[parameter] = self._new_state(parameter)

    @staticmethod
    def _new_state(parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        count = parameter.numel()
        state = {"step": torch.zeros((), device="cpu")}
        for name in ("exp_avg", "exp_avg_sq"):
            if count < 4096 or count % 128:
                state[name] = torch.zeros_like(parameter)
                continue
            state[f"{name} codes"] = parameter.new_empty(count // 2, dtype=torch.uint8)
            state[f"{name} scales"] = parameter.new_empty(count // 128, dtype=torch.float32)
            state[f"{name} table"] = parameter.new_empty(16, dtype=torch.float32)
        return state


def _is_pretended(tensor: torch.Tensor) -> bool:
    return is_fake(tensor) and tensor.device == GPU


def _page_on_host(optimizer_class: type) -> type:
    class Paged(optimizer_class):
        """With a pretended GPU, the states that bitsandbytes pages are on the host, from which CUDA fetches them."""

        def get_state_buffer(self, p: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            if not _is_pretended(p) or p.numel() < 1e5:
                return super().get_state_buffer(p, dtype)
            state = torch.zeros_like(p, dtype=dtype, device=HOST)
            state.is_paged = True
            return state

        def prefetch_state(self, p: torch.Tensor) -> None:
            if not _is_pretended(p):
                super().prefetch_state(p)

    return Paged


def make_optimizer(name: str, parameters: Iterable[torch.nn.Parameter], **options) -> torch.optim.Optimizer:
    """The optimizer with this name in `OPTIMIZERS`; `options` replace those of the table."""
    spec = OPTIMIZERS[name]
    module, _, class_name = spec.path.rpartition(".")
    optimizer_class = getattr(import_module(module), class_name)
    if name.startswith("paged"):
        optimizer_class = _page_on_host(optimizer_class)
    return optimizer_class(parameters, **{"lr": 1e-4, **spec.options, **options})


def galore_factory(model: torch.nn.Module, rank: int) -> OptimizerFactory:
    """A function that makes `GaLore` for the trained parameters of `model`, or for copies of them in the same order.

    Gradients of hidden matrices are projected to `rank` directions, which each step finds anew.
    """
    hidden = set(hidden_matrices(model)[0])
    are_hidden = [parameter in hidden for parameter in model.parameters() if parameter.requires_grad]

    def make(parameters: Iterable[torch.nn.Parameter]) -> GaLore:
        groups = [{"params": [], "rank": inf}, {"params": [], "rank": rank}]
        for parameter, is_hidden in zip(parameters, are_hidden, strict=True):
            groups[is_hidden]["params"].append(parameter)
        return GaLore(groups, lr=1e-4, interval=1)

    return make


def state_size(
    optimizer: str | OptimizerFactory, shapes: Iterable[tuple[int, ...]], dtype: torch.dtype = torch.float32
) -> StateSize:
    """The size of the state of `optimizer` for parameters of these shapes, found by one update of fake ones."""
    with fake_tensors():
        parameters = [torch.nn.Parameter(torch.empty(shape, dtype=dtype)) for shape in shapes]
        for parameter in parameters:
            parameter.grad = torch.empty_like(parameter)
        filled_optimizer = factory_of(optimizer)(parameters)
        filled_optimizer.step()
        return optimizer_state_size(filled_optimizer)


def factory_of(optimizer: str | OptimizerFactory) -> OptimizerFactory:
    """The function that makes the optimizer of this name, or the function given. Raises `CourseError` for an unknown name."""
    if callable(optimizer):
        return optimizer
    if optimizer not in OPTIMIZERS:
        raise CourseError(f"No optimizer is called {optimizer!r}; {suggest(optimizer, OPTIMIZERS)}")
    return partial(make_optimizer, optimizer)
