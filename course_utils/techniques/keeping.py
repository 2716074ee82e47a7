"""Selective checkpointing: results of some operators are kept, so that running again need not compute them."""

from collections import deque
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from course_utils.errors import CourseError

MATRIX_PRODUCTS = frozenset({torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default})
"""The products of matrices in linear layers, and in attention unless it is one fused operator (as often on a GPU)."""


class Keeper:
    """Keeps what the operators in `operators` return the first time, and hands it out when they are called again."""

    def __init__(self, operators: Collection[object]):
        for operator in operators:
            if not isinstance(operator, torch._ops.OpOverload):
                raise CourseError(
                    f"keep={operator!r} is no single operator; name its overload, as in torch.ops.aten.mm.default."
                )
        self.operators = frozenset(operators)
        self.kept: deque[torch.Tensor] = deque()

    def keeping(self) -> AbstractContextManager:
        """For the first run."""
        return _Mode(self._keep) if self.operators else nullcontext()

    def reusing(self) -> AbstractContextManager:
        """For the run in backward."""
        return _Mode(self._reuse) if self.operators else nullcontext()

    def _keep(self, operator, args, kwargs):
        self._refuse_change(operator, args)
        result = operator(*args, **kwargs)
        if operator in self.operators:
            self.kept.append(result.detach())  # the result itself will hold the graph, and the graph this keeper
        return result

    def _reuse(self, operator, args, kwargs):
        if operator not in self.operators:
            return operator(*args, **kwargs)
        if not self.kept:
            raise CourseError(
                "Nothing is left of what was kept: backward can go through a selective checkpoint once, and the function "
                "must compute the same both times."
            )
        return self.kept.popleft()

    def _refuse_change(self, operator, args) -> None:
        """Raise `CourseError` where an operator writes into something kept: it would be handed out changed."""
        if not operator._schema.is_mutable:
            return
        kept = {tensor.untyped_storage()._cdata for tensor in self.kept}
        for argument, value in zip(operator._schema.arguments, args, strict=False):
            if argument.is_write and value.untyped_storage()._cdata in kept:
                raise CourseError(
                    f"{operator} changes in place what is kept for backward; use the operation that makes a new tensor."
                )


class _Mode(TorchDispatchMode):
    def __init__(self, answer: Callable):
        super().__init__()
        self.answer = answer

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        return self.answer(operator, args, kwargs or {})
