"""How a model is trained, as far as bytes and seconds depend on it."""

from collections.abc import Collection
from dataclasses import dataclass

from course_utils.errors import CourseError, require_count
from course_utils.memory.optimizers import COSTS

PRECISIONS = ("fp32", "bf16", "autocast")
ATTENTIONS = ("sdpa", "eager")
DEVICES = ("cpu", "cuda")
STAGES = (0, 1, 2, 3)


@dataclass(frozen=True)
class Recipe:
    """One way to train.

    `optimizer` is one of `COSTS` (what `torch.optim.AdamW(parameters)` does on a GPU is `adamw-foreach`): torch's SGD
    without momentum, its AdamW one tensor at a time and `foreach`, its Adafactor, Transformers' Adafactor, and
    bitsandbytes' 8-bit AdamW. `precision`: `fp32`; `bf16` for parameters, gradients and state in bfloat16; `autocast` for
    float32 parameters and bfloat16 where that is safe; its copies of the weights are counted as activations, as they wait for
    backward, and under ZeRO-3 every rank keeps them whole. `batch` is the examples of one micro-batch, `sequence` its tokens
    each (a ConvNet has none), `accumulation` the micro-batches of an update. With `checkpointing` every block of a
    transformer is recomputed in backward, or, with `segments`, so many runs of blocks. With `saved_on_disk` what backward
    needs waits in a file (`techniques.SavedOnDisk`). `clipping` scales the gradients to norm 1.

    `zero_stage` shards over `ranks` devices, as ZeRO does (Rajbhandari et al. 2020): 1 the optimizer's state, 2 gradients
    too, 3 parameters too. Without a stage each of `ranks` keeps everything (data parallelism). With `offload` the optimizer's
    state lies, and its update happens, in the memory of the host. `device` is what it runs on. Raises `CourseError` for a
    value out of range, and for a recipe that contradicts itself.
    """

    optimizer: str = "adamw"
    precision: str = "fp32"
    batch: int = 8
    sequence: int = 128
    accumulation: int = 1
    checkpointing: bool = False
    segments: int | None = None
    saved_on_disk: bool = False
    attention: str = "sdpa"
    clipping: bool = False
    zero_stage: int = 0
    ranks: int = 1
    offload: bool = False
    device: str = "cpu"

    def __post_init__(self):
        for name, known in _CHOICES.items():
            _require_one_of(name, getattr(self, name), known)
        for name in ("batch", "sequence", "accumulation", "ranks"):
            require_count(name, getattr(self, name))
        for name in ("checkpointing", "saved_on_disk", "clipping", "offload"):
            if not isinstance(getattr(self, name), bool):
                raise CourseError(f"{name} must be True or False, not {getattr(self, name)!r}.")
        if self.checkpointing and self.saved_on_disk:
            raise CourseError(
                "Nothing is known about checkpointing and saved_on_disk together; leave one of the two out."
            )
        if self.segments is not None:
            require_count("segments", self.segments)
            if not self.checkpointing:
                raise CourseError(
                    f"segments={self.segments} says how to checkpoint; add checkpointing=True, or leave it out."
                )
        if self.zero_stage and self.ranks == 1:
            raise CourseError(
                f"zero_stage={self.zero_stage} has nothing to shard over with ranks=1; give more ranks, or zero_stage=0."
            )
        if self.offload and self.device == "cpu":
            raise CourseError(
                "offload moves the optimizer's state to the host, where device='cpu' has it; take device='cuda'."
            )

    @property
    def itemsize(self) -> int:
        """Bytes of one element of the parameters."""
        return 2 if self.precision == "bf16" else 4


_CHOICES = {
    "optimizer": COSTS,
    "precision": PRECISIONS,
    "attention": ATTENTIONS,
    "zero_stage": STAGES,
    "device": DEVICES,
}


def _require_one_of(name: str, value, known: Collection) -> None:
    if (type(value), value) not in [(type(one), one) for one in known]:  # True is no stage, though it equals 1
        raise CourseError(f"No {name} is called {value!r}; choose one of {', '.join(map(str, known))}.")


def require_positions(config, recipe: Recipe) -> None:
    """Raise `CourseError` where the recipe's sequences are longer than the model of `config` can number."""
    positions = getattr(config, "max_position_embeddings", recipe.sequence)
    if recipe.sequence > positions:
        raise CourseError(
            f"A sequence of {recipe.sequence} tokens is longer than the model's {positions} positions; "
            "shorten it, or give the configuration more."
        )
