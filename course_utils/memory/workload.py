"""A model and a recipe as something that runs: what `measure` measures and `dry_run` runs dry."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from course_utils import models
from course_utils.errors import CourseError
from course_utils.memory.optimizers import COSTS
from course_utils.memory.phases import phase
from course_utils.memory.recipe import Recipe, require_positions
from course_utils.models import ConvNetConfig
from course_utils.techniques import SavedOnDisk, checkpoint_blocks


class Workload:
    """Training of the model that `config` describes, by `recipe`, on random examples: `build`, then `step` again and again.

    Raises `CourseError` for recipes that one process cannot follow, and for sequences longer than the model's positions.
    """

    def __init__(self, config, recipe: Recipe):
        if recipe.zero_stage or recipe.offload:
            raise CourseError("A workload is one process that keeps everything; give this recipe to memory.estimate.")
        require_positions(config, recipe)
        self.config, self.recipe = config, recipe

    def build(self) -> tuple[nn.Module, torch.optim.Optimizer, list[dict]]:
        """Model, optimizer and one batch for every micro-batch, with fresh random values."""
        recipe = self.recipe
        with _default_dtype(torch.bfloat16 if recipe.precision == "bf16" else torch.float32):
            model = models.from_configuration(self.config)
            batches = [random_batch(model, recipe) for _ in range(recipe.accumulation)]
        if hasattr(model, "set_attn_implementation"):
            model.set_attn_implementation(recipe.attention)
        if recipe.checkpointing:
            _checkpoint(model, recipe.segments)
        return model, COSTS[recipe.optimizer].make(model.parameters()), batches

    def step(self, model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[dict]) -> None:
        """Forward and backward over the micro-batches, then one update; the gradients are dropped at the end."""
        for batch in batches:
            with phase("forward"), self._precision(), self._saving(model):
                loss = model(**batch).loss / len(batches)
            with phase("backward"):
                loss.backward()
            del loss
        with phase("update"):
            if self.recipe.clipping:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
            optimizer.step()
            optimizer.zero_grad()

    def _saving(self, model: nn.Module):
        return SavedOnDisk(model, smallest=1) if self.recipe.saved_on_disk else nullcontext()

    def _precision(self):
        return torch.autocast("cpu", torch.bfloat16) if self.recipe.precision == "autocast" else nullcontext()


def random_batch(model: nn.Module, recipe: Recipe) -> dict[str, torch.Tensor]:
    """One micro-batch for `model`: pictures, or token ids. A classifier's texts differ in length, so they have a mask."""
    config, size = model.config, (recipe.batch, recipe.sequence)
    if isinstance(config, ConvNetConfig):
        pictures = torch.randn(recipe.batch, config.channels, config.image, config.image)
        pictures = pictures.contiguous(memory_format=torch.channels_last)
        return {"pixel_values": pictures, "labels": torch.randint(config.num_labels, (recipe.batch,))}
    ids = torch.randint(1, config.vocab_size, size)
    if "ForSequenceClassification" not in type(model).__name__:
        return {"input_ids": ids, "labels": ids.clone()}
    mask = torch.ones(size, dtype=torch.int64)
    mask[0, recipe.sequence // 2 :] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(config.num_labels, (recipe.batch,))}


def _checkpoint(model: nn.Module, segments: int | None) -> None:
    """By Transformers, which knows only single blocks; segments by torch's function."""
    if segments is not None:
        checkpoint_blocks(model, segments, using=partial(checkpoint, use_reentrant=False))
        return
    # The newer of two names for the same thing; Transformers 5.0 knows only the older.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
