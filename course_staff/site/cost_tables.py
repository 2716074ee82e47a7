"""The bytes of a training step by model, method, length and batch: what the planner's pages show.

They come from the formulas of named models that are shipped with the package.
"""

from typing import NamedTuple

from course_utils.memory.formulas.named import look_up
from course_utils.memory.planning.need import FITS, TIGHT, Need, name_cards
from course_utils.memory.step.recipe import LOOPS, Recipe

MODELS = ("llama-3.1-8b", "llama-3.2-1b", "gpt2-small")
"""The models that have a page, first the one in the README."""
LENGTHS, BATCHES = (512, 2048, 8192), (1, 4, 16)


class Method(NamedTuple):
    """A way to train: its name, what of the training it disturbs (a place in `LEVELS`), and the fields of its recipe."""

    name: str
    level: int
    fields: dict

    def recipe(self, batch: int = BATCHES[0], sequence: int = LENGTHS[0]) -> Recipe:
        """The recipe for Trainer's loop on a GPU."""
        return Recipe(**{**LOOPS["trainer"], **self.fields, "batch": batch, "sequence": sequence, "device": "cuda"})


LEVELS = (
    "Only the time changes.",
    "All weights are trained in float32; other values are rounded.",
    "All weights are trained, with fewer bits or another optimizer.",
    "Only adapters are trained.",
)
_CHECKPOINTING = {"checkpointing": True}
METHODS = (
    Method("float32", 0, {}),
    Method("float32, checkpointing", 0, _CHECKPOINTING),
    Method("autocast", 1, {"precision": "autocast"}),
    Method("autocast, checkpointing", 1, {"precision": "autocast", **_CHECKPOINTING}),
    Method(
        "autocast, checkpointing, 8-bit AdamW", 1, {"precision": "autocast", **_CHECKPOINTING, "optimizer": "adamw8bit"}
    ),
    Method(
        "autocast, checkpointing, Adafactor", 2, {"precision": "autocast", **_CHECKPOINTING, "optimizer": "adafactor"}
    ),
    Method("bfloat16", 2, {"precision": "bf16"}),
    Method("bfloat16, checkpointing", 2, {"precision": "bf16", **_CHECKPOINTING}),
    Method(
        "bfloat16, checkpointing, 8-bit AdamW", 2, {"precision": "bf16", **_CHECKPOINTING, "optimizer": "adamw8bit"}
    ),
    Method("bfloat16, checkpointing, Adafactor", 2, {"precision": "bf16", **_CHECKPOINTING, "optimizer": "adafactor"}),
    Method("LoRA of rank 16 on bfloat16", 3, {"precision": "bf16", "lora": 16}),
    Method("LoRA of rank 16 on bfloat16, checkpointing", 3, {"precision": "bf16", **_CHECKPOINTING, "lora": 16}),
    Method("QLoRA of rank 16", 3, {"precision": "autocast", "lora": 16, "quantized": "nf4"}),
    Method(
        "QLoRA of rank 16, checkpointing",
        3,
        {"precision": "autocast", **_CHECKPOINTING, "lora": 16, "quantized": "nf4"},
    ),
)
"""What disturbs least first."""


def lengths_of(model: str) -> list[int]:
    """The lengths for which the model has positions, and formulas that were confirmed."""
    return [length for length in LENGTHS if all(look_up(model, METHODS[0].recipe(batch, length)) for batch in BATCHES)]


def need_of(model: str, method: Method, batch: int, sequence: int) -> Need:
    """What a card must have, as `course plan` says it."""
    step, _ = look_up(model, method.recipe(batch, sequence))
    return Need.from_log(step.log, "cuda")


def rows_of(model: str, batch: int, sequence: int) -> list[dict]:
    """What a page shows of each method, what disturbs least first."""
    rows = []
    for method in METHODS:
        need = need_of(model, method, batch, sequence)
        rows.append(
            {
                "method": method.name,
                "level": method.level,
                "costs": LEVELS[method.level],
                "least": need.low,
                "most": need.high,
                "need": str(need),
                "fits": name_cards(need.card_names(FITS), method.recipe()) or "none",
                "tight": name_cards(need.card_names(TIGHT), method.recipe()) or "none",
                "command": command(model, method, batch, sequence),
            }
        )
    return rows


def command(model: str, method: Method, batch: int, sequence: int) -> str:
    """The `course plan` of this cell."""
    parts = [f"course plan {model} --memory 24GB --batch {batch} --sequence {sequence}"]
    for name, value in method.fields.items():
        parts.append(f"--{name.replace('_', '-')}" + ("" if value is True else f" {value}"))
    return " ".join(parts)
