"""How a model is trained, in the fields on which bytes and seconds depend."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from itertools import chain
from types import MappingProxyType
from typing import Any, NamedTuple

from course_utils.errors import CourseError, require_count, suggest


class OptimizerSpec(NamedTuple):
    """An optimizer: the path of the library's class, its options, and its name in `TrainingArguments`, if it has one."""

    path: str
    options: Mapping[str, Any] = MappingProxyType({})
    trainer: str = ""


_NO_FOREACH = {"foreach": False}
OPTIMIZERS = {
    "sgd": OptimizerSpec("torch.optim.SGD", _NO_FOREACH, "sgd"),
    "momentum": OptimizerSpec("torch.optim.SGD", {"momentum": 0.9, "foreach": False}),
    "adamw": OptimizerSpec("torch.optim.AdamW", _NO_FOREACH, "adamw_torch"),
    "adamw-foreach": OptimizerSpec("torch.optim.AdamW", {"foreach": True}, "adamw_torch"),
    "adamw-fused": OptimizerSpec("torch.optim.AdamW", {"fused": True}, "adamw_torch_fused"),
    "adafactor": OptimizerSpec("torch.optim.Adafactor", _NO_FOREACH),
    "adafactor-transformers": OptimizerSpec(
        "transformers.Adafactor", {"relative_step": False, "scale_parameter": False}, "adafactor"
    ),
    "adamw8bit": OptimizerSpec("bitsandbytes.optim.AdamW8bit", trainer="adamw_bnb_8bit"),
    "adamw4bit": OptimizerSpec("course_utils.memory.step.optimizers.MemoryOfAdamW4bit", trainer="adamw_torch_4bit"),
    "paged_adamw_8bit": OptimizerSpec("bitsandbytes.optim.PagedAdamW8bit", trainer="paged_adamw_8bit"),
    "paged_adamw_32bit": OptimizerSpec("bitsandbytes.optim.PagedAdamW32bit", trainer="paged_adamw_32bit"),
}
"""The optimizers that a `Recipe` may name."""
ADAMW = ("adamw", "adamw-foreach", "adamw-fused")
PRECISIONS = ("fp32", "bf16", "bf16-masters", "autocast", "fp16")
ATTENTIONS = ("sdpa", "eager")
DEVICES = ("cpu", "cuda")
STAGES = (0, 1, 2, 3)
ZERO_GRADS = ("after-update", "before-backward", "never")
_TRAINER_FIELDS = {"optimizer": "adamw-fused", "keeps_outputs": False, "use_cache": False, "clipping": True}
_TRL_FIELDS = {"precision": "autocast", "sequence": 1024, "checkpointing": True, "trl_loss": True}
LOOPS = {
    "own": {"optimizer": "adamw-foreach"},
    "trainer": _TRAINER_FIELDS,
    "trl": {**_TRAINER_FIELDS, **_TRL_FIELDS, "double_quantization": False, "upcast": False},
}
"""The fields that each loop sets by default: one of your own on a GPU, Transformers' Trainer, and TRL's SFTTrainer."""

Names = tuple[str, ...]
_BOOLEANS = {"yes": True, "true": True, "no": False, "false": False}


def _field(default: Any, phrase: str, choices: tuple = (), minimum: int = 0, unit: str = "number", **keys: str) -> Any:
    """A field of `Recipe`: its default, the help of its flag, its choices, a number's minimum and unit, and its `keys` by tool.

    The tools are `trainer` (TrainingArguments), `trl` (SFTConfig and ModelConfig in addition) and `accelerate`.
    """
    metadata = {"help": phrase, "choices": choices, "minimum": minimum, "unit": unit, "keys": keys}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Recipe:
    """One way to train. Each field has a phrase that `course plan --help` prints; comments explain some fields further.

    Raises `CourseError` for a value out of range, and for a recipe that contradicts itself.
    """

    # `optimizer` may also be a function from parameters to an optimizer; torch's default on a GPU is `adamw-foreach`.
    # `bf16` is for parameters, gradients and state; `bf16-masters` adds float32 copies of the parameters, with float32 state.
    # `autocast` computes in bfloat16 where that is safe, with float32 parameters; `fp16` in float16, with a scaled loss.
    optimizer: str | Callable = _field("adamw", "by name", tuple(OPTIMIZERS))
    precision: str = _field("fp32", "autocast is Trainer's bf16=True, bf16 all of it", PRECISIONS)

    # What a step takes in. Documents that are packed into a row do not attend to each other.
    batch: int = _field(8, "examples of a micro-batch", minimum=1, trainer="per_device_train_batch_size")
    sequence: int = _field(128, "tokens of an example", minimum=1, trl="max_length")
    accumulation: int = _field(1, "micro-batches of an update", minimum=1, trainer="gradient_accumulation_steps")
    packed: bool = _field(False, "several documents in a row of tokens", trl="packing")

    # The loop. By `outputs = model(**batch)` all that the model returns lives until the step is done, its logits too.
    # Attention is PyTorch's fused function (`sdpa`) or plain products. Transformers' models use a cache unless told not to.
    keeps_outputs: bool = _field(True, "the loop keeps all that the model returns, not only the loss")
    attention: str = _field("sdpa", "how attention is computed", ATTENTIONS, trl="attn_implementation")
    clipping: bool = _field(False, "scale gradients to norm 1")
    zero_grad: str = _field("after-update", "when gradients are dropped; never: set to zero in place", ZERO_GRADS)
    use_cache: bool = _field(True, "the model returns keys and values too", trainer="use_cache")
    # The loss with label smoothing is computed outside the model, from whole logits. The chunked loss is
    # `techniques.LossWithGradients` of a causal language model, which then returns hidden states in place of logits.
    label_smoothing: float = _field(0.0, "Trainer's label_smoothing_factor", trainer="label_smoothing_factor")
    in_backward: bool = _field(False, "update each parameter as soon as its gradient is there")
    chunked_loss: int = _field(
        0, "compute the loss this many tokens at a time, never all logits", unit="number of tokens"
    )
    trl_loss: bool = _field(False, "TRL's loss, which never holds whole logits")

    # An evaluation follows each update if `eval_batch` is not 0. Trainer keeps logits on the device for `compute_metrics`.
    eval_batch: int = _field(
        0, "batch size for evaluation", unit="number of examples", trainer="per_device_eval_batch_size"
    )
    eval_logits: int = _field(0, "examples whose logits an evaluation keeps on the device", unit="number of examples")

    # What the forward pass keeps for backward. A transformer recomputes every block, or `segments` runs of blocks.
    compiled: bool = _field(False, "torch.compile's step, whose bytes nothing here predicts", trainer="torch_compile")
    checkpointing: bool = _field(
        False,
        "recompute blocks in backward",
        trainer="gradient_checkpointing",
        accelerate="fsdp_activation_checkpointing",
    )
    segments: int | None = _field(None, "with --checkpointing: number of segments to recompute", minimum=1)
    offload_activations: bool = _field(False, "what backward needs waits on the host", trl="activation_offloading")
    saved_on_disk: bool = _field(False, "what backward needs waits in a file")

    # What is trained. By default adapters stand beside every linear layer but a language model's last (peft's `all-linear`).
    # Of a model in 4 bits all else becomes float32, as by PEFT's `prepare_model_for_kbit_training`; without `upcast` it is
    # bfloat16, the adapters too, as TRL has it.
    lora: int = _field(0, "train adapters of this rank only", unit="rank", trl="lora_r")
    lora_targets: Names = _field((), "layers that get adapters: q_proj,v_proj", trl="lora_target_modules")
    modules_to_save: Names = _field((), "modules trained in full beside the adapters", trl="lora_modules_to_save")
    lora_dropout: float = _field(0.0, "dropout before each adapter", trl="lora_dropout")
    frozen: Names = _field((), "beginnings of the names of parameters that are not trained")
    quantized: str = _field("", "nf4: frozen weights in 4 bits", ("", "nf4"), trl="bnb_4bit_quant_type")
    double_quantization: bool = _field(True, "with nf4: its scales in 8 bits", trl="use_bnb_nested_quant")
    upcast: bool = _field(True, "with nf4: all else in float32, as PEFT prepares it; else in bfloat16")

    # With `galore` an `adamw` becomes `optim.GaLore`, which projects the gradients of hidden matrices and is AdamW for all else.
    # The step is one that finds new directions, as every 200th does, since that one takes the most.
    galore: int = _field(0, "AdamW keeps its averages in this many directions", unit="rank")
    # The teacher's logits are computed beside the student's in each micro-batch, without gradients and in the same precision,
    # and the loss is `techniques.distillation_loss`; its weights count as parameters of the module `teacher`.
    teacher: str = _field("", "a larger model to learn from, as MODEL")

    # Ranks (Rajbhandari et al. 2020). Stage 1 is `ZeroRedundancyOptimizer`, 2 and 3 are FSDP2 without and with resharding after
    # forward; without a stage each rank keeps everything (DDP). With stage 3 and `offload` parameters and gradients are on the
    # host too. Ranks of `context_parallel` attend by `RingAttention`, without dropout.
    zero_stage: int = _field(
        0, "ZeRO's stage: 1 shards the optimizer's state, 2 also gradients, 3 also parameters", STAGES
    )
    ranks: int = _field(1, "devices that train together", minimum=1, accelerate="num_processes")
    replicas: int = _field(1, "groups of ranks that each hold a whole copy, with ZeRO stage 2 or 3", minimum=1)
    context_parallel: int = _field(1, "ranks that each hold a part of every sequence", minimum=1)
    offload: bool = _field(
        False, "keep the optimizer's state on the host and update there", accelerate="fsdp_offload_params"
    )
    device: str = _field("cpu", "the device to train on", DEVICES)

    def __post_init__(self):
        if not (isinstance(self.optimizer, str) or callable(self.optimizer)):
            raise CourseError(f"optimizer={self.optimizer!r} is no optimizer; give a name, or a function.")
        if self.lora_targets == ("all-linear",):
            object.__setattr__(self, "lora_targets", ())
        for declared in fields(self):
            _check_field(declared, getattr(self, declared.name))
        if not isinstance(self.teacher, str):
            raise CourseError(f"teacher={self.teacher!r} is no text; give a model's name or path, or '' for none.")
        rules = (self._about_saving, self._about_update, self._about_loss, self._about_adapters, self._about_ranks)
        if sentence := next(chain.from_iterable(rule() for rule in rules), ""):
            raise CourseError(sentence)

    def _about_saving(self) -> Iterator[str]:
        if self.checkpointing and (self.saved_on_disk or self.offload_activations):
            yield "Checkpointing drops what saved_on_disk and offload_activations would keep elsewhere; choose one of them."
        if self.saved_on_disk and self.offload_activations:
            yield "What backward needs waits on disk or on the host; leave saved_on_disk or offload_activations out."
        if self.segments is not None and not self.checkpointing:
            yield f"segments={self.segments} says how to checkpoint; add checkpointing=True, or leave it out."
        if (self.offload or self.offload_activations) and self.device == "cpu":
            yield "Offloading moves what lies on the device to the host, where device='cpu' has it; take device='cuda'."

    def _about_update(self) -> Iterator[str]:
        if self.in_backward and self.offload:
            yield "The host updates once all gradients are there, not within backward; leave in_backward or offload out."
        if self.in_backward and (self.clipping or self.accumulation > 1 or self.precision == "fp16" or self.ranks > 1):
            yield (
                "An update within backward drops each gradient at once, so it allows no clipping, accumulation, loss scaling "
                "or ranks; leave one of the two out."
            )
        if self.zero_grad != "after-update" and (self.in_backward or (self.offload and self.zero_stage < 3)):
            yield (
                f"zero_grad={self.zero_grad!r} keeps gradients that an update within backward, or on the host, has already "
                "dropped; take zero_grad='after-update'."
            )
        if self.galore and self.optimizer not in ADAMW:
            yield f"galore={self.galore} narrows what AdamW keeps; take optimizer='adamw', or leave galore out."
        if self.galore and self.zero_stage:
            yield "GaLore needs matrices and gradients whole, which a zero_stage shares out; leave galore or zero_stage out."
        if self.galore and self.precision == "bf16-masters":
            yield "GaLore has no masters in float32; take precision='autocast' or 'bf16', or leave galore out."
        if self.galore and self.lora:
            yield "Adapters are as narrow as galore would make their averages; leave galore or lora out."

    def _about_loss(self) -> Iterator[str]:
        if self.chunked_loss and self.precision == "fp16":
            yield (
                "A chunked loss makes its gradients before the loss is scaled, where float16 loses the small ones; "
                "take precision='autocast', or leave chunked_loss out."
            )
        if self.eval_logits and not self.eval_batch:
            yield f"eval_logits={self.eval_logits} are kept during an evaluation; add eval_batch=8, say."
        if self.trl_loss and (self.chunked_loss or self.teacher or self.context_parallel > 1):
            yield "TRL's loss has no chunked_loss, teacher or context_parallel; leave trl_loss or these out."
        if self.label_smoothing and (self.chunked_loss or self.teacher or self.context_parallel > 1):
            yield (
                "Label smoothing needs whole logits and labels, and is no part of a teacher's loss; leave label_smoothing, or "
                "chunked_loss, teacher and context_parallel, out."
            )
        if self.teacher and self.chunked_loss:
            yield "A teacher's logits are compared with whole ones, which a chunked loss never makes; leave one of the two out."
        if self.teacher and (self.zero_stage > 1 or self.context_parallel > 1):
            yield (
                "A teacher is whole on every rank, and sees whole rows; take zero_stage=0 or 1 and no context_parallel, or leave "
                "teacher out."
            )

    def _about_adapters(self) -> Iterator[str]:
        if (self.lora_targets or self.modules_to_save or self.lora_dropout) and not self.lora:
            yield "lora_targets, modules_to_save and lora_dropout are about adapters; add lora=16, say, or leave them out."
        if self.quantized and not self.upcast and self.precision == "fp16":
            yield (
                "Without upcast adapters on 4-bit weights are in bfloat16, whose gradients fp16's scaler does not take; take "
                "precision='autocast' or 'bf16'."
            )
        if self.quantized and not (self.lora or self.frozen):
            yield "Weights in 4 bits cannot be trained themselves; add lora=16, say."
        if self.quantized and self.zero_stage > 1:
            yield "FSDP2 does not shard weights in 4 bits; take zero_stage=0 or 1."

    def _about_ranks(self) -> Iterator[str]:
        if self.zero_stage and self.ranks == 1:
            yield f"zero_stage={self.zero_stage} has nothing to shard over with ranks=1; give more ranks, or zero_stage=0."
        of_bitsandbytes = self.optimizer in OPTIMIZERS and OPTIMIZERS[self.optimizer].path.startswith("bitsandbytes")
        if self.zero_stage and of_bitsandbytes:
            yield f"{self.optimizer} is bitsandbytes', which takes no shards; with a zero_stage take an optimizer of torch's."
        if self.replicas > 1 and (self.zero_stage < 2 or self.ranks % self.replicas):
            yield f"replicas={self.replicas} are groups of equally many ranks with zero_stage=2 or 3; change ranks or stage."
        if self.context_parallel not in (1, self.ranks):
            yield f"context_parallel={self.context_parallel} is of all ranks; give ranks={self.context_parallel}."
        has_other_attention = self.packed or self.attention != "sdpa" or self.precision in ("fp16", "bf16-masters")
        if self.context_parallel > 1 and has_other_attention:
            yield (
                "With context_parallel attention is the ring's, of whole rows in 'fp32', 'bf16' or 'autocast'; leave packed and "
                "attention out, and take one of these."
            )
        if self.precision in ("bf16-masters", "fp16") and self.zero_stage:
            yield f"With a zero_stage take precision 'fp32', 'bf16' or 'autocast', not {self.precision!r}."

    @classmethod
    def from_plain(cls, values: dict[str, Any]) -> "Recipe":
        """The recipe with these fields, in which lists may stand for tuples, as in JSON."""
        return cls(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})

    @property
    def itemsize(self) -> int:
        """Bytes of one element of the parameters."""
        return 2 if self.precision.startswith("bf16") else 4


def _check_field(field: Field, value: object) -> None:
    name = field.name
    minimum = field.metadata["minimum"]
    choices = () if callable(value) else field.metadata["choices"]
    # True is no stage, though it equals 1.
    if choices and (type(value), value) not in [(type(choice), choice) for choice in choices]:
        names = (choice or repr(choice) for choice in choices)
        raise CourseError(f"No {name} is called {value!r}; {suggest(value, names)}")
    is_of_names = isinstance(value, tuple) and all(isinstance(word, str) and word for word in value)
    if field.type == Names and not is_of_names:
        raise CourseError(f"{name}={value!r} are no names; give a tuple of {field.metadata['help']}.")
    if field.type is float and (type(value) not in (int, float) or not 0 <= value < 1):
        raise CourseError(f"{name}={value!r} is no share; give a number from 0 to below 1.")
    if field.type is bool and not isinstance(value, bool):
        raise CourseError(f"{name} must be True or False, not {value!r}.")
    if minimum and value is not None:
        require_count(name, value)
    elif field.type is int and not choices and (type(value) is not int or value < 0):
        raise CourseError(f"{name}={value!r} is no {field.metadata['unit']}; give a whole number, or 0 for none.")


def plain_recipe(recipe: Recipe) -> dict:
    """The fields that differ from their defaults, by name."""
    defaults = vars(Recipe())
    return {name: value for name, value in vars(recipe).items() if value != defaults[name]}


def flag_of(name: str) -> str:
    """The flag of `course plan` for a field."""
    return f"--{name.replace('_', '-')}"


def read_fields(text: str) -> dict[str, Any]:
    """Fields from a text: `batch=4,lora_targets=q_proj+v_proj,clipping=no`. Raises `CourseError` for an unknown field."""
    values: dict[str, Any] = {}
    by_name = {field.name: field for field in fields(Recipe)}
    for word in filter(None, text.split(",")):
        name, has_value, value = word.strip().partition("=")
        name = name.replace("-", "_")
        if name not in by_name:
            raise CourseError(f"A recipe has no field {name!r}; {suggest(name, by_name)}")
        field_type = by_name[name].type
        if field_type is bool and value.lower() in _BOOLEANS:
            values[name] = _BOOLEANS[value.lower()]
        elif not has_value or field_type is bool:
            values[name] = value or True
        elif field_type == Names:
            values[name] = tuple(value.split("+"))
        else:
            number = re.fullmatch(r"\d+(\.\d+)?", value)
            values[name] = (float if number[1] else int)(value) if number else value
    return values
