"""How a model is trained, as far as bytes and seconds depend on it."""

from dataclasses import dataclass

OPTIMIZERS = ("sgd", "adamw", "adamw-foreach", "adafactor", "adafactor-transformers", "adamw8bit")
PRECISIONS = ("fp32", "bf16", "autocast")
ATTENTIONS = ("sdpa", "eager")


@dataclass(frozen=True)
class Recipe:
    """One way to train.

    `optimizer` is one of `OPTIMIZERS`: torch's SGD without momentum, its AdamW one tensor at a time and `foreach`, its
    Adafactor, Transformers' Adafactor, and bitsandbytes' 8-bit AdamW. `precision`: `fp32`; `bf16` for parameters, gradients
    and state in bfloat16; `autocast` for float32 parameters and bfloat16 where that is safe. `batch` is the examples of one
    micro-batch, `sequence` its tokens each (a ConvNet has none), `accumulation` the micro-batches of an update. With
    `checkpointing` every block of a transformer is recomputed in backward. `clipping` scales the gradients to norm 1.
    """

    optimizer: str = "adamw"
    precision: str = "fp32"
    batch: int = 8
    sequence: int = 128
    accumulation: int = 1
    checkpointing: bool = False
    attention: str = "sdpa"
    clipping: bool = False
