"""Techniques by hand, one module each: gradient checkpointing in segments and with a policy, saved tensors on disk."""

from course_utils.techniques.checkpointing import checkpoint, checkpoint_by_hooks
from course_utils.techniques.keeping import MATRIX_PRODUCTS
from course_utils.techniques.offloading import SavedOnDisk
from course_utils.techniques.segments import ForwardCount, blocks_of, checkpoint_blocks, segment_ranges

__all__ = [
    "MATRIX_PRODUCTS",
    "ForwardCount",
    "SavedOnDisk",
    "blocks_of",
    "checkpoint",
    "checkpoint_blocks",
    "checkpoint_by_hooks",
    "segment_ranges",
]
