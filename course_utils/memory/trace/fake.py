"""Fake tensors, which have shape, dtype and device but no memory, with the values of small ones that hold whole numbers."""

import logging
import sys
import time
import warnings
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from traceback import walk_stack
from unittest.mock import patch

import torch
from torch import nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_iter, tree_leaves, tree_map_only
from torch.utils.weak import WeakTensorKeyDictionary

from course_utils.errors import CourseError
from course_utils.hardware.operators import EagerMode, list_tensors, written_arguments
from course_utils.memory.trace.location import describe_location
from course_utils.memory.trace.scratch import try_out
from course_utils.optim.codebook import dynamic_codebook
from course_utils.optim.quantization import lookup_table

_aten = torch.ops.aten
DEVICE_QUESTION = torch.ops.prim.device.default
_FAULT_TESTS = (_aten.isnan.default, _aten.isinf.default)
_LOSSES = (_aten.mse_loss.default, _aten.smooth_l1_loss.default, _aten.binary_cross_entropy.default)
MAX_REPEATED_QUESTIONS = 5000
"""How often one line may ask for an unknown value before it is taken for a loop that waits for another answer."""
# The most elements of a tensor whose values are kept: of integers and booleans, and of floating numbers.
_MAX_INTEGERS, _MAX_FLOATS = 2**20, 2**10


@contextmanager
def fake_tensors(timeout: float = 600.0) -> Iterator[FakeTensorMode]:
    """A context in which tensors are fake; raises `CourseError`, naming the line, after `timeout` seconds."""
    for signed in (True, False):  # these functions cache their tables, which must not be fake
        lookup_table(dynamic_codebook(signed, device=torch.device("cpu")))
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng([]))
        stack.enter_context(_silence_libraries())
        mode = stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        values = FakeValues(mode, timeout)
        stack.enter_context(_let_convert(mode, values))
        stack.enter_context(patch.object(torch.nn.init, "_no_grad_trunc_normal_", lambda tensor, *_, **__: tensor))
        stack.enter_context(patch.object(torch.Tensor, "__deepcopy__", _deep_copy))
        stack.enter_context(patch.object(nn.Parameter, "__deepcopy__", _deep_copy))
        stack.enter_context(let_masks_have_values())
        stack.enter_context(values)
        yield mode


@contextmanager
def _silence_libraries() -> Iterator[None]:
    """A context in which libraries' remarks on missing weights, caches and kernels are not printed."""
    names = ("torch._subclasses.fake_tensor", "transformers", "peft", "bitsandbytes")
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


@contextmanager
def let_masks_have_values() -> Iterator[None]:
    """A context in which Transformers reads fake masks as if they were real, since their values are known here."""
    library = sys.modules.get("transformers.utils.import_utils")
    if library is None or not hasattr(library, "is_fake_tensor"):
        yield
    else:
        with patch.object(library, "is_fake_tensor", lambda _: False):
            yield


@contextmanager
def _let_convert(mode: FakeTensorMode, values: "FakeValues") -> Iterator[None]:
    """A context in which a model can be converted in place (`.to(dtype)`, `.bfloat16()`), for which PyTorch swaps tensors.

    PyTorch refuses to swap a tensor to which weak references point. The tables of fake tensors in `mode` and of their values in
    `values` hold such references, which are therefore dropped first.
    """
    swap = torch.utils.swap_tensors

    def swap_forgotten(first: torch.Tensor, second: torch.Tensor) -> None:
        mode.fake_tensor_converter.meta_converter.tensor_memo.clear()
        values.forget(first, second)
        swap(first, second)

    with patch.object(torch.utils, "swap_tensors", swap_forgotten):
        yield


def _deep_copy(self: torch.Tensor, memo: dict) -> torch.Tensor:
    """`copy.deepcopy` of a fake tensor; views of a copy by torch's own would have another storage than the copy."""
    if id(self) not in memo:
        copy = self.detach().clone()
        is_parameter = isinstance(self, nn.Parameter)
        is_trained = self.requires_grad
        memo[id(self)] = nn.Parameter(copy, is_trained) if is_parameter else copy.requires_grad_(is_trained)
    return memo[id(self)]


class FakeValues(EagerMode):
    """Keeps the values of small fake tensors of whole numbers, and answers questions about them with these.

    Such tensors are masks, ids, lengths and what is computed from them. A question for any other number (`loss.item()`) is
    answered with 1 in the tensor's dtype, but a `GradScaler`, which asks how many gradients were infinite, gets 0. Raises
    `CourseError` where a line goes on asking, and after `timeout` seconds.
    """

    def __init__(self, mode: FakeTensorMode, timeout: float):
        super().__init__()
        self._mode, self._timeout, self._end = mode, timeout, time.perf_counter() + timeout
        self._values = WeakTensorKeyDictionary()
        # Weak references, since a new storage may have an old one's address.
        self._overwritten: set[StorageWeakRef] = set()
        self._counts_of_infinite = WeakTensorKeyDictionary()
        self._questions: Counter = Counter()
        self._operators = 0

    def __torch_dispatch__(self, func: OpOverload, types: Collection, args: tuple = (), kwargs: dict | None = None):
        kwargs = kwargs or {}
        if any(map(is_traceable_wrapper_subclass_type, types)):
            return NotImplemented
        if func.namespace == "prim":  # C++ asks, and an exception here would end the process
            is_answered = func is DEVICE_QUESTION and type(args[0]) is FakeTensor
            return args[0].fake_device if is_answered else func(*args, **kwargs)
        self._count_operator()
        if func is _aten._local_scalar_dense.default:
            return self._answer_number(args[0])
        if func is _aten._amp_foreach_non_finite_check_and_unscale_.default:
            self._counts_of_infinite[args[1]] = True
        if func is _aten._pin_memory.default:
            return args[0].clone()
        real_arguments = self._find_real_arguments(func, args, kwargs)
        if real_arguments is not None:
            return self._run_with_values(func, args, kwargs, real_arguments)
        return self._run_without_values(func, args, kwargs)

    def _run_without_values(self, func: OpOverload, args: tuple, kwargs: dict) -> object:
        """Call an operator of whose arguments not all values are known; where torch's own fake result is wrong, mend it."""
        if func in _FAULT_TESTS:
            return self._answer_no_faults(func(*args, **kwargs))
        self._note_overwritten(func, args)
        if func is _aten.index.Tensor:
            args = args[0], self._replace_masks(args[1])
        if func is _aten._ctc_loss.Tensor and (lengths := self._value(args[3])) is not None:
            return _ctc_loss(args[0], lengths)
        if func is _aten._ctc_loss_backward.Tensor:  # the result of torch's own fake kernel is on the host
            return torch.empty_like(args[1])
        if func is _aten._grouped_mm.default:
            return _multiply_groups(func, args, kwargs)
        return _enlarge_to_real(func, args, kwargs, func(*args, **kwargs))

    def _answer_no_faults(self, result: torch.Tensor) -> torch.Tensor:
        """Let a test for NaN or infinity find none, since a step is predicted without them."""
        if _is_small(result):
            with unset_fake_temporarily():
                self._values[result] = torch.zeros(result.shape, dtype=torch.bool)
        return result

    def _note_overwritten(self, func: OpOverload, args: tuple) -> None:
        for index in written_arguments(func):
            for tensor in tree_leaves(args[index : index + 1]):
                is_small = isinstance(tensor, torch.Tensor) and _is_small(tensor)
                if is_small and (value := self._value(tensor)) is not None:
                    self._overwritten.add(StorageWeakRef(value.untyped_storage()))

    def _count_operator(self) -> None:
        self._operators += 1
        if self._operators % 256 == 0 and time.perf_counter() > self._end:
            raise CourseError(
                f"The dry run was stopped after {self._timeout:.0f} seconds {describe_location(walk_stack(sys._getframe()))}; "
                "give it fewer tokens or examples, or more time (timeout=…)."
            )

    def _answer_number(self, tensor: torch.Tensor) -> bool | int | float:
        value = self._value(tensor)
        if value is not None:
            with unset_fake_temporarily():
                return value.item()
        line = describe_location(walk_stack(sys._getframe()))
        self._questions[line] += 1
        if self._questions[line] > MAX_REPEATED_QUESTIONS:
            raise CourseError(
                f"The dry run was stopped {line}: it has asked {MAX_REPEATED_QUESTIONS} times for a number that depends on the "
                "values of floating tensors, which a dry run has not, and goes on for as long as the answer is 1; leave the loop "
                "out."
            )
        if tensor in self._counts_of_infinite:
            return 0.0
        if tensor.dtype is torch.bool:
            return True
        return 1.0 if tensor.dtype.is_floating_point else 1

    def _value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        if not isinstance(tensor, FakeTensor):
            return tensor
        value = self._values.get(tensor) if len(self._values) else None
        if value is None or value.shape != tensor.shape:  # its `.data` has been set to another tensor
            return None
        return None if StorageWeakRef(value.untyped_storage()) in self._overwritten else value

    def forget(self, *tensors: torch.Tensor) -> None:
        """Drop the known values of `tensors`."""
        for tensor in tensors:
            self._values.pop(tensor, None)

    def _find_real_arguments(self, func: OpOverload, args: tuple, kwargs: dict) -> tuple | None:
        """The arguments with real tensors in place of fake ones; None if the values of any are unknown."""
        first = args[0] if args else None
        first = first[0] if isinstance(first, list) and first else first
        if func.namespace != "aten" or self._is_unknown(first):
            return None
        if torch.Tag.nondeterministic_seeded in func.tags and not func._schema.name.startswith("aten::randint"):
            return None  # random values count as unknown: else small models would know more than large ones
        if any(map(self._is_unknown, tree_iter((args, kwargs)))):
            return None
        return tree_map_only(torch.Tensor, self._value, (args, kwargs))

    def _is_unknown(self, leaf: object) -> bool:
        return isinstance(leaf, torch.Tensor) and (not _is_small(leaf) or self._value(leaf) is None)

    def _replace_masks(self, indices: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """The indices, with each mask of known values replaced by the indices that it selects, one tensor for each dimension."""
        lists: list[torch.Tensor | None] = []
        for index in indices:
            value = None if index is None or index.dtype is not torch.bool else self._value(index)
            if value is None:
                lists.append(index)
                continue
            with unset_fake_temporarily():
                by_dimension = value.nonzero(as_tuple=True)
            lists += [self._mode.from_tensor(numbers).to(index.device) for numbers in by_dimension]
        return lists

    def _run_with_values(self, func: OpOverload, args: tuple, kwargs: dict, real_arguments: tuple) -> object:
        try:
            result = func(*args, **kwargs)
            needs_values = written_arguments(func) or any(map(_is_small, list_tensors(result)))
        except (DynamicOutputShapeException, DataDependentOutputException):
            result, needs_values = None, True  # the shape depends on values, which are known here
        if not needs_values:
            return result
        real_args, real_kwargs = real_arguments
        with unset_fake_temporarily():
            real_result = func(*real_args, **real_kwargs)
        if result is None:
            # The real results are on the host; their fakes belong on the arguments' device.
            device = next(device_of(tensor) for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, FakeTensor))
            result = tree_map_only(torch.Tensor, lambda tensor: self._mode.from_tensor(tensor).to(device), real_result)
        for fake, value in zip(tree_leaves(result), tree_leaves(real_result), strict=True):
            if isinstance(fake, FakeTensor) and _is_small(value):
                self._values[fake] = value
        return result


def device_of(tensor: torch.Tensor) -> torch.device:
    """The device of `tensor`, read without a call of the dispatcher, which a fake tensor's own property would make."""
    return tensor.fake_device if type(tensor) is FakeTensor else tensor.device


def _is_small(tensor: torch.Tensor) -> bool:
    limit = _MAX_FLOATS if tensor.dtype.is_floating_point or tensor.dtype.is_complex else _MAX_INTEGERS
    return tensor.numel() <= limit and device_of(tensor).type != "meta"


def _multiply_groups(func: OpOverload, args: tuple, kwargs: dict) -> torch.Tensor:
    """The products of a mixture of experts, also in float32, which the CPU's kernel takes but torch's fake kernel refuses."""
    if args[0].dtype is torch.bfloat16:
        return func(*args, **kwargs)
    halves = [a.to(torch.bfloat16) if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
    result = func(*halves, **kwargs)
    return torch.empty_strided(result.shape, result.stride(), dtype=args[0].dtype, device=args[0].device)


def _ctc_loss(log_probabilities: torch.Tensor, lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """CTC's loss, for which torch has no fake kernel.

    It returns a number for each example, and for each a table of frames × (2 · longest label + 1).
    """
    with unset_fake_temporarily():
        longest = int(lengths.max())
    frames, examples, _ = log_probabilities.shape
    return log_probabilities.new_empty(examples), log_probabilities.new_empty(examples, frames, 2 * longest + 1)


def _enlarge_to_real(func: OpOverload, args: tuple, kwargs: dict, result: object) -> object:
    """The result with as much memory as the CPU's operator returns, if the fake result has less.

    A loss is one number in a storage as large as the tensors that were compared; a fake recurrent layer has an empty workspace;
    a layer norm of mixed dtypes has its statistics in the wider one.
    """
    if func in _LOSSES and args[0].device == torch.device("cpu") and result.dim() == 0:
        return result.new_empty(max(args[0].numel(), args[1].numel())).as_strided((), ())
    if func is _aten.native_layer_norm.default and args[2] is not None and args[2].dtype != args[0].dtype:
        return result[0], *(statistic.to(args[2].dtype) for statistic in result[1:])
    if func is _aten.mkldnn_rnn_layer.default and (footprint := try_out(func, args, kwargs)):
        return *result[:3], result[3].new_empty(footprint.returned[3])
    return result


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether `tensor` is fake, or for a distributed one this rank's part of it."""
    return isinstance(getattr(tensor, "_local_tensor", tensor), FakeTensor)
