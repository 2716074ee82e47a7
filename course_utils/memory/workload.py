"""A model and a recipe as something that runs: what `measure` measures and `dry_run` runs dry."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.checkpoint import checkpoint

from course_utils.errors import CourseError
from course_utils.memory.chunked import chunk_loss
from course_utils.memory.context import attend_on_ring, part_of
from course_utils.memory.distilled import learn_from, own_state
from course_utils.memory.fake import is_fake
from course_utils.memory.model import source_of
from course_utils.memory.optimizers import make_galore, maker
from course_utils.memory.phases import phase
from course_utils.memory.quantized import quantize_linears
from course_utils.memory.recipe import Recipe
from course_utils.memory.sharded import Buckets, HostUpdate, shard, share_state
from course_utils.precision import MasterWeights
from course_utils.techniques import SavedOnDisk, checkpoint_blocks


class Workload:
    """Training of the model that `what` describes, by `recipe`, on random examples: `build`, then `step` again and again.

    `what` and `batch` as for `estimate`. Raises `CourseError` for sequences longer than the model's positions, or
    its teacher's.
    """

    def __init__(self, what, recipe: Recipe, batch: Callable | None = None, idle: frozenset[str] = frozenset()):
        self.source = source_of(what, batch)
        self.recipe = recipe
        self.idle = idle
        self.source.require(recipe)
        self.teacher = source_of(recipe.teacher) if recipe.teacher else None
        if self.teacher is not None:
            self.teacher.require(recipe)

    def build(self) -> tuple[nn.Module, torch.optim.Optimizer, list]:
        """Model, optimizer and one batch for every micro-batch, with fresh random values."""
        recipe, model = self.recipe, self.make_model()
        with _default_dtype(self._dtype):
            batches = [self.source.batch(model, recipe) for _ in range(recipe.accumulation)]
            teacher = None if self.teacher is None else self.teacher.make()
        if teacher is not None and recipe.attention == "eager":
            _attend_eagerly(teacher)
        if recipe.context_parallel > 1:
            attend_on_ring(model)
            batches = [part_of(batch, recipe.context_parallel) for batch in batches]
        if recipe.zero_stage > 1:
            shard(model, recipe)
        optimizer = self._make_optimizer(model)
        if teacher is not None:  # after all that is done to the student alone
            learn_from(model, teacher)
        return model, optimizer, batches

    def make_model(self) -> nn.Module:
        """The model as the recipe has it on one device, before ranks share it out."""
        recipe = self.recipe
        with _default_dtype(self._dtype):
            model = self._adapt(self.source.make().train())
        if recipe.attention == "eager":
            _attend_eagerly(model)
        if recipe.chunked_loss:
            chunk_loss(model, recipe.chunked_loss)
        if recipe.checkpointing:
            _checkpoint(model, recipe.segments)
        return model

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, batches: list) -> None:
        """Forward and backward over the micro-batches, then one update; the gradients are dropped at the end."""
        recipe, scaler = self.recipe, torch.amp.GradScaler("cpu", enabled=self.recipe.precision == "fp16")
        for batch in batches:
            with phase("forward"), self._autocast(), self._saved_tensors_hooks(model):
                outputs = call(model, batch)
                loss = self.source.loss(outputs, batch) / len(batches)
            if not recipe.keeps_outputs:
                del outputs
            with phase("backward"):
                scaler.scale(loss).backward()
        with phase("backward"):
            for bucket in getattr(model, "buckets", ()):
                bucket.average()
        if recipe.zero_stage < 2 and not recipe.in_backward:
            trained = ((name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)
            self.idle = frozenset(name for name, parameter in trained if parameter.grad is None)
        with phase("update"):
            if recipe.clipping:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
            if not recipe.in_backward:
                scaler.step(optimizer)
                optimizer.zero_grad()

    def prime(self, model: nn.Module, optimizer: torch.optim.Optimizer, batches: list) -> None:
        """Bear the optimizer's state, as a first step does; under FSDP2 take one, since it bears its buffers there."""
        if self.recipe.zero_stage > 1 or self.recipe.in_backward:
            self.step(model, optimizer, batches)
            return
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and name not in self.idle:
                parameter.grad = torch.empty_like(parameter)
        one_by_one = [group for group in optimizer.param_groups if group.get("foreach") is False]
        for group in one_by_one:  # all at once leaves the same state, and asks a tenth of the operators
            group["foreach"] = True
        optimizer.step()
        for group in one_by_one:
            group["foreach"] = False
        optimizer.zero_grad()

    def evaluate(self, model: nn.Module, optimizer: torch.optim.Optimizer, batches: list) -> None:
        """A forward pass without gradients, on a batch as large as a micro-batch."""
        model.eval()
        with phase("evaluation"), torch.no_grad(), self._autocast():
            call(model, batches[0])
        model.train()

    def save(self, model: nn.Module, optimizer: torch.optim.Optimizer, batches: list) -> None:
        """Parameters and optimizer state copied to the host, tensor by tensor; of shards each is gathered first."""
        with phase("saving"), torch.no_grad():
            state = (value for values in optimizer.state.values() for value in values.values())
            tensors = [*own_state(model).values(), *(value for value in state if isinstance(value, torch.Tensor))]
            kept = [(t.full_tensor() if hasattr(t, "full_tensor") else t).cpu() for t in tensors]
            del kept

    def load(self, model: nn.Module, optimizer: torch.optim.Optimizer, batches: list) -> None:
        """A checkpoint on the device, as `torch.load` leaves it by default, copied into the parameters that are there.

        The optimizer takes over its state as it is.
        """
        with phase("loading"), torch.no_grad():
            checkpoint = {name: tensor.clone() for name, tensor in own_state(model).items()}
            model.load_state_dict(checkpoint, strict=self.teacher is None)

    @property
    def _dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.recipe.precision.startswith("bf16") else torch.float32

    def _adapt(self, model: nn.Module) -> nn.Module:
        recipe = self.recipe
        if recipe.quantized:
            model = quantize_linears(model, recipe.checkpointing)
        for name, parameter in model.named_parameters():
            if name.startswith(recipe.frozen):
                parameter.requires_grad_(False)
        if not recipe.lora:
            return model
        import peft

        adapters = peft.LoraConfig(r=recipe.lora, lora_alpha=2 * recipe.lora, target_modules="all-linear")
        with warnings.catch_warnings():  # PEFT asks Transformers by a name that is on its way out
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
            return peft.get_peft_model(model, adapters)

    def _make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        recipe = self.recipe
        make = make_galore(model, recipe.galore) if recipe.galore else maker(recipe.optimizer)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if recipe.ranks > 1 and recipe.zero_stage < 2:
            model.buckets = [Buckets(trained)]
        if recipe.zero_stage == 1:
            return share_state(make(trained))
        if recipe.offload and recipe.zero_stage < 3:
            return HostUpdate(trained, make)
        optimizer = MasterWeights(trained, make) if recipe.precision == "bf16-masters" else make(trained)
        if recipe.in_backward:
            # While only one parameter has a gradient, `step` updates that one (Lv et al. 2023, LOMO).
            def update(parameter: torch.Tensor) -> None:
                optimizer.step()
                parameter.grad = None

            for parameter in trained:
                parameter.register_post_accumulate_grad_hook(update)
        return optimizer

    def _saved_tensors_hooks(self, model: nn.Module):
        if self.recipe.offload_activations:
            return torch.autograd.graph.save_on_cpu(pin_memory=True)
        if self.recipe.saved_on_disk:
            return _SavedNowhere(model) if is_fake(next(model.parameters())) else SavedOnDisk(model, smallest=1)
        return nullcontext()

    def _autocast(self):
        halves = {"autocast": torch.bfloat16, "fp16": torch.float16}.get(self.recipe.precision)
        if halves is None or self.recipe.zero_stage > 1:  # FSDP2 casts by a policy of its own
            return nullcontext()
        return torch.autocast("cpu" if self.recipe.device == "cpu" else "cuda", halves)


def call(model: nn.Module, batch):
    """The model on a batch: named inputs, several, or one."""
    if isinstance(batch, dict):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple | list) else model(batch)


class _SavedNowhere(torch.autograd.graph.saved_tensors_hooks):
    """`SavedOnDisk` for fake tensors: what is saved takes no memory, nor does what is mapped from the file again."""

    def __init__(self, model: nn.Module):
        resident = {tensor.untyped_storage()._cdata for tensor in (*model.parameters(), *model.buffers())}

        def save(tensor):
            if tensor.untyped_storage()._cdata in resident:
                return tensor.detach()
            return partial(torch.empty_strided, tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)

        def read(saved):
            if isinstance(saved, torch.Tensor):
                return saved
            # Fake, and such that the meter does not see it.
            with _disable_current_modes() as modes, next(mode for mode in modes if isinstance(mode, FakeTensorMode)):
                return saved()

        super().__init__(save, read)


def _checkpoint(model: nn.Module, segments: int | None) -> None:
    """By Transformers, which knows only single blocks; segments, and other models, by torch's function."""
    # The newer of two names for the same thing; Transformers 5.1 knows only the older.
    older = getattr(model, "gradient_checkpointing_enable", None)
    enable = getattr(model, "activation_checkpointing_enable", older)
    if segments is not None or enable is None:
        checkpoint_blocks(model, segments, using=partial(checkpoint, use_reentrant=False))
        return
    enable({"use_reentrant": False})


def _attend_eagerly(model: nn.Module) -> None:
    if not hasattr(model, "set_attn_implementation"):
        raise CourseError("attention='eager' is a choice of Transformers' models; leave it out for others.")
    model.set_attn_implementation("eager")


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
