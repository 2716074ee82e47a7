"""Techniques by hand, one file each: gradient checkpointing, blocks of a model in segments, saved tensors on disk, attention by
tiles, cross-entropy by pieces of its logits, several documents in a row, low-rank adapters, weights in 4 bits, distillation."""

from course_utils.techniques.checkpointing import checkpoint, checkpoint_by_hooks
from course_utils.techniques.chunked_loss import LossByTiles, LossWithGradients
from course_utils.techniques.distillation import distillation_loss, soft_loss
from course_utils.techniques.offloading import SavedOnDisk
from course_utils.techniques.packing import first_fit, may_see, pack
from course_utils.techniques.segments import blocks_of, checkpoint_blocks, segment_ranges

__all__ = [
    "LossByTiles",
    "LossWithGradients",
    "SavedOnDisk",
    "blocks_of",
    "checkpoint",
    "checkpoint_blocks",
    "checkpoint_by_hooks",
    "distillation_loss",
    "first_fit",
    "may_see",
    "pack",
    "segment_ranges",
    "soft_loss",
]
