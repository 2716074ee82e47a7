"""The settings of `course train`, and which exclude each other. Imports no torch: the command's help is made of it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from importlib.metadata import version
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import Any

from course_utils.errors import CourseError, suggest
from course_utils.memory.step.recipe import Recipe
from course_utils.units import format_counted

STRATEGIES = ("none", "ddp", "zero1", "fsdp2", "hsdp", "deepspeed-1", "deepspeed-2", "deepspeed-3")
PRECISIONS = ("fp32", "fp64", "bf16", "autocast", "fp16")
LOGS = ("csv", "tensorboard")
SHARDED_STRATEGIES = ("fsdp2", "hsdp")
_ZERO_STAGES = {"zero1": 1, "fsdp2": 3, "hsdp": 3, "deepspeed-1": 1, "deepspeed-2": 2, "deepspeed-3": 3}
_MIN_DEEPSPEED = "0.19"  # the lowest version: in 0.18.0 stage 2 adds up other gradients than one process
CHANGEABLE_SETTINGS = ("steps", "lr", "warmup", "floor", "clipping", "micro_batch")
"""Settings that a run may change when it goes on."""
_FLAGS = {"compiled": "--compile", "options": "--option"}


def flag_of(name: str) -> str:
    """The flag of `course train` for a field of `Job`."""
    return _FLAGS.get(name, f"--{name.replace('_', '-')}")


def _field(default: Any, description: str, fixed: bool = False) -> Any:
    """A field with its default and the help of its flag. A `fixed` one decides parameters and batches: a run keeps it."""
    return field(default=default, metadata={"help": description, "fixed": fixed})


def _recipe_field(name: str, fixed: bool = False) -> Any:
    """The field `name` of `Recipe`, with its help and its default."""
    original = Recipe.__dataclass_fields__[name]
    return _field(original.default, original.metadata["help"], fixed)


@dataclass(frozen=True)
class Job:
    """One run of `course train`.

    Without `data` the course's own task is trained; with it a causal language model, `model`, on the text of that file: from
    random weights, or from the trained ones that a folder or the Hub has under the name `weights`.
    `batch` is the examples of one update on all ranks together, `micro_batch` those of one forward pass (0: a rank's whole
    share). `optimizer` is a name in `memory.step.recipe.OPTIMIZERS`, a class as `torch.AdamW` or `course.Adafactor`, or
    `muon`; `options` are arguments of it. The learning rate rises over `warmup` updates to `lr`, and falls as a cosine to
    `floor` of it at `steps`. The other fields are those of `memory.Recipe`.

    `out` is the folder of the run: logs, and the last `keep` checkpoints, one every `save_every` updates (0: only the last).

    Raises `CourseError` for values out of range and for what does not go together.
    """

    out: Path = field(metadata={"help": "folder for logs and checkpoints; resumes a run there"})
    model: str = _field("", "a causal language model: a name, a config.json or its folder", fixed=True)
    data: Path | None = _field(
        None, "its text: .txt with blank lines between documents, or .jsonl with a field text", fixed=True
    )
    tokenizer: str = _field(
        "",
        "a folder or a name on the Hub, or bytes (default: that of --weights, or the model's own, else bytes)",
        fixed=True,
    )
    weights: str = _field("", "start from pretrained weights, in a folder or on the Hub (default: random)", fixed=True)
    strategy: str = _field("none", ", ".join(STRATEGIES))
    optimizer: str = _field("adamw", "adamw and others of course plan, torch.CLASS, course.CLASS, muon", fixed=True)
    options: dict = field(
        default_factory=dict, metadata={"help": "an argument of the optimizer: weight_decay=0.1", "fixed": True}
    )
    precision: str = _field("fp32", ", ".join(PRECISIONS), fixed=True)
    batch: int = _field(32, "examples per update, over all ranks", fixed=True)
    micro_batch: int = _field(0, "micro-batch size of a rank; 0: its whole share")
    sequence: int = _recipe_field("sequence", fixed=True)
    steps: int = _field(100, "updates")
    lr: float = _field(1e-3, "the highest learning rate")
    warmup: int = _field(0, "updates over which the learning rate rises")
    floor: float = _field(0.0, "the final share of it")
    clipping: bool = _recipe_field("clipping")
    checkpointing: bool = _recipe_field("checkpointing")
    chunked_loss: int = _recipe_field("chunked_loss")
    packed: bool = _recipe_field("packed", fixed=True)
    lora: int = _recipe_field("lora", fixed=True)
    compiled: bool = _field(False, "use torch.compile")
    replicas: int = _field(1, "HSDP groups, each with a full copy")
    seed: int = _field(0, "seed of the data order and of dropout", fixed=True)
    save_every: int = _field(0, "updates between two checkpoints; 0: only the last")
    keep: int = _field(2, "how many checkpoints to keep")
    logs: tuple[str, ...] = _field(("csv",), ", ".join(LOGS))
    log_every: int = _field(10, "updates per row of the log")
    quick: bool = _field(False, "skip the predicted peak and the calibration: starts sooner")

    def __post_init__(self):
        for name, choices in (("strategy", STRATEGIES), ("precision", PRECISIONS)):
            if (value := getattr(self, name)) not in choices:
                raise CourseError(f"No {name} is called {value!r}; {suggest(value, choices)}")
        if unknown := set(self.logs) - set(LOGS):
            raise CourseError(f"Nothing logs to {min(unknown)!r}; {suggest(min(unknown), LOGS)}")
        for setting in fields(self):
            value = getattr(self, setting.name)
            lowest = 1 if setting.default else 0  # 0 switches off what is off by default
            if setting.type is int and (type(value) is not int or value < lowest):
                raise CourseError(f"{flag_of(setting.name)} must be a whole number from {lowest} on, not {value!r}.")
        if not 0 < self.lr < inf:
            raise CourseError(f"--lr {self.lr} trains nothing; use a learning rate above 0.")
        if not 0 <= self.floor <= 1:
            raise CourseError(f"--floor {self.floor} is not a share of the learning rate; use one from 0 to 1.")
        if self.warmup >= self.steps:
            raise CourseError(f"--warmup {self.warmup} does not end before the last of {self.steps} steps; use fewer.")
        if sentence := next(self._contradictions(), None):
            raise CourseError(sentence)

    def _contradictions(self) -> Iterator[str]:
        from course_utils.script.optimizers import optimizer_kind

        kind = optimizer_kind(self.optimizer)
        is_deepspeed = self.strategy.startswith("deepspeed")
        if bool(self.model) != (self.data is not None):
            yield "A language model is trained on a text: give --model and --data, or neither for the course's own task."
        if self.data is not None and self.sequence < 2:
            yield "A language model needs a next token to predict; use a --sequence of 2 or more."
        if "tensorboard" in self.logs and not find_spec("tensorboard"):
            yield "TensorBoard is not installed; pip install tensorboard, or leave it out of --logs."
        if self.data is None and (self.weights or self.packed or self.chunked_loss):
            yield "--weights, --packed and --chunked-loss are for language models; add --model and --data, or leave them out."
        if (is_deepspeed or self.strategy in SHARDED_STRATEGIES) and not kind.by_element:
            yield (
                f"{self.optimizer} looks at whole tensors, but {self.strategy} gives each rank only parts; use an optimizer that "
                "works element by element (torch.AdamW, course.AdamW), or ddp."
            )
        if self.strategy == "zero1" and not kind.is_torchs:
            yield f"ZeroRedundancyOptimizer wraps torch's own optimizers, not {self.optimizer}; use torch.AdamW or ddp."
        if is_deepspeed and self.precision in ("fp64", "fp16"):
            yield f"{self.strategy} is offered in fp32, bf16 and autocast; take one of these, or fsdp2."
        if self.precision == "fp16" and self.strategy not in ("none", "ddp"):
            yield f"Loss scaling for fp16 is offered alone and with ddp; with {self.strategy} take autocast."
        if self.precision == "fp16" and self.chunked_loss:
            yield "A chunked loss computes its gradients before the loss is scaled; use autocast, or drop one."
        if (self.strategy == "hsdp") != (self.replicas > 1):
            yield "--strategy hsdp and --replicas 2 or more go together; give both, or take fsdp2."
        if self.compiled and is_deepspeed:
            yield f"Compiling is not offered with {self.strategy}; leave one of the two out."
        if is_deepspeed and not _has_deepspeed():
            yield (
                f"{self.strategy} needs DeepSpeed {_MIN_DEEPSPEED} or newer, which is not here; install it with the torch "
                'that is: pip install --no-build-isolation "course-utils[distributed]", or take zero1 or fsdp2.'
            )

    @property
    def identity(self) -> dict:
        """The settings that must be those of a checkpoint for a run to go on from it."""
        fixed = [setting.name for setting in fields(self) if setting.metadata.get("fixed")]
        values = {name: getattr(self, name) for name in fixed}
        # Nothing else can read DeepSpeed's checkpoints.
        values["engine"] = self.strategy if self.strategy.startswith("deepspeed") else "torch"
        return json.loads(json.dumps(values, default=str))

    def flags(self) -> list[str]:
        """The command line of this job."""
        arguments = []
        for setting in fields(self):
            value = getattr(self, setting.name)
            flag = flag_of(setting.name)
            if isinstance(value, dict):
                arguments += [f"{flag}={name}={option!r}" for name, option in value.items()]
            elif value is True:
                arguments.append(flag)
            elif value != setting.default:
                arguments += [flag, *(value if isinstance(value, tuple) else [str(value)])]
        return arguments


@dataclass(frozen=True)
class BatchSplit:
    """The split of an update's examples over ranks and micro-batches. Raises `CourseError` where they do not divide."""

    job: Job
    world_size: int

    def __post_init__(self):
        job = self.job
        ranks = self.world_size
        if ranks == 1 and job.strategy != "none":
            raise CourseError(f"{job.strategy} shards over ranks, but this is one process; add --ranks 2, for example.")
        if ranks > 1 and job.strategy == "none":
            raise CourseError(f"{ranks} processes would train independently; choose --strategy ddp, or another.")
        if ranks % job.replicas or (job.replicas > 1 and ranks == job.replicas):
            raise CourseError(f"{ranks} ranks do not make {job.replicas} groups of two or more; change --replicas.")
        if job.batch % ranks or job.batch // ranks % self.micro_batch:
            raise CourseError(
                f"A batch of {job.batch} does not divide into micro-batches of {job.micro_batch or 'equal size'} on "
                f"{format_counted(ranks, 'rank')}; change --batch or --micro-batch."
            )

    @property
    def micro_batch(self) -> int:
        """Examples of one forward pass."""
        return self.job.micro_batch or max(1, self.job.batch // self.world_size)

    @property
    def accumulation(self) -> int:
        """Forward passes of one rank in an update."""
        return self.job.batch // self.world_size // self.micro_batch

    def micro_batches(self, rows: list[int], rank: int) -> list[list[int]]:
        """A rank's micro-batches, from the numbers of an update's examples."""
        size = self.job.batch // self.world_size
        share = rows[size * rank : size * (rank + 1)]
        return [share[i : i + self.micro_batch] for i in range(0, size, self.micro_batch)]

    @property
    def recipe(self) -> Recipe:
        """This job for `course plan`: the model is built by it, and the bytes of a step are predicted from it."""
        from course_utils.script.optimizers import optimizer_kind

        job = self.job
        kind = optimizer_kind(job.optimizer)
        shared_names = {setting.name for setting in fields(job)} & {setting.name for setting in fields(Recipe)}
        shared = {name: getattr(job, name) for name in shared_names - {"optimizer", "precision", "batch", "compiled"}}
        return Recipe(
            **shared,
            optimizer=kind.recipe or kind.make_optimizer,
            precision="fp32" if job.precision == "fp64" else job.precision,
            batch=self.micro_batch,
            accumulation=self.accumulation,
            keeps_outputs=False,
            use_cache=False,
            zero_stage=0 if job.strategy.startswith("deepspeed") else _ZERO_STAGES.get(job.strategy, 0),
            ranks=self.world_size,
        )

    @property
    def is_predictable(self) -> bool:
        """Whether the bytes of a step by `recipe` are those of this job."""
        from course_utils.script.optimizers import optimizer_kind

        job = self.job
        is_unplanned = job.compiled or job.precision == "fp64" or job.strategy.startswith("deepspeed")
        return optimizer_kind(job.optimizer).recipe is not None and not is_unplanned


def _has_deepspeed() -> bool:
    from packaging.version import Version

    return find_spec("deepspeed") is not None and Version(version("deepspeed")) >= Version(_MIN_DEEPSPEED)
