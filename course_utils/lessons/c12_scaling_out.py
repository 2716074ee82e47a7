"""Chapter 12: a model cut by width and by depth over real ranks, and what a cut sends, keeps and takes."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from math import prod
from typing import TYPE_CHECKING

import pandas as pd
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx
from torch.nn.functional import cross_entropy

from course_utils import models
from course_utils.distributed import Traffic, counted
from course_utils.distributed.pipeline import Pipeline
from course_utils.distributed.pipeline_schedules import Action, Schedule
from course_utils.distributed.tensor_parallel import Split
from course_utils.lessons.shared import account_of, local_part
from course_utils.memory import saved_bytes
from course_utils.training.gradients import relative_error
from course_utils.units import format_seconds

if TYPE_CHECKING:
    from transformers import PretrainedConfig

COLUMNS = {"self_attn": ("q_proj", "k_proj", "v_proj"), "mlp": ("gate_proj", "up_proj")}
ROWS = {"self_attn": ("o_proj",), "mlp": ("down_proj",)}
"""What is cut of a block of Llama: by outputs, by inputs."""
Orders = Callable[[int, int], list[list[Action]]]
"""The orders of a schedule, by the numbers of stages and micro-batches."""


@dataclass(frozen=True)
class TrainingTask:
    """What all ways of cutting train on: so many `micro_batches` of `examples` with so many `tokens` each."""

    config: "PretrainedConfig"
    micro_batches: int = 4
    examples: int = 2
    tokens: int = 32
    dtype: torch.dtype = torch.float64

    def model(self) -> nn.Module:
        """The model, the same in every process."""
        return models.from_configuration(self.config).to(self.dtype)

    def batches(self) -> list[Tensor]:
        """Token ids, of shape (examples, tokens), the same in every process."""
        draw = torch.Generator().manual_seed(12)
        shape = (self.micro_batches, self.examples, self.tokens)
        return [ids.clone() for ids in torch.randint(1, self.config.vocab_size, shape, generator=draw)]

    @property
    def boundary(self) -> tuple[int, int, int]:
        """The shape of what goes from block to block for one micro-batch."""
        return self.examples, self.tokens, self.config.hidden_size

    @property
    def boundary_bytes(self) -> int:
        return prod(self.boundary) * self.dtype.itemsize


def next_token_loss(logits: Tensor, ids: Tensor) -> Tensor:
    """The mean over all tokens but the first."""
    return cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def gradients_alone(task: TrainingTask) -> dict[str, Tensor]:
    """The truth: the gradients of one process, by name."""
    return _gradients_of(task, task.model())


def _gradients_of(task: TrainingTask, model: nn.Module) -> dict[str, Tensor]:
    """Gradients of the mean loss over all micro-batches."""
    for ids in task.batches():
        (next_token_loss(model(input_ids=ids).logits, ids) / task.micro_batches).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}


@dataclass
class RankGradients:
    """What a rank saw of an update: `gradients` by their names in the whole model, `elements` of parameters, `sent`."""

    gradients: dict[str, Tensor] = field(repr=False)
    elements: int
    sent: Traffic

    def largest_difference(self, truth: Mapping[str, Tensor], rank: int) -> float:
        """The largest difference from the truth, of which this rank may have a part of a matrix."""
        differences = (grad - _part_like(grad, truth[name], rank) for name, grad in self.gradients.items())
        return max(difference.abs().max().item() for difference in differences)


def _part_like(part: Tensor, full: Tensor, rank: int) -> Tensor:
    cut = next((dim for dim, (a, b) in enumerate(zip(part.shape, full.shape, strict=True)) if a != b), None)
    return full if cut is None else full.split(part.shape[cut], cut)[rank]


# Cut by width.


def split_by_hand(model: nn.Module, group: dist.ProcessGroup | None = None) -> nn.Module:
    """Attention and MLP of every block are cut over the ranks of `group`, by default all."""
    for block in model.model.layers:
        for name, columns in COLUMNS.items():
            setattr(block, name, Split(getattr(block, name), columns, ROWS[name], group))
    return model


def split_by_torch(model: nn.Module, inputs_first: bool = False) -> nn.Module:
    """The same cuts by `parallelize_module`; `inputs_first`: it is told that layers that are cut by outputs share their input."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        parallelize_module,
    )

    plan = {}
    for module in COLUMNS:
        place = f"model.layers.*.{module}"
        plan |= {f"{place}.{name}": ColwiseParallel() for name in COLUMNS[module]}
        plan |= {f"{place}.{name}": RowwiseParallel() for name in ROWS[module]}
    if inputs_first:
        layouts = {"hidden_states": Replicate()}
        plan["model.layers.*.self_attn"] = PrepareModuleInput(
            input_kwarg_layouts=layouts, desired_input_kwarg_layouts=layouts
        )
        plan["model.layers.*.mlp"] = PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Replicate())
    return parallelize_module(model, init_device_mesh("cpu", (dist.get_world_size(),)), plan)


def split_without_sum(model: nn.Module) -> nn.Module:
    """`split_by_hand` with a fault: the gradient of a module's input is not summed over the ranks."""
    model = split_by_hand(model)
    for split in (module for module in model.modules() if isinstance(module, Split)):
        split.forward = split.module.forward
    return model


def error_of(name: str, seen: Sequence[RankGradients], truth: Mapping[str, Tensor]) -> float:
    """How far a gradient is off on the worst rank, by norms: 0 is right."""
    gradients = [rank.gradients[name] for rank in seen]
    return max(relative_error(grad, _part_like(grad, truth[name], rank)) for rank, grad in enumerate(gradients))


def measure_tensor_on_rank(task: TrainingTask, cut: Callable[[nn.Module], nn.Module], **options) -> RankGradients:
    """To be launched: the gradients of an update where `cut` has cut the model over all ranks."""
    model = cut(task.model(), **options)
    with counted() as sent:
        gradients = {name.replace(".module", ""): local_part(grad) for name, grad in _gradients_of(task, model).items()}
    elements = sum(local_part(parameter).numel() for parameter in model.parameters())
    return RankGradients(gradients, elements, sent)


# Cut by depth.


class StageBlocks(nn.Module):
    """The blocks of one stage; the first has the embedding too, the last the norm and the output layer."""

    def __init__(self, model: nn.Module, stage: int, stages: int):
        super().__init__()
        blocks = len(model.model.layers)
        self.first, last = stage * blocks // stages, (stage + 1) * blocks // stages
        self.body = model.model
        self.head = model.lm_head if stage == stages - 1 else None
        self.body.layers = self.body.layers[self.first : last]
        self.takes = "inputs_embeds" if stage else "input_ids"
        if stage:
            self.body.embed_tokens = None
        if self.head is None:
            self.body.norm = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Maps token ids, or what the stage before sent, to what the stage after takes, or to logits."""
        x = self.body(**{self.takes: x}, use_cache=False).last_hidden_state
        return x if self.head is None else self.head(x)

    def gradients(self) -> dict[str, Tensor]:
        """The gradients by their names in the whole model."""
        return {self._whole_name(name): parameter.grad for name, parameter in self.named_parameters()}

    def _whole_name(self, name: str) -> str:
        kind, _, rest = name.partition(".")
        if rest.startswith("layers."):
            _, number, rest = rest.split(".", 2)
            rest = f"layers.{self.first + int(number)}.{rest}"
        return f"{'model' if kind == 'body' else 'lm_head'}.{rest}"


def measure_pipeline_on_rank(task: TrainingTask, orders: Orders) -> RankGradients:
    """To be launched: the gradients of an update by one of the schedules."""
    part, pipeline = build_stage(task)
    with counted() as sent:
        pipeline.run(orders(dist.get_world_size(), task.micro_batches)[dist.get_rank()], task.batches(), task.batches())
    return RankGradients(part.gradients(), models.parameter_count(part), sent)


def build_stage(task: TrainingTask) -> tuple[StageBlocks, Pipeline]:
    """This rank's blocks, and the pipeline around them."""
    part = StageBlocks(task.model(), dist.get_rank(), dist.get_world_size())
    return part, Pipeline(part, task.boundary, task.dtype, next_token_loss)


def measure_torch_pipeline_on_rank(task: TrainingTask, kind: str) -> tuple[RankGradients, list[str]]:
    """To be launched: the gradients by a schedule of `torch.distributed.pipelining`, and this rank's order in its letters.

    The first step finds out shapes, and is not counted.
    """
    from torch.distributed.pipelining import PipelineStage, schedules

    part = StageBlocks(task.model(), dist.get_rank(), dist.get_world_size())
    stage = PipelineStage(part, dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
    cut_in_two = kind == "ScheduleInterleavedZeroBubble"  # this class takes a list of stages
    make = getattr(schedules, kind)
    ids = torch.cat(task.batches())
    schedule = make([stage] if cut_in_two else stage, n_microbatches=task.micro_batches, loss_fn=next_token_loss)
    inputs = [ids] if stage.is_first else []
    schedule.step(*inputs, target=ids)
    part.zero_grad()
    with counted() as sent:
        schedule.step(*inputs, target=ids)
    order = [str(action) for action in schedule.pipeline_order[dist.get_rank()] if action]
    return RankGradients(part.gradients(), models.parameter_count(part), sent), order


@dataclass
class StageBytes:
    """Bytes on a rank."""

    saved: int  # by a micro-batch that waits for its backward pass
    peak: int  # of an update, above what the rank keeps


def bytes_on_rank(
    task: TrainingTask, updates: Mapping[str, tuple[Orders, int]], times: int = 3
) -> dict[str, StageBytes]:
    """To be launched: what a stage holds in an update by each schedule, of so many micro-batches.

    Gradients are there from an update before. Each is recorded so many `times`, and the lowest peak counts, as in chapter 10:
    gloo may hold a message a moment longer.
    """
    part, pipeline = build_stage(task)
    ids = task.batches()[:1] * max(count for _, count in updates.values())
    x = ids[0] if part.takes == "input_ids" else torch.zeros(task.boundary, dtype=task.dtype, requires_grad=True)
    saved = saved_bytes(lambda: part(x) if part.head is None else next_token_loss(part(x), ids[0]), part)
    if part.head is None:
        saved += task.boundary_bytes  # the output, which backward will start from
    by_schedule = {}
    for name, (orders, count) in updates.items():
        run = partial(pipeline.run, orders(dist.get_world_size(), count)[dist.get_rank()], ids, ids)
        run()
        by_schedule[name] = StageBytes(saved, min(account_of(run).above_start for _ in range(times)))
    return by_schedule


def one_at_a_time(stages: int, micro_batches: int) -> list[list[Action]]:
    """Naive model parallelism: a micro-batch goes through all stages and back before the next one starts."""
    return [[(kind, i) for i in range(micro_batches) for kind in "FB"] for _ in range(stages)]


class SleepingStage(nn.Module):
    """A stage that needs no processor: it sleeps `slot` seconds forward and twice as long backward."""

    def __init__(self, slot: float):
        super().__init__()
        self.slot = slot
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return _Sleep.apply(x * self.weight, self.slot)


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, slot: float) -> Tensor:
        ctx.slot = slot
        time.sleep(slot)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: FunctionCtx, grad_output: Tensor) -> tuple[Tensor, None]:
        time.sleep(2 * ctx.slot)
        return grad_output, None


@dataclass
class UpdateSeconds:
    """Seconds of an update, and those in which this rank's process was `computing`."""

    seconds: float
    computing: float


def time_schedules_on_rank(
    task: TrainingTask, schedules: Mapping[str, Orders], times: int, slot: float | None = None
) -> dict[str, UpdateSeconds]:
    """To be launched: an update by each schedule, the quickest of `times`; schedules take turns. With a `slot` of so many seconds
    the stages sleep instead of computing."""
    if slot is None:
        ids = task.batches()
        _, pipeline = build_stage(task)
    else:
        ids = [torch.zeros(task.boundary, dtype=task.dtype)] * task.micro_batches
        pipeline = Pipeline(SleepingStage(slot), task.boundary, task.dtype, lambda y, _: y.sum())
    by_schedule: dict[str, list[UpdateSeconds]] = {name: [] for name in schedules}
    for _, (name, orders) in product(range(times), schedules.items()):
        order = orders(dist.get_world_size(), task.micro_batches)[dist.get_rank()]
        dist.barrier()
        begin, computed = time.perf_counter(), time.process_time()
        pipeline.run(order, ids, ids)
        dist.barrier()
        by_schedule[name].append(UpdateSeconds(time.perf_counter() - begin, time.process_time() - computed))
    return {name: min(runs, key=lambda run: run.seconds) for name, runs in by_schedule.items()}


def table_of_speeds(
    slots: Mapping[str, Schedule], asleep: Mapping[str, UpdateSeconds], timed: Mapping[str, UpdateSeconds]
) -> pd.DataFrame:
    """A row for each schedule: slots and seconds of an update; last, how many times as quick the second is as the first."""
    rows = {
        name: [str(schedule.end), *(format_seconds(seen[name].seconds) for seen in (asleep, timed))]
        for name, schedule in slots.items()
    }
    first, second = slots
    ratios = [slots[first].end / slots[second].end]
    ratios += [seen[first].seconds / seen[second].seconds for seen in (asleep, timed)]
    rows["times as quick"] = [f"{ratio:.2f}" for ratio in ratios]
    return pd.DataFrame(rows, ["slots", "asleep", "computing"]).T
