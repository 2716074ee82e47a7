"""A model and a recipe as a step that runs, for `measure` and for `dry_run`."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from course_utils.errors import CourseError, suggest
from course_utils.memory.step import losses
from course_utils.memory.step.model import ModelLike, source_of
from course_utils.memory.step.optimizers import factory_of, galore_factory
from course_utils.memory.step.quantized import quantize_linears
from course_utils.memory.step.recipe import Recipe
from course_utils.memory.step.sharded import Buckets, HostUpdate, attend_on_ring, part_of, shard, share_state
from course_utils.memory.trace.fake import is_fake
from course_utils.memory.trace.phases import phase
from course_utils.memory.trace.saved import SavedNowhere
from course_utils.precision import MasterWeights
from course_utils.techniques import SavedOnDisk, checkpoint_blocks

Batch = torch.Tensor | tuple | list | dict


class Workload:
    """Training of `model` by `recipe` on random examples: `build`, then `step` again and again.

    `model` and `batch` as for `estimate`. `idle` names trained parameters that get no gradient, for which `prime` therefore
    creates no state; after a step `seen_idle` names those that got none. Raises `CourseError` for sequences longer than the
    positions of the model or of its teacher.
    """

    def __init__(self, model: ModelLike, recipe: Recipe, batch: Callable | None = None, idle: frozenset = frozenset()):
        self.source = source_of(model, batch)
        self.recipe = recipe
        self.idle = self.seen_idle = idle
        self.source.require(recipe)
        self.teacher = source_of(recipe.teacher) if recipe.teacher else None
        if self.teacher is not None:
            self.teacher.require(recipe)

    def build(self) -> tuple[nn.Module, torch.optim.Optimizer, list]:
        """Model, optimizer and one batch for every micro-batch, with fresh random values."""
        recipe = self.recipe
        model = self.make_model()
        if recipe.context_parallel > 1:
            attend_on_ring(model)
        with _set_default_dtype(self._dtype):
            batches = [self._make_batch(model, recipe.batch) for _ in range(recipe.accumulation)]
            teacher = None if self.teacher is None else self.teacher.make()
        if teacher is not None:
            self._choose_attention(teacher)
        if recipe.zero_stage > 1:
            shard(model, recipe)
        optimizer = self._make_optimizer(model)
        if teacher is not None:  # last, since all before is for the student alone
            losses.learn_from(model, teacher)
        return model, optimizer, batches

    def make_model(self) -> nn.Module:
        """The recipe's model on one device, before it is sharded."""
        recipe = self.recipe
        with _set_default_dtype(self._dtype):
            model = self.source.make()
            if not isinstance(model, nn.Module):
                raise CourseError(f"{self.source.name}() returned a {type(model).__name__}; let it return a module.")
            model = self._adapt(model.train())
        if not recipe.use_cache and hasattr(model, "config"):
            model.config.use_cache = False
        self._choose_attention(model)
        if recipe.chunked_loss:
            losses.chunk_loss(model, recipe.chunked_loss)
        if recipe.trl_loss:
            losses.fuse_head(model)
        if recipe.checkpointing:
            _checkpoint(model, recipe.segments)
        return model

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, batches: list) -> None:
        """Run forward and backward over the micro-batches, one update, and an evaluation if the recipe has one."""
        with self._patch_kernels(model):
            self._train(model, optimizer, batches)
        if self.recipe.eval_batch:
            self.evaluate(model, optimizer, batches)

    def _train(self, model: nn.Module, optimizer: torch.optim.Optimizer, batches: list) -> None:
        recipe = self.recipe
        scaler = torch.amp.GradScaler("cpu", enabled=recipe.precision == "fp16")
        versions: dict[str, int] | None = None
        for batch in batches:
            with phase("forward"), self._autocast(), self._hook_saved_tensors(model):
                outputs, loss = self._forward_and_loss(model, batch)
                loss = loss / len(batches)
            if not recipe.keeps_outputs:
                del outputs
            if versions is None:
                if recipe.zero_grad != "after-update":
                    optimizer.zero_grad(set_to_none=recipe.zero_grad != "never")
                versions = {name: p.grad._version for name, p in _list_trained(model) if p.grad is not None}
            with phase("backward"):
                scaler.scale(loss).backward()
        with phase("backward"):
            for bucket in getattr(model, "buckets", ()):
                bucket.average()
        if recipe.zero_stage < 2 and not recipe.in_backward:
            untouched = (n for n, p in _list_trained(model) if p.grad is None or p.grad._version == versions.get(n))
            self.seen_idle = frozenset(untouched)
        with phase("update"):
            if recipe.clipping:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
            if not recipe.in_backward:
                scaler.step(optimizer)
                if recipe.zero_grad == "after-update":
                    optimizer.zero_grad()

    def prime(self, model: nn.Module, optimizer: torch.optim.Optimizer, batches: list) -> None:
        """Create the optimizer's state, as a first step does; under FSDP2 run a whole step, which creates its buffers too."""
        if self.recipe.zero_stage > 1 or self.recipe.in_backward:
            self.step(model, optimizer, batches)
            return
        for name, parameter in _list_trained(model):
            if name not in self.idle:
                parameter.grad = torch.empty_like(parameter)
        one_by_one = [group for group in optimizer.param_groups if group.get("foreach") is False]
        for group in one_by_one:  # all at once creates the same state with a tenth of the operators
            group["foreach"] = True
        optimizer.step()
        for group in one_by_one:
            group["foreach"] = False
        if self.recipe.zero_grad == "after-update":
            optimizer.zero_grad()

    def evaluate(self, model: nn.Module, optimizer: torch.optim.Optimizer, batches: list) -> None:
        """Run the last forward pass of an evaluation, on `eval_batch` examples, or on those of a micro-batch.

        With `eval_logits` the logits and labels of the batches before are kept, and joined with this one's, as Trainer does.
        """
        recipe = self.recipe
        gathered: list[torch.Tensor] = []
        model.eval()
        with self._patch_kernels(model), phase("evaluation"), torch.no_grad():
            batch = self._make_batch(model, recipe.eval_batch) if recipe.eval_batch else batches[0]
            for _ in range(2 if recipe.eval_logits else 1):
                with self._autocast():
                    outputs, loss = self._forward_and_loss(model, batch, recipe.eval_logits > 0)
                if recipe.eval_logits:
                    of_batch = _logits_and_labels(outputs, batch)
                    del outputs
                    gathered = self._join_logits(gathered, of_batch)
        model.train()

    def _join_logits(self, gathered: list[torch.Tensor], of_batch: list[torch.Tensor]) -> list[torch.Tensor]:
        """Logits and labels of all batches until this one; before the first, room for those that came earlier."""
        if gathered:
            return [torch.cat(pair) for pair in zip(gathered, of_batch, strict=True)]
        rows = max(0, self.recipe.eval_logits - self.recipe.eval_batch)
        return [tensor.new_zeros(rows, *tensor.shape[1:]) for tensor in of_batch]

    def save(self, model: nn.Module, optimizer: torch.optim.Optimizer, batches: list) -> None:
        """Copy parameters and optimizer state to the host, tensor by tensor; a sharded one is gathered first."""
        with phase("saving"), torch.no_grad():
            state = (value for values in optimizer.state.values() for value in values.values())
            tensors = [
                *losses.own_state(model).values(),
                *(value for value in state if isinstance(value, torch.Tensor)),
            ]
            copies = [(t.full_tensor() if hasattr(t, "full_tensor") else t).cpu() for t in tensors]
            del copies

    def load(self, model: nn.Module, optimizer: torch.optim.Optimizer, batches: list) -> None:
        """Copy a checkpoint into the parameters from the device, where `torch.load` puts it by default.

        The optimizer's state is not copied, since an optimizer takes over the tensors that were loaded.
        """
        with phase("loading"), torch.no_grad():
            checkpoint = {name: tensor.clone() for name, tensor in losses.own_state(model).items()}
            model.load_state_dict(checkpoint, strict=self.teacher is None)

    def _forward_and_loss(self, model: nn.Module, batch: Batch, wants_logits: bool = False) -> tuple:
        recipe = self.recipe
        if not (recipe.label_smoothing or recipe.trl_loss):
            outputs = call(model, batch)
            return (self._widen(outputs) if wants_logits else outputs), self.source.loss(outputs, batch)
        if not isinstance(batch, dict) or "labels" not in batch:
            name = "label_smoothing" if recipe.label_smoothing else "trl_loss"
            raise CourseError(f"{name} needs labels by Transformers' names; leave it out for this model.")
        inputs = {name: value for name, value in batch.items() if name != "labels"}
        if recipe.label_smoothing:
            return self._forward_with_smoothing(model, batch, inputs, wants_logits)
        outputs = model(**batch, fused_lm_head=True)
        loss = -outputs.log_probs.sum() / outputs.label_mask.sum().clamp(min=1)
        return (self._widen(model(**inputs)) if wants_logits else outputs), loss

    def _forward_with_smoothing(self, model: nn.Module, batch: dict, inputs: dict, wants_logits: bool) -> tuple:
        from transformers.trainer_pt_utils import LabelSmoother

        plain = losses.without_adapters(model)
        if hasattr(plain, "prepare_decoder_input_ids_from_labels"):  # as DataCollatorForSeq2Seq
            inputs["decoder_input_ids"] = plain.prepare_decoder_input_ids_from_labels(labels=batch["labels"])
        outputs = self._widen(model(**inputs))
        smoother = LabelSmoother(self.recipe.label_smoothing)
        loss = smoother(outputs, batch["labels"], shift_labels=losses.is_causal(type(plain)))
        if self.recipe.trl_loss:
            del outputs
            with torch.no_grad():  # once more for its metrics
                outputs = model(**batch, fused_lm_head=True)
            outputs = self._widen(model(**inputs)) if wants_logits else outputs
        return outputs, loss

    def _widen(self, outputs: dict) -> dict:
        """The outputs with logits in float32, as Accelerate returns them under autocast."""
        if self.recipe.precision in ("autocast", "fp16") and "logits" in outputs:
            outputs["logits"] = outputs["logits"].float()
        return outputs

    def _make_batch(self, model: nn.Module, examples: int) -> object:
        """This rank's part of a batch of this many examples."""
        batch = self.source.batch(model, replace(self.recipe, batch=examples))
        parts = self.recipe.context_parallel
        return part_of(batch, parts) if parts > 1 else batch

    @property
    def _dtype(self) -> torch.dtype:
        is_half = self.recipe.precision.startswith("bf16") or (self.recipe.quantized and not self.recipe.upcast)
        return torch.bfloat16 if is_half else torch.float32

    def _adapt(self, model: nn.Module) -> nn.Module:
        """The model with 4-bit weights, frozen parameters and adapters, as the recipe has them."""
        recipe = self.recipe
        if recipe.quantized:
            model = quantize_linears(model, recipe.checkpointing, recipe.double_quantization, recipe.upcast)
        for name, parameter in model.named_parameters():
            if name.startswith(recipe.frozen):
                parameter.requires_grad_(False)
        return self._add_adapters(model) if recipe.lora else model

    def _add_adapters(self, model: nn.Module) -> nn.Module:
        """The model with adapters beside its layers; raises `CourseError` for a target that it does not have."""
        import peft

        recipe = self.recipe
        addresses = [address for address, _ in model.named_modules()]
        for target in (*recipe.lora_targets, *recipe.modules_to_save):
            if not any(f".{address}".endswith(f".{target}") for address in addresses):
                names = {address.rpartition(".")[2] for address in addresses}
                raise CourseError(
                    f"No module of this model is called {target!r}; "
                    f"{suggest(target, sorted(name for name in names if name and not name.isdigit()))}"
                )
        adapters = peft.LoraConfig(
            r=recipe.lora,
            lora_alpha=2 * recipe.lora,
            target_modules=list(recipe.lora_targets) or "all-linear",
            modules_to_save=list(recipe.modules_to_save) or None,
            lora_dropout=recipe.lora_dropout,
        )
        with warnings.catch_warnings():  # PEFT uses a deprecated name of Transformers
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
            adapted = peft.get_peft_model(model, adapters)
        if recipe.quantized and not recipe.upcast:  # PEFT has made them float32, and TRL makes them bfloat16 again
            for _, parameter in _list_trained(adapted):
                parameter.data = parameter.data.bfloat16()
        return adapted

    def _choose_attention(self, model: nn.Module) -> None:
        if self.recipe.attention == "eager":
            if not hasattr(model, "set_attn_implementation"):
                raise CourseError("attention='eager' is a choice of Transformers' models; leave it out for others.")
            model.set_attn_implementation("eager")

    def _make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        recipe = self.recipe
        factory = galore_factory(model, recipe.galore) if recipe.galore else factory_of(recipe.optimizer)
        parameters = [parameter for _, parameter in _list_trained(model)]
        if not parameters:
            raise CourseError("No parameter of the model is trained: requires_grad is False for all; set it for some.")
        if recipe.ranks > 1 and recipe.zero_stage < 2:
            model.buckets = [Buckets(parameters)]
        if recipe.zero_stage == 1:
            return share_state(factory(parameters))
        if recipe.offload and recipe.zero_stage < 3:
            return HostUpdate(parameters, factory)
        optimizer = MasterWeights(parameters, factory) if recipe.precision == "bf16-masters" else factory(parameters)
        if recipe.in_backward:
            # While only one parameter has a gradient, `step` updates that one (Lv et al. 2023, LOMO).
            def update(parameter: torch.Tensor) -> None:
                optimizer.step()
                parameter.grad = None

            for parameter in parameters:
                parameter.register_post_accumulate_grad_hook(update)
        return optimizer

    def _hook_saved_tensors(self, model: nn.Module) -> AbstractContextManager:
        if self.recipe.offload_activations:
            return torch.autograd.graph.save_on_cpu(pin_memory=True)
        if self.recipe.saved_on_disk:
            return SavedNowhere(model) if is_fake(next(model.parameters())) else SavedOnDisk(model, smallest=1)
        return nullcontext()

    def _patch_kernels(self, model: nn.Module) -> AbstractContextManager:
        as_on_cuda = self.recipe.trl_loss and self.recipe.device == "cuda" and is_fake(next(model.parameters()))
        return losses.kernels_of_cuda() if as_on_cuda else nullcontext()

    def _autocast(self) -> AbstractContextManager:
        half_dtype = {"autocast": torch.bfloat16, "fp16": torch.float16}.get(self.recipe.precision)
        if half_dtype is None or self.recipe.zero_stage > 1:  # FSDP2 casts by a policy of its own
            return nullcontext()
        return torch.autocast("cpu" if self.recipe.device == "cpu" else "cuda", half_dtype)


def _list_trained(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)


def _logits_and_labels(outputs: object, batch: Batch) -> list[torch.Tensor]:
    if not (isinstance(batch, dict) and "labels" in batch and "logits" in outputs):
        raise CourseError("eval_logits needs logits and labels by Transformers' names; leave it out for this model.")
    return [outputs["logits"], batch["labels"]]


def call(model: nn.Module, batch: Batch) -> object:
    """The model's output for a batch: a dict of named inputs, several inputs, or one."""
    if isinstance(batch, dict):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple | list) else model(batch)


def _checkpoint(model: nn.Module, segments: int | None) -> None:
    """Checkpoint each block by Transformers' own method; segments, and models without the method, by torch's function."""
    # The newer of two names for the same thing; Transformers 5.1 knows only the older.
    older = getattr(model, "gradient_checkpointing_enable", None)
    enable = getattr(model, "activation_checkpointing_enable", older)
    if segments is not None or enable is None:
        checkpoint_blocks(model, segments, using=partial(checkpoint, use_reentrant=False))
    else:
        enable({"use_reentrant": False})


@contextmanager
def _set_default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
