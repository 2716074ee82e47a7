"""The changes of a recipe that a plan tries, from those that nobody notices to those that change the training."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from course_utils.memory.step.recipe import ADAMW, Recipe

if TYPE_CHECKING:
    from course_utils.memory.planning.result import Row

T = TypeVar("T")
# The number of rows of a level after which no more are looked for, and the number of rows of a plan.
_MAX_ROWS_OF_LEVEL = 4
_MAX_ROWS_OF_PLAN = 10


class Change(NamedTuple):
    """A change of some fields of a recipe."""

    name: str
    level: int  # what it disturbs: 0 only time or traffic, 1 a step's arithmetic, 2 optimizer or precision, 3 what is trained
    costs: str  # a phrase for the printed plan
    makes_difference: Callable[[Recipe], bool]
    fields: dict | Callable[[Recipe], dict]  # the fields to set, or a function that returns them
    is_easy: bool = False  # whether it costs so little that any number of such changes may be combined with others

    def apply(self, recipe: Recipe) -> dict:
        """The fields of `recipe` to set, with their new values; none if the change makes no difference."""
        if not self.makes_difference(recipe):
            return {}
        fields = self.fields(recipe) if callable(self.fields) else self.fields
        return {name: value for name, value in fields.items() if getattr(recipe, name) != value}


def _saves_as_usual(recipe: Recipe) -> bool:
    return not (recipe.checkpointing or recipe.saved_on_disk or recipe.offload_activations)


def _adamw_of_floats(recipe: Recipe) -> bool:
    return recipe.optimizer in ADAMW and not recipe.galore


_TWO_LAYERS = ("q_proj", "v_proj")
LORA = "LoRA of rank 16"
CHANGES = (
    Change("keep only the loss", 0, "nothing: loss = model(…).loss", lambda r: r.keeps_outputs, {"keeps_outputs": False},
           is_easy=True),
    Change("gradients dropped after the update", 0, "nothing: optimizer.zero_grad() after step()",
           lambda r: r.zero_grad != "after-update", {"zero_grad": "after-update"}, is_easy=True),
    Change("fused optimizer", 0, "nothing: AdamW(…, fused=True)",
           lambda r: _adamw_of_floats(r) and r.optimizer != "adamw-fused", {"optimizer": "adamw-fused"}, is_easy=True),
    Change("fused attention", 0, "nothing: attn_implementation='sdpa'",
           lambda r: r.attention == "eager", {"attention": "sdpa"}, is_easy=True),
    Change("micro-batch of 1", 0, "time: smaller matrix products",
           lambda r: r.batch > 1, lambda r: {"batch": 1, "accumulation": r.batch * r.accumulation}, is_easy=True),
    Change("chunked loss", 0, "time: LossWithGradients, 1,024 tokens at a time",
           lambda r: not (r.chunked_loss or r.trl_loss or r.label_smoothing), {"chunked_loss": 1024}, is_easy=True),
    Change("gradient checkpointing", 0, "time: a second forward pass", _saves_as_usual, {"checkpointing": True}),
    Change("ZeRO-1", 0, "traffic", lambda r: r.ranks > 1 and not r.zero_stage, {"zero_stage": 1}),
    Change("ZeRO-3", 0, "traffic", lambda r: r.ranks > 1 and r.zero_stage < 3, {"zero_stage": 3}),
    Change("activations on the host", 0, "time: over the host's link",
           lambda r: r.device != "cpu" and _saves_as_usual(r), {"offload_activations": True}),
    Change("optimizer on the host", 0, "time: over the host's link",
           lambda r: r.device != "cpu" and not r.offload, {"offload": True}),
    Change("update within backward", 1, "no clipping by the joint norm",
           lambda r: not r.in_backward, {"in_backward": True, "clipping": False, "zero_grad": "after-update"}),
    Change("8-bit AdamW", 1, "states of 8 bits", _adamw_of_floats, {"optimizer": "adamw8bit"}),
    Change("paged 8-bit AdamW", 1, "8-bit states, paged to the host",
           lambda r: r.device != "cpu" and _adamw_of_floats(r), {"optimizer": "paged_adamw_8bit"}),
    Change("autocast", 1, "products in bfloat16", lambda r: r.precision == "fp32", {"precision": "autocast"}),
    Change("4-bit AdamW", 2, "states of 4 bits",
           lambda r: _adamw_of_floats(r) or r.optimizer == "adamw8bit", {"optimizer": "adamw4bit"}),
    Change("GaLore of rank 128", 2, "Adam's averages in 128 directions of each gradient",
           lambda r: _adamw_of_floats(r) and not r.lora, {"optimizer": "adamw", "galore": 128}),
    Change("Adafactor", 2, "another optimizer",
           lambda r: "adafactor" not in str(r.optimizer), {"optimizer": "adafactor", "galore": 0}),
    Change("SGD", 2, "another optimizer, without state", lambda r: r.optimizer != "sgd", {"optimizer": "sgd", "galore": 0}),
    Change("all in bfloat16", 2, "small updates are lost",
           lambda r: r.precision in ("fp32", "autocast", "bf16-masters"), {"precision": "bf16"}),
    Change(f"{LORA} on q_proj and v_proj", 3, "only adapters on two layers per block are trained",
           lambda r: not (r.lora_targets or r.frozen),
           lambda r: {"lora": r.lora or 16, "lora_targets": _TWO_LAYERS, "galore": 0}),
    Change(LORA, 3, "only adapters are trained", lambda r: not (r.lora or r.frozen), {"lora": 16, "galore": 0}),
    Change("QLoRA of rank 16", 3, "only adapters, on weights of 4 bits",
           lambda r: not r.quantized and r.zero_stage < 2, lambda r: {"lora": r.lora or 16, "quantized": "nf4", "galore": 0}),
)  # fmt: skip
"""All changes, from those that nobody notices to those that change the training."""


def fields_set(recipe: Recipe, changes: Iterable[Change]) -> dict:
    """The fields of `recipe` that `changes` set, with the new values."""
    return {name: value for change in changes for name, value in change.apply(recipe).items()}


def apply_all(recipe: Recipe, changes: Iterable[Change]) -> Recipe:
    """`recipe` with all of `changes`; raises `CourseError` if they contradict each other or the recipe."""
    return replace(recipe, **fields_set(recipe, changes))


def level_of(changes: Iterable[Change]) -> int:
    """The highest level of `changes`; 0 for none."""
    return max((change.level for change in changes), default=0)


def is_full(rows: "Iterable[Row]", level: int) -> bool:
    """Whether `rows` has as many rows of this level as a plan needs."""
    return sum(row.level == level for row in rows) >= _MAX_ROWS_OF_LEVEL


def gentler_than(rows: "Iterable[Row]", tight: list[tuple[Sequence[Change], T]]) -> list[tuple[Sequence[Change], T]]:
    """The pairs of `tight` whose changes have a lower level than all `rows`; each pair begins with its changes."""
    gentlest = min((row.level for row in rows), default=inf)
    return [(changes, need) for changes, need in tight if level_of(changes) < gentlest]


class Disturbance(NamedTuple):
    """A key that sorts combinations of changes, the least disturbing first."""

    level: int  # the highest of a change
    total: int  # the sum of the levels
    count: int
    indices: list[int]  # in `CHANGES`


def disturbance(names: Collection[str]) -> Disturbance:
    """How much the changes with these names disturb training."""
    levels = {index: change.level for index, change in enumerate(CHANGES) if change.name in names}
    return Disturbance(max(levels.values()), sum(levels.values()), len(levels), list(levels))


def least_disturbing(rows: "Iterable[Row]") -> "list[Row]":
    """The rows of a plan: two of each level, then others up to their largest number, sorted with the least disturbing first."""
    rows = sorted(rows, key=lambda row: disturbance(row.names))
    first = [row for row in rows if row in [other for other in rows if other.level == row.level][:2]]
    others = [row for row in rows if row not in first]
    return sorted(first + others[: _MAX_ROWS_OF_PLAN - len(first)], key=lambda row: disturbance(row.names))
